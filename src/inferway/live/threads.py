"""The event loop and the threads beside it: who does work, and how a thread wakes the loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from inferway.live.request import Job

P = ParamSpec("P")
T = TypeVar("T")

# After so much time in models the loop looks at its connections again.
TURN_S: Final = 1e-3
_NAME: Final = "aside"


async def run_detached(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread of its own; as `asyncio.to_thread`, but for the end.

    The loop's own threads are waited for when it closes, a minute for a policy that compiles. This
    one is left to itself where whoever waits is canceled. What the function raises comes through.
    """
    ended: Future[T] = Future()
    ended.set_running_or_notify_cancel()  # from here on nobody can take it back

    def work() -> None:
        try:
            ended.set_result(function(*args, **kwargs))
        except BaseException as error:  # the one who waits is to have it
            ended.set_exception(error)

    threading.Thread(target=work, name=_NAME, daemon=True).start()
    return await asyncio.wrap_future(ended)


async def run_in_thread(work: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Do work in a thread of its own; if canceled, tell it to stop and wait until it has.

    As the work writes to files, the next one to write there must not begin before it has ended.
    What the work raises comes through; `stop` makes it end soon.
    """
    going = asyncio.ensure_future(run_detached(work))
    try:
        return await asyncio.shield(going)
    except asyncio.CancelledError:
        stop()
        while not going.done():
            with suppress(asyncio.CancelledError):  # told again, as when all tasks are ended
                await asyncio.wait({going})
        going.exception()
        raise


def working() -> bool:
    """Tell whether such work goes on: the interpreter must not be taken down under it."""
    return any(thread.name == _NAME for thread in threading.enumerate())


class ThreadClock:
    """CPU time of a thread, which any thread of the process may read.

    The thread itself begins and ends it: the system's clock of one that has ended must not be asked
    for.
    """

    def __init__(self) -> None:
        self._clock: int | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """Read the clock of the thread that calls this, where the system has one."""
        if reads_threads():
            self._clock = time.pthread_getcpuclockid(threading.get_ident())

    def end(self) -> None:
        """Keep what has been read, as the thread ends."""
        self._seconds, self._clock = self.seconds, None

    @property
    def seconds(self) -> float:
        """CPU time of the thread so far, s; 0 before it began."""
        clock = self._clock
        if clock is not None:
            with suppress(OSError):  # it has ended meanwhile
                self._seconds = time.clock_gettime(clock)
        return self._seconds


def reads_threads() -> bool:
    """Tell whether the system says what each thread takes."""
    return hasattr(time, "pthread_getcpuclockid")


class Wakeup:
    """Calls a function on the loop soon after any thread has rung; rings in between are one.

    The loop's own `call_soon_threadsafe` writes to its wake-up file while the thread holds the
    interpreter's lock, so that the loop wakes only to wait for that lock: 20 us of CPU for a round
    trip between loop and thread, against 10 us here, where the write lets go of the lock
    (`benchmarks/request_cost.py` has the whole request).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
        self._loop = loop
        self._answer = answer
        self._rung = self._closed = False
        if hasattr(os, "eventfd"):
            self._out = self._in = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._in, self._out = os.pipe()
            os.set_blocking(self._in, False)
        loop.add_reader(self._in, self._open)

    def ring(self) -> None:
        """Wake the loop, unless it has been woken and has not looked yet.

        What the function is to find must be in place before.
        """
        if not self._rung:
            self._rung = True
            os.write(self._out, b"\1\0\0\0\0\0\0\0")

    def close(self) -> None:
        """Let go of the file; no thread may ring from now on, for its number may be used again.

        A second call does nothing.
        """
        self.mute()
        if self._closed:
            return
        self._closed = True
        for file in {self._in, self._out}:
            os.close(file)

    def mute(self) -> None:
        """Answer no more, though threads may go on ringing."""
        if not self._closed:
            self._loop.remove_reader(self._in)

    def _open(self) -> None:
        os.read(self._in, 8)
        # Cleared before the function looks: whoever comes later rings again.
        self._rung = False
        self._answer()


class InlineRunner:
    """Runs brief requests on the event loop, all that came in one pass of it together.

    Together, because code that has just run is in the processor's caches: read eight requests, then
    run eight, then answer eight cost 54 us of CPU a request, each one from end to end 93 us, and
    handing each to a thread and back 99 us (`docs/benchmarks/http.md`).

    `ended` is told each that has been run, and `collect` is called after some have.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[Job], None],
        collect: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._ended, self._collect = ended, collect
        self._runs: dict[Callable[[], Job | None], None] = {}

    def plan(self, run_next: Callable[[], Job | None]) -> None:
        """Have what an instance keeps for the loop run soon, each by a call of this."""
        if not self._runs:
            self._loop.call_soon(self._run)
        self._runs[run_next] = None

    def _run(self) -> None:
        left_s = TURN_S
        while self._runs and left_s > 0.0:
            run_next = next(iter(self._runs))
            job = run_next()
            if job is None:
                del self._runs[run_next]
                continue
            left_s -= job.service_s
            self._ended(job)
        if self._runs:
            self._loop.call_soon(self._run)
        self._collect()
