"""The memory of runs: how much a process takes, by the rows of the run, and how it gives it back.

It is measured in a process of its own: only there the peak is the run's alone, and a model that
takes more than there is costs nobody else anything.

By default glibc keeps whatever was freed in blocks of up to 32 MiB, in an arena per thread, so that
each instance would keep the memory of the largest request that it ever ran. Elsewhere than with
glibc nothing is done about that.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from inferway.runtime.providers import Providers
from inferway.runtime.runtime import zeros

# Blocks from here on go back when they are freed. Smaller ones are as fast as ever; runs that are
# large take up to a tenth longer (`docs/benchmarks/memory.md`).
LARGE_BYTES: Final = 4 * 1024**2
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_LIBRARY: Final[Any] = ctypes.CDLL(None) if sys.platform == "linux" else None
_GLIBC: Final = hasattr(_LIBRARY, "malloc_trim")
# Of each size; the larger peak counts.
_RUNS: Final = 2
_STEP: Final = 4
# No further size is tried that would take longer.
_LONGEST_S: Final = 5.0
_PATIENCE_S: Final = 120.0


def give_back() -> None:
    """Have large blocks of this process go back to the system when they are freed."""
    if _GLIBC:
        _LIBRARY.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        _LIBRARY.mallopt(_TRIM_THRESHOLD, 2 * LARGE_BYTES)


def trim() -> None:
    """Give all free pages back to the system; takes some milliseconds, without the GIL."""
    if _GLIBC:
        _LIBRARY.malloc_trim(0)


@dataclass(frozen=True, slots=True)
class Growth:
    """Peaks of memory, beyond what the loaded model takes.

    Attributes
    ----------
    peaks
        Pairs of rows and bytes, both increasing; one at least.
    """

    peaks: tuple[tuple[int, int], ...]

    @classmethod
    def of_peaks(cls, peaks: Sequence[Sequence[int]]) -> Growth:
        """Take what was measured; a peak is no less than that of fewer rows.

        Raises
        ------
        ValueError
            Where there is no pair, or one is not of rows, from 1 on, and bytes, from 0 on.
        """
        found: dict[int, int] = {}
        most = 0
        for rows, size in sorted((int(rows), int(size)) for rows, size in peaks):
            if rows < 1 or size < 0:
                raise ValueError(f"peaks are pairs of rows, from 1 on, and bytes, not {rows, size}")
            most = found[rows] = max(most, size)
        if not found:
            raise ValueError("peaks are pairs of rows and bytes; there is none")
        return cls(tuple(found.items()))

    def bytes(self, rows: int) -> int:
        """Tell the peak of a run of so many rows: a line between what was measured."""
        known = ((0, 0), *self.peaks)
        k = bisect_left(known, (rows,), 1)
        if k == 1:
            return known[1][1]
        if k < len(known):
            (low, lower), (high, higher) = known[k - 1 : k + 1]
            return math.ceil(lower + (rows - low) / (high - low) * (higher - lower))
        # Beyond, as steep as the steepest that is known of the last.
        (before, smaller), (last, size) = known[-2:]
        slope = max(size / last, (size - smaller) / (last - before))
        return math.ceil(size + slope * (rows - last))

    def most_rows(self, limit_bytes: int, largest: int) -> int:
        """Tell how many rows, at most `largest`, a run can have within a limit; 0 for none."""
        return bisect_right(range(1, largest + 1), limit_bytes, key=self.bytes)


def growth_of(
    path: Path,
    largest: int,
    limit_bytes: int,
    digest: str | None = None,
    providers: Providers = (),
) -> Growth:
    """Measure a model file in a process of its own, which takes a second or some.

    Parameters
    ----------
    path
        The model file.
    largest
        Rows of the largest run.
    limit_bytes
        Sizes beyond this need not be tried.
    digest
        What the file must hash to; None accepts any.
    providers
        Execution providers, as `inferway.runtime.OnnxRuntime` takes them.

    Raises
    ------
    ValueError
        Where the model does not run on zeros there, with the reason.
    """
    program = "import sys; from inferway.runtime.growth import _main; _main(sys.argv[1:])"
    command = [sys.executable, "-c", program, str(path), str(largest), str(limit_bytes)]
    command += [digest or "", json.dumps(providers)]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=_PATIENCE_S, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"its memory could not be measured: {error}") from error
    try:
        return Growth.of_peaks(json.loads(done.stdout))
    except (ValueError, TypeError):
        said = done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"]
        raise ValueError(f"its memory could not be measured: {said[-1]}") from None


def _main(arguments: list[str]) -> None:
    from inferway.runtime.runtime import OnnxRuntime

    give_back()
    path, largest, limit_bytes = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    digest, providers = arguments[3] or None, json.loads(arguments[4])
    runtime = OnnxRuntime(path, digest=digest, providers=_fixed(providers))
    runtime.run(zeros(runtime.signature.inputs))
    peaks, rows = [], 1
    while True:
        begun_s = time.process_time()
        size = max(_peak(runtime, rows) for _ in range(_RUNS))
        took_s = time.process_time() - begun_s
        peaks.append((rows, size))
        ratio = min(_STEP, max(1, largest // rows))
        if rows >= largest or size > limit_bytes or took_s * ratio > _LONGEST_S:
            break
        rows = min(largest, rows * _STEP)
    print(json.dumps(peaks))


def _fixed(providers: Sequence[Any]) -> Providers:
    """Give what JSON has of providers as a key can hold it."""
    return tuple((name, tuple((key, value) for key, value in of)) for name, of in providers)


def _peak(runtime: Any, rows: int) -> int:
    before = begin_peak()
    runtime.run(zeros(runtime.signature.inputs, rows))
    return max(0, peak_bytes() - before)


def begin_peak() -> int:
    """Begin the highest mark of this process's memory anew, from what it has now; in bytes."""
    import psutil

    trim()
    with suppress(OSError):  # without it, sizes only grow
        Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Tell the most memory that this process had since `begin_peak`, in bytes."""
    if os.name == "nt":
        import psutil

        return int(psutil.Process().memory_info().rss)
    with suppress(OSError):
        return marked_bytes("self")
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) * (1 if sys.platform == "darwin" else 1024)


def marked_bytes(process: int | str) -> int:
    """Read the highest mark of a process's memory, in bytes; OSError where there is none."""
    for line in Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {process} has no highest mark")
