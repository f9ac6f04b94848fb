"""One kept-alive connection, and what it reads from an answer."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, Protocol

import httptools

__all__ = ["Connection", "Holder", "Reply", "Said"]

_UNREAD, _LENGTH, _NODE, _PATH, _DEGRADED = range(5)
_PLACES: Final = {
    spelled: place
    for name, place in {
        b"Inference-Header-Content-Length": _LENGTH,
        b"Inferway-Node": _NODE,
        b"Inferway-Path": _PATH,
        b"Inferway-Degraded": _DEGRADED,
        # These come with every answer of a node; naming them saves writing them in lower case.
        b"Content-Type": _UNREAD,
        b"Content-Length": _UNREAD,
        b"Inferway-Variant": _UNREAD,
        b"Inferway-Time-Ms": _UNREAD,
        b"X-Request-Id": _UNREAD,
    }.items()
    for spelled in (name, name.lower())
}
"""What becomes of headers, by name in the spellings that servers use."""

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


class Holder(Protocol):
    """Who is told what becomes of a connection's request."""

    def answered(self, connection: Connection, reply: Reply, keep: bool) -> None:
        """An answer is whole; `keep` if the connection may carry another request."""

    def lost(self, connection: Connection) -> None:
        """The connection has ended, with or without a request on it."""


class Connection(asyncio.Protocol):
    """Carries one request at a time; `request` is its number, -1 when there is none."""

    __slots__ = (
        "_body",
        "_degraded",
        "_holder",
        "_json_length",
        "_node",
        "_parser",
        "_path",
        "_transport",
        "request",
    )

    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: Any = None
        self._body = b""
        self._json_length = -1
        self._node = self._path = self._degraded = b""
        self.request = -1

    def send(self, request: int, message: bytes) -> None:
        """Write a request."""
        self.request = request
        self._transport.write(message)

    def close(self) -> None:
        """End the connection now."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the holder."""
        self._holder.lost(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what is no HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError):
            self._transport.abort()

    # What the HTTP parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header that is read."""
        place = _PLACES.get(name)
        if place is None:
            place = _PLACES.get(name.lower(), _UNREAD)
        if place == _UNREAD:
            return
        if place == _LENGTH:
            self._json_length = int(value)
        elif place == _NODE:
            self._node = value
        elif place == _PATH:
            self._path = value
        else:
            self._degraded = value

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """Hand the answer to the holder."""
        if self.request < 0:  # an answer that nobody asked for
            self._transport.abort()
            return
        parser = self._parser
        said = (self._node, self._path, self._degraded)
        reply = Reply(parser.get_status_code(), self._body, self._json_length, said)
        self._body = self._node = self._path = self._degraded = b""
        self._json_length = -1
        self._holder.answered(self, reply, parser.should_keep_alive())
