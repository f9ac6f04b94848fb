"""The page of whoever has started this: told what to show on standard input, and ends with it.

One line of JSON says where the servers are, the key that reads them, the file of the keys that open
the page, and the number of a listening socket. So no key stands among the arguments of a process.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from pathlib import Path

import msgspec

from inferway.dashboard.application import show
from inferway.dashboard.watched import WatchedServer
from inferway.live.log import logger
from inferway.live.security.keys import Guard, keys_from
from inferway.loadgen.access import Access


class PageOrder(msgspec.Struct):
    """What is to be shown, where, and to whom."""

    socket: int
    urls: list[str]
    key: str | None = None
    keys: str | None = None


async def _end_of_input() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        sys.stdin.buffer.read()
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    await ended.wait()


async def _show(order: PageOrder) -> None:
    keys = keys_from(None if order.keys is None else Path(order.keys))
    access = Access(order.key)
    guard = None if keys is None else Guard(keys, logger("warning"))
    sources = [WatchedServer(url, access) for url in order.urls]
    await show(sources, socket.socket(fileno=order.socket), guard, ended=_end_of_input())


if __name__ == "__main__":
    asyncio.run(_show(msgspec.json.decode(sys.stdin.buffer.readline(), type=PageOrder)))
