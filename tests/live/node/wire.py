"""A link that can be cut without either end being told, be slow, or spoil answers, and counts its
bytes.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress

DRIP_S = 0.1
Spoil = Callable[[bytes], bytes]


class Wire:
    """Carries connections to an address, both ways, while it is whole."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.carried = 0
        self.delay_s = 0.0
        """What each piece takes, either way, once it has come to the wire."""
        self.address = ""
        self.port = 0
        self.spoil: Spoil | None = None
        """What becomes of a piece of an answer; None leaves it as it is."""
        self.piece = 0
        """Bytes of an answer that it carries every `DRIP_S`; 0 carries what there is."""
        self.sparing = False
        """Whether it spoils nothing on connections that are asked about health."""
        self.asked = bytearray()
        """All that it has carried to the address."""
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, host, port)
        _, self.port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{self.port}"

    def queue(self, most: int) -> None:
        """Have the kernel keep so many connections until they are carried, and drop others."""
        assert self._server is not None
        with socket.socket(fileno=os.dup(self._server.sockets[0].fileno())) as listener:
            listener.listen(most)

    @property
    def connections(self) -> int:
        """How many it carries now."""
        return len(self._writers) // 2

    def refuse(self) -> None:
        """Carry what there is, and take no more connections."""
        assert self._server is not None
        self._server.close()

    def end(self) -> None:
        """End what it carries, at both ends."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self.spoil, self.piece = None, 0
        self._whole.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        host, _, port = self.target.rpartition(":")
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._writers.add(there[1])
        asked: list[bytes] = []
        for source, sink, back in ((reader, there[1], False), (there[0], writer, True)):
            task = asyncio.create_task(self._carry(source, sink, asked, back=back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        asked: list[bytes],
        *,
        back: bool,
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._whole.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                self.carried += len(data)
                if not back:
                    asked[:] = [data]
                    self.asked += data
                elif not (self.sparing and asked and asked[0].startswith(b"GET /v2/health")):
                    data = data if self.spoil is None else self.spoil(data)
                    rest = memoryview(data)
                    while self.piece and len(rest) > self.piece:
                        sink.write(bytes(rest[: self.piece]))
                        await sink.drain()
                        rest = rest[self.piece :]
                        await asyncio.sleep(DRIP_S)
                    data = bytes(rest)
                sink.write(data)
                await sink.drain()
        await self._whole.wait()
        sink.close()
        self._writers.discard(sink)


def announced(size: int) -> Spoil:
    """Make each answer announce so many bytes."""
    return lambda data: re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % size, data, count=1)


def swallowed(_: bytes) -> bytes:
    """Let nothing through."""
    return b""


def replaced(by: bytes) -> Spoil:
    """Make each answer this one."""
    return lambda data: by


ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 200000000\r\n\r\n" + bytes(20_000_000)
"""An answer that no drip ends."""
