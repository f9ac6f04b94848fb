"""The connections to one server."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from typing import Final, Protocol

from inferway.loadgen.access import unsecured
from inferway.loadgen.connection import Connection, Reply
from inferway.protocol.address import ServerAddress

__all__ = ["Clerk", "Pool"]

_CONNECT_S: Final = 5.0


class Clerk(Protocol):
    """Who counts requests and writes down what becomes of them."""

    def message(self, request: int) -> bytes:
        """Give the bytes of a request, which is written to a connection now."""

    def waits(self, request: int) -> None:
        """A request has found all allowed connections in use."""

    def ended(self, request: int, reply: Reply) -> None:
        """A request was answered."""

    def failed(self, request: int, reason: str) -> None:
        """A request gets no answer."""


class Pool:
    """Sends requests at once, each on a connection of its own.

    An idle connection takes the request, or a new one is opened, up to the allowed number; only
    beyond that it waits.
    """

    def __init__(
        self,
        address: ServerAddress,
        most: int,
        clerk: Clerk,
        loop: asyncio.AbstractEventLoop,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.address = address
        self.refused = ""
        """Why the latest connection could not be made."""
        self._most = most
        self._clerk = clerk
        self._loop = loop
        self._tls = tls
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._pending: deque[int] = deque()
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return bool(self._open)

    async def connect(self, count: int) -> None:
        """Open so many connections before there are requests."""
        await asyncio.gather(*(self._open_one() for _ in range(min(count, self._most))))

    def send(self, request: int) -> None:
        """Send a request, or keep it until a connection is there."""
        if self._idle:
            self._idle.pop().send(request, self._clerk.message(request))
        else:
            self._pending.append(request)
            self._grow()

    def close(self) -> None:
        """End all connections; nothing is told of the requests on them."""
        self._closed = True
        for task in tuple(self._opening):
            task.cancel()
        for connection in tuple(self._open):
            connection.close()

    # The connections report here.

    def answered(self, connection: Connection, reply: Reply, keep: bool) -> None:
        """Pass an answer on, and give the connection its next request."""
        request = connection.request
        connection.request = -1
        self._clerk.ended(request, reply)
        if not keep:
            connection.close()
        elif self._pending:
            waiting = self._pending.popleft()
            connection.send(waiting, self._clerk.message(waiting))
        else:
            self._idle.append(connection)

    def lost(self, connection: Connection) -> None:
        """Say that a request is lost, and open a new connection where requests wait."""
        self._open.discard(connection)
        if self._closed:
            return
        request = connection.request
        if request >= 0:
            connection.request = -1
            self._clerk.failed(request, "the connection ended before the answer")
        elif connection in self._idle:
            # A connection that the server closed while it was idle; few, so a scan will do.
            self._idle.remove(connection)
        if self._pending:
            self._grow()

    def _grow(self) -> None:
        if len(self._open) + len(self._opening) >= self._most:
            if self._pending:
                self._clerk.waits(self._pending[-1])
            return
        if len(self._opening) < len(self._pending):
            task = self._loop.create_task(self._open_one())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open_one(self) -> None:
        address = self.address
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self), address.host, address.port, ssl=self._tls
                )
        except (OSError, TimeoutError) as error:
            self.refused = _why(error)
            if self._pending:
                self._clerk.failed(self._pending.popleft(), f"no connection: {self.refused}")
            return
        self._open.add(connection)
        if self._pending:
            request = self._pending.popleft()
            connection.send(request, self._clerk.message(request))
        else:
            self._idle.append(connection)


def _why(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "none in time"
    if isinstance(error, ssl.SSLError):  # its number is none of the system's
        return unsecured(error)
    return os.strerror(error.errno).lower() if error.errno else str(error)
