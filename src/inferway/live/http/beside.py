"""Work that would hold up the event loop, done step by step in a thread beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Beside:
    """The thread of a listener.

    It is one: all that is beside takes one core at most, and steps of several works take turns.
    Between two steps a work is on the loop, where it can be canceled.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._executor = ThreadPoolExecutor(1, "beside")
        self._closed = False

    async def result(
        self, work: Generator[int, None, T], between: Callable[[int], None] = lambda _: None
    ) -> T:
        """Have a work done that yields after each step, and return what comes of it.

        On the loop, `between` is told what was yielded, and may end the work by raising. Where this
        is canceled, the work ends with its step.
        """

        def step() -> tuple[bool, Any]:
            try:
                return False, next(work)
            except StopIteration as end:
                return True, end.value

        while not self._closed:
            loop = asyncio.get_running_loop()
            ended, value = await loop.run_in_executor(self._executor, step)
            if ended:
                return cast("T", value)
            between(value)
        raise asyncio.CancelledError

    def begin(self, course: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin what waits for a work; the task may be canceled."""
        task = asyncio.get_running_loop().create_task(course)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Begin nothing more."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
