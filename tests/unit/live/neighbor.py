"""A neighbor that does what a test tells it, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

LIMIT_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Script = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One request as it came, and the way to answer it."""

    def __init__(self, head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.target = head.split(" ", 2)[1]
        lines = head.strip().split("\r\n")[1:]
        self.headers = {
            name.lower(): value for name, value in (one.split(": ", 1) for one in lines)
        }
        self.body = body
        self.writer = writer

    def answer(self, raw: bytes) -> None:
        self.writer.write(raw)


class Neighbor:
    """Listens; answers health by itself, the rest as the script says."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.visits: list[Visit] = []
        self.probes = 0
        self.mute = False
        """Whether it leaves even probes unanswered."""
        self.ended = 0
        self.port = 0
        self._server: Any = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> Neighbor:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = 0
                for line in head.split("\r\n"):
                    if line.lower().startswith("content-length:"):
                        size = int(line.split(":")[1])
                visit = Visit(head, await reader.readexactly(size), writer)
                if visit.target.startswith("/v2/health"):
                    self.probes += 1
                    if self.mute:
                        continue
                    visit.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.visits.append(visit)
                if self.script is None:
                    visit.answer(OK)
                else:
                    await self.script(visit)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            self._writers.discard(writer)
            writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, within limits."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)
