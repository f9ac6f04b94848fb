"""One task that several wait for, and that ends when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Progress = Callable[[int, int | None], None]
"""Called on the event loop with the bytes that are there and, if known, how many there will be."""


class Shared(Generic[T]):
    """A task whose outcome all who wait for it get.

    Parameters
    ----------
    source
        What tells it from others that would have the same outcome.
    start
        Called with a function to tell progress to; returns what is done.
    """

    def __init__(self, source: str, start: Callable[[Progress], Coroutine[Any, Any, T]]) -> None:
        self.source = source
        self.ending = False
        """Whether it is being canceled, so that nobody may join."""
        self._listeners: list[Progress] = []
        self._waiting = 0
        self.task = asyncio.create_task(start(self._tell))
        # Where all who waited are gone, nobody asks what it raised.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def outcome(self, progress: Progress | None = None) -> T:
        """Wait for the outcome; the last one to be canceled takes the task along."""
        self._waiting += 1
        if progress is not None:
            self._listeners.append(progress)
        try:
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if progress is not None:
                self._listeners.remove(progress)
            if not self._waiting and not self.task.done():
                self.ending = True
                self.task.cancel()

    def _tell(self, done_bytes: int, total_bytes: int | None) -> None:
        for listener in tuple(self._listeners):
            listener(done_bytes, total_bytes)
