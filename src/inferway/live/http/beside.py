"""Work that would hold up the event loop, done step by step in a thread beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")

_NAME: Final = "beside"


class SteppedWork(Generic[T]):
    """One piece of work; between its steps it is on the loop, where it can be canceled.

    The work yields after each step, and returns what comes of it. On the loop, `between` is told
    what was yielded, and may end the work by raising; `done` is told the result, or the error.
    """

    __slots__ = ("_begin", "_between", "_canceled", "_done", "_loop", "_work")

    def __init__(
        self,
        begin: Callable[..., Future[tuple[bool, Any]]],
        loop: asyncio.AbstractEventLoop,
        work: Generator[int, None, T],
        between: Callable[[int], None],
        done: Callable[[T | None, Exception | None], None],
    ) -> None:
        self._begin, self._loop = begin, loop
        self._work, self._between, self._done = work, between, done
        self._canceled = False

    def cancel(self) -> None:
        """Tell nobody anything more, and begin no further step."""
        self._canceled = True

    def go_on(self) -> None:
        """Begin the next step."""
        try:
            self._begin(_step, self._work).add_done_callback(self._stepped)
        except RuntimeError:  # the thread has been closed
            self._canceled = True

    def _stepped(self, future: Future[tuple[bool, Any]]) -> None:
        # In the thread.
        try:
            self._loop.call_soon_threadsafe(self._took, future)
        except RuntimeError:  # the loop has ended meanwhile
            self._canceled = True

    def _took(self, future: Future[tuple[bool, Any]]) -> None:
        if self._canceled or future.cancelled():
            self._work.close()
            return
        try:
            ended, value = future.result()
            if not ended:
                self._between(value)
        except Exception as error:
            self._work.close()
            self._done(None, error)
            return
        if ended:
            self._done(value, None)
        else:
            self.go_on()


class Beside:
    """The thread of a listener.

    It is one: all that is beside takes one core at most, and steps of several works take turns.
    """

    __slots__ = ("_executor",)

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def run(
        self,
        work: Generator[int, None, T],
        between: Callable[[int], None],
        done: Callable[[T | None, Exception | None], None],
    ) -> SteppedWork[T]:
        """Begin a piece of work; see `SteppedWork`."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, _NAME)
        steps = SteppedWork(self._executor.submit, asyncio.get_running_loop(), work, between, done)
        steps.go_on()
        return steps

    async def result(self, work: Generator[int, None, T], between: Callable[[int], None]) -> T:
        """Have a piece of work done; where this is canceled, it ends with its step."""
        end: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(value: T | None, error: Exception | None) -> None:
            if error is not None:
                end.set_exception(error)
            else:
                end.set_result(cast("T", value))

        steps = self.run(work, between, done)
        try:
            return await end
        finally:
            steps.cancel()

    def close(self) -> None:
        """Begin nothing more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _step(work: Generator[int, None, T]) -> tuple[bool, Any]:
    try:
        return False, next(work)
    except StopIteration as end:
        return True, end.value
