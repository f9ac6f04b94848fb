"""The connections to one server, and what is read from its answers."""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import Final, NamedTuple, Protocol

from inferway.loadgen.access import unsecured
from inferway.protocol.address import ServerAddress
from inferway.protocol.http1 import ClientConnection, ConnectionPool

_CONNECT_S: Final = 5.0

Said = tuple[bytes, bytes, bytes]
"""What an answer's headers say: node, path, and why it is degraded; each empty if they do not."""

NOTHING: Final[Said] = (b"", b"", b"")


class Reply(NamedTuple):
    """One answer as it came."""

    status: int
    body: bytes
    json_length: int
    """Length of the body's JSON part; -1 when all of it is JSON, or none."""
    said: Said

    @classmethod
    def headed(cls, status: int, headers: dict[bytes, bytes], body: bytes) -> Reply:
        """Make a reply of its headers, by name in lower case."""
        get = headers.get
        length = get(b"inference-header-content-length")
        node, path = get(b"inferway-node", b""), get(b"inferway-path", b"")
        said = (node, path, get(b"inferway-degraded", b""))
        # Where it is no number, there is no JSON, and so no answer.
        json_length = -1 if length is None else int(length) if length.isdigit() else 0
        return cls(status, body, json_length, said)

    @classmethod
    def whole(cls, data: bytes) -> Reply | None:
        """Leave every reply to the parser, which is as fast where few headers are read."""
        return None


class Clerk(Protocol):
    """Who counts requests and writes down what becomes of them."""

    def message(self, request: int) -> bytes:
        """Give the bytes of a request, which is written to a connection now."""

    def waits(self, request: int) -> None:
        """A request has found all allowed connections in use."""

    def ended(self, request: int, reply: Reply, now_s: float) -> None:
        """A request was answered at a time on the monotonic clock."""

    def failed(self, request: int, reason: str) -> None:
        """A request gets no answer."""


class RequestPool(ConnectionPool):
    """Sends requests, by their numbers, at once, each on a connection of its own."""

    def __init__(
        self, address: ServerAddress, most: int, clerk: Clerk, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(
            address.host, address.port, form=Reply, most=most, connect_s=_CONNECT_S, tls=tls
        )
        self.address = address
        self.refused = ""
        """Why the latest connection could not be made."""
        self._clerk = clerk

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return bool(self._busy or self._idle)

    async def connect(self, count: int) -> None:
        """Open so many connections before there are requests."""
        await asyncio.gather(*(self._connect() for _ in range(min(count, self._most))))

    def close(self) -> None:
        """End all connections; nothing is told of the requests on them."""
        self._closed = True
        for connection in tuple(self._busy):
            connection.call = None
            connection.abort()
        self._busy.clear()
        self.anew()

    def write(self, connection: ClientConnection, call: int) -> None:
        """Write a request."""
        connection.send(self._clerk.message(call))

    def answered(self, call: int, answer: Reply, sent_s: float, now_s: float) -> None:
        """Pass an answer on."""
        self._clerk.ended(call, answer, now_s)

    def broken(self, connection: ClientConnection, call: int, wrong: str) -> None:
        """Say that a request is lost."""
        self._clerk.failed(call, "the connection ended before the answer")

    def unreachable(self, call: int | None, error: Exception) -> None:
        """Say that a request has no connection."""
        self.refused = _why(error)
        if call is not None:
            self._clerk.failed(call, f"no connection: {self.refused}")

    def full(self) -> None:
        """Note that the last request waits for a connection."""
        self._clerk.waits(self._waiting[-1])


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "none in time"
    if isinstance(error, ssl.SSLError):  # its number is none of the system's
        return unsecured(error)
    number = getattr(error, "errno", None)
    return os.strerror(number).lower() if number else str(error)
