"""Calls of workers that an event loop begins, and whose ends it hears: no thread waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from inferway.runtime.bell import Bell
from inferway.runtime.runtime import Arrays
from inferway.runtime.worker_process import WorkerError, WorkerProcess

# Told outputs, or what went wrong, neither where the worker ended before it took the call; and the
# time that it took over an answer, s.
Ended = Callable[[Arrays | None, WorkerError | None, float], None]


@dataclass(slots=True)
class _Begun:
    """Calls that a worker has: how many are left, until when the first may take, who is told."""

    worker: WorkerProcess
    left: int
    until_s: float
    ended: Ended
    killed: bool = False


class WorkerCalls:
    """Calls under way that an event loop has begun; the first to begin one calls all but `close`.

    A worker tells of each answer by the bell, which the loop hears as it hears its connections; one
    timer for all calls sees to it that none takes too long. To hand a call to a thread, and back,
    takes more of the processor's time (`benchmarks/python_variant.py`).

    Parameters
    ----------
    timeout_s
        Longest time of a call.
    give_back
        Told each worker whose calls have ended.

    Attributes
    ----------
    bell
        Of all workers that may be called.
    """

    def __init__(self, timeout_s: float, give_back: Callable[[WorkerProcess], None]) -> None:
        self.bell = Bell()
        self._timeout_s, self._give_back = timeout_s, give_back
        self._begun: dict[int, _Begun] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False

    def begin(self, worker: WorkerProcess, calls: Sequence[list[Any]], ended: Ended) -> bool:
        """Send calls; whoever began them is told of the end of each, in their order, later.

        Returns False where the worker does not take them.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            if self._begun or self._closing:
                return False
            self._loop = loop = asyncio.get_running_loop()
            self._timer = None  # that of a loop that is closed never comes
            loop.add_reader(self.bell.heard_at, self._hear)
        count = len(calls)
        if not worker.send(calls, bytes((count,))):
            return False
        until_s = loop.time() + self._timeout_s
        self._begun[worker.number] = _Begun(worker, count, until_s, ended)
        if self._timer is None:
            self._timer = loop.call_at(until_s, self._look)
        return True

    def close(self) -> None:
        """Hear no more when the calls under way have ended; any thread may call this."""
        loop, self._closing = self._loop, True
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._close)
                return
        self.bell.close()

    def _close(self) -> None:
        if not self._begun and self._loop is not None:
            self._loop.remove_reader(self.bell.heard_at)
            if self._timer is not None:
                self._timer.cancel()
            self._loop = self._timer = None
            self.bell.close()

    def _hear(self) -> None:
        for number, answered in self.bell.heard():
            begun = self._begun.get(number)
            # Else a thread waits for that call, or it was too late.
            if begun is None or (answered and begun.killed):
                continue
            # What has ended has no more answers.
            for _ in range(1 if answered else begun.left):
                outputs, error = None, None
                try:
                    outputs = begun.worker.result(answered=answered)
                except WorkerError as failure:
                    error = failure
                self._end(begun, outputs, error)
        if self._closing:
            self._close()

    def _look(self) -> None:
        """End calls that take too long; look again when the next one would."""
        assert self._loop is not None
        loop, self._timer = self._loop, None
        self._hear()  # an answer that is there is not late
        now_s = loop.time()
        for begun in [*self._begun.values()]:
            if begun.until_s <= now_s:
                # What becomes of those behind it is known when the worker has gone.
                begun.killed = True
                self._end(begun, None, begun.worker.late())
        if self._begun:
            until_s = min(begun.until_s for begun in self._begun.values())
            self._timer = loop.call_at(until_s, self._look)
        if self._closing:
            self._close()

    def _end(self, begun: _Begun, outputs: Arrays | None, error: WorkerError | None) -> None:
        begun.left -= 1
        if begun.left:
            assert self._loop is not None
            begun.until_s = self._loop.time() + self._timeout_s
        else:
            del self._begun[begun.worker.number]
            begun.worker.end()
            self._give_back(begun.worker)
        begun.ended(outputs, error, begun.worker.took_s)
