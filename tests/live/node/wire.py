"""A link that can be cut without either end being told, and that counts its bytes."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Wire:
    """Carries connections to an address, both ways, while it is whole."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.carried = 0
        self.address = ""
        self._whole = asyncio.Event()
        self._whole.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        _, port = self._server.sockets[0].getsockname()
        self.address = f"127.0.0.1:{port}"

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                await self._whole.wait()
                self.carried += len(data)
                sink.write(data)
                await sink.drain()
        await self._whole.wait()
        sink.close()
