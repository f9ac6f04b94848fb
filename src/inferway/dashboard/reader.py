"""The one reader of all servers, whoever looks: it asks once a second and tells every page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec

from inferway.dashboard.view import Curves, prepare, series_of, source_view, task_view
from inferway.dashboard.watched import UnreadError, WatchedServer
from inferway.live.log import logger

_GATHER_S: Final = 0.1
"""Answers of several servers that come together are told together."""
_PREPARE_S: Final = 1.0
"""How long bounds are computed for before the pages are told those that are known."""
_QUIET_S: Final = 2.0
"""After which the pages are told what there is, even where no server has said anything."""
_BEHIND: Final = 8
"""Messages that a page may leave unread before its connection is ended, to begin anew."""


class Reader:
    """Follows servers and nodes, and tells the pages what is new.

    All methods but the constructor belong to the event loop.

    Attributes
    ----------
    sources
        What is shown, in this order.
    doing
        What is being done with them, in a few words; empty where nobody says it.
    twin
        Tells how it is with the twin, as `TwinProcess.state` does.
    leaving
        Called when the pages are told that there will be nothing more.
    """

    twin: Callable[[], dict[str, Any]] = staticmethod(lambda: {"state": "off"})

    def __init__(self, sources: Sequence[WatchedServer] = ()) -> None:
        self.sources, self.doing = list(sources), ""
        self.leaving: list[Callable[[], None]] = []
        self._following: dict[WatchedServer, asyncio.Task[None]] = {}
        self._telling: asyncio.Task[None] | None = None
        self._pages: set[asyncio.Queue[bytes | None]] = set()
        self._changed = asyncio.Event()
        self._told_s: dict[tuple[str, str], float] = {}
        self._over, self._curves, self._log = False, Curves(), logger()

    def begin(self) -> None:
        """Ask from now on."""
        self._telling = asyncio.create_task(self._tell())
        self.show(self.sources, self.doing)

    def show(self, sources: Sequence[WatchedServer], doing: str = "") -> None:
        """Follow these from now on, and no others; say what is being done with them."""
        self.sources, self.doing = list(sources), doing
        if self._telling is None:  # `begin` follows them
            return
        for source in self._following.keys() - {*sources}:
            source.end()
        for source in sources:
            if source not in self._following and source.state != "ended":
                following = asyncio.create_task(source.follow(self._changed.set))
                following.add_done_callback(partial(self._forget, source))
                self._following[source] = following
        self._changed.set()

    def _forget(self, source: WatchedServer, _: asyncio.Task[None]) -> None:
        del self._following[source]

    def again(self) -> None:
        """Tell the pages what there is now."""
        self._changed.set()

    async def explanation(self, url: str, task: str, request: str) -> dict[str, Any]:
        """Ask one of the servers why a request was answered as it was; UnreadError if none can."""
        return await asyncio.to_thread(self.source(url).explanation, task, request)

    def source(self, url: str) -> WatchedServer:
        """Find one of the servers by its URL; UnreadError if it is none of them."""
        found = next((one for one in self.sources if one.url == url), None)
        if found is None:
            raise UnreadError(f"{url[:256]} is not shown here")
        return found

    def leave(self) -> None:
        """End what pages wait for: there will be nothing more."""
        self._over = True
        for leave in self.leaving:
            leave()
        for page in self._pages:
            _put(page, None)

    async def end(self) -> None:
        """Ask no more."""
        tasks = [*self._following.values(), *filter(None, (self._telling,))]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for source in self.sources:
            source.close()

    async def _tell(self) -> None:
        failed = ""
        while True:
            with suppress(TimeoutError):
                # Not `wait_for`, which in Python 3.11 may lose a cancellation.
                async with asyncio.timeout(_QUIET_S):
                    await self._changed.wait()
            await asyncio.sleep(_GATHER_S)
            self._changed.clear()
            try:
                await self._tell_now()
                failed = ""
            except Exception as error:
                if failed != repr(error):
                    failed = repr(error)
                    self._log.error("the pages could not be told what is new", exc_info=error)

    async def _tell_now(self) -> None:
        # Each point of a bound is a linear program: those that are new are solved beside.
        statuses = [dict(source.status) for source in self.sources]
        if not await asyncio.to_thread(prepare, statuses, self._curves, _PREPARE_S):
            self._changed.set()
        last_s = {
            (source.url, task): source.times[-1]
            for source in self.sources
            for task in source.rows
            if source.times
        }
        if any(self._told_s.get(key, 0.0) > moment for key, moment in last_s.items()):
            self._told_s = {}  # a clock has been set back: everything is told anew
        message = self._message(self._told_s)
        self._told_s = last_s
        for page in [*self._pages]:
            _put(page, message)

    def _message(self, since_s: dict[tuple[str, str], float]) -> bytes:
        """Write one message: everything that is now, and the samples that are new."""
        tasks: list[dict[str, Any]] = []
        for source in self.sources:
            for task in source.rows or source.status.get("tasks", {}):
                view = task_view(source, task, self._curves)
                view["key"] = f"{source.url} {task}"
                view["url"] = source.url
                view["series"] = series_of(source, task, since_s.get((source.url, task), 0.0))
                tasks.append(view)
        found = {
            "now_s": time.time(),
            "whole": not since_s,
            "doing": self.doing,
            "twin": self.twin(),
            "sources": [source_view(source) for source in self.sources],
            "tasks": tasks,
        }
        return msgspec.json.encode(found)

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """Yield messages for one page, the first of which holds everything."""
        page: asyncio.Queue[bytes | None] = asyncio.Queue(_BEHIND)
        self._pages.add(page)
        try:
            yield self._message({})
            while not self._over and (message := await page.get()) is not None:
                yield message
        finally:
            self._pages.discard(page)


def _put(page: asyncio.Queue[bytes | None], message: bytes | None) -> None:
    """Give a page a message; one that does not read them is ended, and comes again."""
    try:
        page.put_nowait(message)
    except asyncio.QueueFull:
        while not page.empty():
            page.get_nowait()
        with suppress(asyncio.QueueFull):
            page.put_nowait(None)
