"""The memory that requests may take, with their bodies and their runs, and who takes it now.

A request takes the peak of its run while that lasts. Where its answer is large, or of several runs,
it holds room for that besides, from its first run until it is sent. It is let in only where all
that hold answers can still go on one after the other, so that they never wait for each other.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Condition, Lock
from typing import Any, Final, NamedTuple

from inferway.deployment import Variant
from inferway.dispatch.service_times import recall_growth, remember_growth
from inferway.protocol import Signature, Tensor
from inferway.runtime.growth import Growth, growth_of
from inferway.site.view import WHOLE

# An answer counts so often: as it comes together, and as it is written.
ANSWER_COPIES: Final = 4
# Answers of one run below this are no more than what comes and goes with any request.
_SMALL_BYTES: Final = 64 * 1024
# So many requests with small answers may pass one that waits for more room.
_OVERTAKING: Final = 64


class MemoryNeed(NamedTuple):
    """Memory that requests of one variant take while they run.

    Attributes
    ----------
    runs
        By rows, the peak of one run, bytes; as far as runs may go.
    answer_bytes
        Of a row of the answer, all its copies; 0 where nobody can say before.
    rows
        That a request may have; 0 where not even one row fits.
    source
        Where the peaks come from: ``profile``, ``recalled``, ``measured`` or ``estimated``.
    """

    runs: tuple[int, ...]
    answer_bytes: int
    rows: int
    source: str

    @property
    def most_rows(self) -> int:
        """Rows of the largest run."""
        return len(self.runs) - 1

    def answer(self, rows: int) -> int:
        """Tell what an answer of so many rows takes, where it has to be kept room for."""
        size = self.answer_bytes * rows
        return size if rows > self.most_rows or size >= _SMALL_BYTES else 0


@lru_cache(maxsize=1024)  # each fleet that a node makes of its models asks again
def memory_need_of(
    growth: Growth, source: str, signature: Signature, largest: int, limit_bytes: int
) -> MemoryNeed:
    """Say how a variant's requests are divided so that they fit into so much room.

    A run takes half of the room at most, unless a single row takes more: the rest is for answers
    and for others. The source says where the peaks of runs come from; a run has `largest` rows
    otherwise.
    """
    row_bytes = sum(map(_row_bytes, signature.inputs), 0)
    # Where requests are run together, their inputs are copied.
    whole = Growth(tuple((rows, size + rows * row_bytes) for rows, size in growth.peaks))
    most = whole.most_rows(limit_bytes // 2, largest) or min(1, largest)
    answer_bytes = ANSWER_COPIES * sum(map(_row_bytes, signature.outputs), 0)
    if answer_bytes:  # a request of one run has its answer beside it, too
        most = max(1, min(most, (limit_bytes - whole.bytes(most)) // answer_bytes))
    runs = (0, *(whole.bytes(rows) for rows in range(1, most + 1)))
    left = limit_bytes - runs[-1]
    rows = 0 if left < 0 else left // answer_bytes if answer_bytes else WHOLE
    return MemoryNeed(runs, answer_bytes, rows, source)


def tensors_of(signature: Signature) -> Growth:
    """Estimate what a run takes at another server: its tensors, here, in either direction."""
    rows = map(_row_bytes, (*signature.inputs, *signature.outputs))
    return Growth(((1, ANSWER_COPIES * sum(rows)),))


def is_closed(signature: Signature) -> bool:
    """Tell whether zeros of one shape stand for all inputs, but for their rows."""
    return all(-1 not in tensor.shape[1:] for tensor in signature.inputs)


def _row_bytes(tensor: Tensor) -> int:
    if -1 in tensor.shape[1:] or tensor.datatype == "BYTES":
        return 0
    return math.prod(tensor.shape[1:]) * tensor.dtype.itemsize


def too_many(rows: int, fitting: int, limit_bytes: int) -> str:
    """Say that a request has too many rows, and how many would do."""
    return (
        f"the request has {rows} rows, and the limit on the memory of running requests, "
        f"{limit_bytes / 1024**2:.4g} MiB, leaves room for {fitting}"
    )


class Headroom:
    """Lets requests run while their memory together stays within a limit; for any threads.

    Parameters
    ----------
    limit_bytes
        Growth of resident memory while requests run.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._changed = Condition(Lock())
        self._running = self._kept = 0
        # The largest runs of those that hold answers.
        self._pledged: list[int] = []
        self._newcomers: deque[object] = deque()
        self._overtaken = self._between = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are spoken for now."""
        return self._running + self._kept

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return len(self._newcomers) + self._between

    def begin(self, run: int, answer: int = 0) -> None:
        """Wait, behind others, until a request may begin to run.

        `run` is the peak of its largest run, bytes, which `end` gives back after each; `answer`,
        its answer's size where that is kept room for, else 0, which `settle` gives back.
        """
        with self._changed:
            place = object()
            self._newcomers.append(place)
            self._changed.wait_for(lambda: self._may_begin(run, answer, place))
            self._overtaken = 0 if self._newcomers[0] is place else self._overtaken + 1
            self._newcomers.remove(place)
            self._changed.notify_all()
            self._enter(run, answer)

    def begin_now(self, run: int, answer: int = 0) -> bool:
        """Let a request begin as `begin` does, if it need not wait; whether it may."""
        with self._changed:
            if not self._may_begin(run, answer, None):
                return False
            self._overtaken += bool(self._newcomers)
            self._enter(run, answer)
            return True

    def _enter(self, run: int, answer: int) -> None:
        self._running += run
        if answer:
            self._kept += answer
            self._pledged.append(run)

    def go_on(self, run: int) -> None:
        """Wait until a request that holds an answer may begin its next run."""
        with self._changed:
            self._between += 1
            self._changed.wait_for(lambda: self.held_bytes + run <= self.limit_bytes)
            self._between -= 1
            self._running += run

    def end(self, run: int) -> None:
        """A run has ended."""
        with self._changed:
            self._running -= run
            if self.waiting:
                self._changed.notify_all()

    def settle(self, run: int, answer: int) -> None:
        """An answer that was held, of a request with this largest run, has gone."""
        with self._changed:
            self._kept -= answer
            self._pledged.remove(run)
            if self.waiting:
                self._changed.notify_all()

    def _may_begin(self, run: int, answer: int, place: object) -> bool:
        behind = bool(self._newcomers) and self._newcomers[0] is not place
        kept = self._kept + answer
        if (
            self._between
            or (behind and (answer or self._overtaken >= _OVERTAKING))
            or self._running + kept + run > self.limit_bytes
        ):
            return False
        return not answer or kept + max(run, max(self._pledged, default=0)) <= self.limit_bytes


@dataclass(slots=True)
class Bodies:
    """Counts the bytes of all bodies that are held: unfinished, unpacked, waiting.

    Attributes
    ----------
    limit
        Most bytes at a time, over all connections of all listeners, whatever their protocol.
    held
        Bytes now.
    refused
        How many bodies found no room.
    """

    limit: int
    held: int = 0
    refused: int = 0

    @property
    def reason(self) -> str:
        """Reason for refusing a request for want of room."""
        return (
            f"the bodies of all requests together would take more than the limit of {self.limit} "
            "bytes"
        )

    def reserve(self, size: int) -> bool:
        """Count `size` more bytes; without room for them count a refusal and say no."""
        if self.held + size > self.limit:
            self.refused += 1
            return False
        self.held += size
        return True

    def release(self, size: int) -> None:
        """Count `size` bytes no more."""
        self.held -= size


def identity(variant: Variant, path: Path) -> str:
    """Say which model, whose file is at the path, a measurement is true of, and on what it runs."""
    model = None if variant.model is None else variant.model.digest
    if model is None:
        status = path.stat()
        model = f"{path} {status.st_size} {status.st_mtime_ns}"
    return " ".join([model, *map(str, variant.providers)])


class Growths:
    """Finds how much memory runs of a model take; any thread may ask.

    The file keeps them from one run to the next, beside the service times; None keeps none. The log
    is told what was measured, or why not. All runs together may take `limit_bytes`.
    """

    def __init__(self, file: Path | None, log: Any, limit_bytes: int) -> None:
        self._file, self._log, self._limit_bytes = file, log, limit_bytes
        self._growths: dict[str, tuple[Growth, str] | None] = {}

    def of(self, variant: Variant, path: Path, largest: int) -> tuple[Growth, str] | None:
        """Find the peaks of a variant's model and where they come from.

        None where they cannot be measured. The model's file is at the path, and its largest run has
        so many rows.
        """
        key = identity(variant, path)
        if key not in self._growths:
            self._growths[key] = self._find(variant, path, largest, key)
        return self._growths[key]

    def _find(
        self, variant: Variant, path: Path, largest: int, key: str
    ) -> tuple[Growth, str] | None:
        model, providers = variant.model, variant.providers
        assert model is not None  # the file at the path is its
        if model.uri.startswith("zoo://") and not providers:
            from inferway.catalog import zoo

            if peaks := zoo.resolve(model.uri)[1].peaks:
                return Growth.of_peaks(peaks), "profile"
        if self._file is not None and (growth := recall_growth(self._file, key, largest)):
            return growth, "recalled"
        try:
            growth = growth_of(path, largest, self._limit_bytes, model.digest, providers)
        except ValueError as error:
            self._log.warning("memory of runs not known", model=model.uri, reason=str(error))
            return None
        self._log.info("memory of runs measured", model=model.uri, peaks=list(growth.peaks))
        if self._file is not None:
            remember_growth(self._file, key, growth)
        return growth, "measured"
