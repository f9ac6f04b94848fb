"""The page of whoever has started this: told what to show on standard input, and ends with it.

The first line of JSON says by which socket the page is reached, the key that reads servers, and the
file of the keys that open the page. So no key stands among the arguments of a process. The next
line, and each after it, says what is shown from then on.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from inferway.dashboard.application import show
from inferway.dashboard.reader import Reader
from inferway.dashboard.watched import WatchedServer
from inferway.live.log import logger
from inferway.live.security.keys import Guard, keys_from
from inferway.loadgen.access import Access


class PageOrder(msgspec.Struct):
    """Where a page is, who may open it, and the key that reads what it shows.

    The folder is of the deployment that is shown, where whoever orders the page serves it.
    """

    socket: int
    key: str | None = None
    keys: str | None = None
    folder: str | None = None


class PageSource(msgspec.Struct, frozen=True):
    """A server that is to be shown, by its admin listener; one that has ended stays as it was."""

    url: str
    name: str = ""
    ended: bool = False


class PageContent(msgspec.Struct):
    """Servers to be shown from now on."""

    servers: list[PageSource]
    doing: str = ""


def sources_of(
    shown: Sequence[PageSource], before: Sequence[WatchedServer], access: Access
) -> list[WatchedServer]:
    """List what is to be shown: those that are shown already, and new ones.

    Where a server has ended and another has come to its port, that is a new one.
    """
    there = {(one.url, one.given): one for one in before}
    found = []
    for one in shown:
        source = there.get((one.url, one.name))
        if source is None or (source.ending and not one.ended):
            source = WatchedServer(one.url, access, one.name)
        if one.ended:
            source.end()
        found.append(source)
    return found


async def _follow(take: Callable[[bytes], None]) -> None:
    """Show what the lines say, until there are no more."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(take, line)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


async def _show(order: PageOrder) -> None:
    keys = keys_from(None if order.keys is None else Path(order.keys))
    access, reader = Access(order.key), Reader()
    guard = None if keys is None else Guard(keys, logger("warning"))
    listener = socket.socket(fileno=order.socket)

    def take(line: bytes) -> None:
        content = msgspec.json.decode(line, type=PageContent)
        reader.show(sources_of(content.servers, reader.sources, access), content.doing)

    take(sys.stdin.buffer.readline())
    await show(reader, listener, guard, ended=_follow(take), folder=order.folder)


if __name__ == "__main__":
    asyncio.run(_show(msgspec.json.decode(sys.stdin.buffer.readline(), type=PageOrder)))
