"""Measuring variants on this machine: service times, memory, answers.

Other programs on the machine can only make a call longer. So each service time is measured in
several rounds, spread over all variants, and the round with the least mean is what is told; the
thread's processor time beside it shows what a free core would have taken.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.catalog.zoo import ServiceProfile
from inferway.runtime import OnnxRuntime, Runtime

BATCHES: Final = (1, 8)
ROUNDS: Final = 5
LARGEST_RUN: Final = 64
"""Rows of the largest run whose memory is measured."""
ROUND_S: Final = 0.25
"""Least time of a round, in seconds."""

_LEAST_CALLS: Final = 10
_WARM_CALLS: Final = 3
_ROWS: Final = 32  # per call when only the answers matter

Progress = Callable[[float, str], None]
"""Told the share that is done, 0..1, and what is under way."""


def service_times(
    paths: Sequence[Path],
    images: NDArray[np.float32],
    *,
    rounds: int = ROUNDS,
    round_s: float = ROUND_S,
    progress: Progress | None = None,
) -> list[tuple[ServiceProfile, ...]]:
    """Measure how long models of one image input take, on one thread.

    Parameters
    ----------
    paths
        The model files.
    images
        What they are asked, float32 of shape [N, 1, S, S], at least as many as the largest batch.
    rounds, round_s
        How often each is measured and for how long at least, in seconds.
    progress
        Told after each measurement.

    Returns
    -------
    list
        For each model its service times at each of `BATCHES`.
    """
    runtimes = [OnnxRuntime(path) for path in paths]
    measured: dict[tuple[int, int], list[ServiceProfile]] = {}
    rounded = list(itertools.product(range(rounds), enumerate(runtimes), BATCHES))
    for done, (_, (number, runtime), batch) in enumerate(rounded, 1):
        profile = _round(runtime, images, batch, round_s)
        measured.setdefault((number, batch), []).append(profile)
        if progress:
            stem = paths[number].stem
            progress(done / len(rounded), f"service time of {stem} at batch {batch}")
    for runtime in runtimes:
        runtime.close()
    best = {key: min(profiles, key=lambda one: one.mean_s) for key, profiles in measured.items()}
    return [tuple(best[number, batch] for batch in BATCHES) for number in range(len(paths))]


def _round(
    runtime: Runtime, images: NDArray[np.float32], batch: int, round_s: float
) -> ServiceProfile:
    name = runtime.signature.inputs[0].name
    asked = [
        {name: images[start : start + batch]} for start in range(0, len(images) - batch + 1, batch)
    ]
    for call in range(_WARM_CALLS):
        runtime.run(asked[call % len(asked)])
    times: list[float] = []
    cpu = time.thread_time()
    end = time.perf_counter() + round_s
    while len(times) < _LEAST_CALLS or time.perf_counter() < end:
        one = asked[len(times) % len(asked)]
        start_s = time.perf_counter()
        runtime.run(one)
        times.append(time.perf_counter() - start_s)
    cpu = time.thread_time() - cpu
    p50, p99 = np.quantile(times, [0.5, 0.99])
    return ServiceProfile(batch, float(np.mean(times)), float(p50), float(p99), cpu / len(times))


def answers(
    path: Path,
    images: NDArray[np.float32],
    *,
    workers: int = 1,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Ask a model of one input and one output about all images.

    Parameters
    ----------
    path
        The model file.
    images
        Rows of its input.
    workers
        Threads that share the work.
    progress
        Called after each call with its number of images.

    Returns
    -------
    numpy.ndarray
        Rows of its output.
    """
    runtime = OnnxRuntime(path)
    asked, given = runtime.signature.inputs[0].name, runtime.signature.outputs[0].name

    def answer(start: int) -> NDArray[np.float32]:
        some = images[start : start + _ROWS]
        found: NDArray[np.float32] = runtime.run({asked: some})[given]
        if progress:
            progress(len(some))
        return found

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(answer, range(0, len(images), _ROWS)))
    runtime.close()
    return np.concatenate(found)


def resident_bytes(path: Path) -> int:
    """Measure the memory that one loaded and used instance adds to a process, in bytes.

    It runs in a process of its own: in this one, memory freed by others would be used first.
    """
    program = "import sys; from inferway.catalog.measurement import _resident; _resident(sys.argv)"
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return int(done.stdout)


def _resident(arguments: list[str]) -> None:
    import onnxruntime  # noqa: F401 - the library itself is no part of an instance
    import psutil

    from inferway.runtime.artifact import newest_opset, read

    path, process = Path(arguments[1]), psutil.Process()
    newest_opset()  # loads the libraries' code with a model of one node
    _, signature = read(path)
    image = signature.inputs[0]
    rows = np.zeros((1, *image.shape[1:]), image.dtype)
    before = process.memory_info().rss
    runtime = OnnxRuntime(path)
    runtime.run({image.name: rows})
    print(max(0, process.memory_info().rss - before))


def machine() -> dict[str, Any]:
    """Describe this machine and the libraries that measurements depend on."""
    from importlib.metadata import version

    processor = platform.processor() or platform.machine()
    with suppress(OSError):
        listing = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        if model := re.search(r"^model name\s*:(.*)$", listing, re.MULTILINE):
            processor = model[1].strip()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "numpy": version("numpy"),
    }
