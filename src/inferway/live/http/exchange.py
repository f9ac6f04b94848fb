"""One HTTP request and its response."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from numpy.typing import NDArray

from inferway.live.http.trace_context import TraceContext
from inferway.protocol.messages import InferMessage
from inferway.protocol.refusal import RefusalError

if TYPE_CHECKING:
    from inferway.live.http.connection import Connection

JSON: Final = b"application/json"
OCTETS: Final = b"application/octet-stream"

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}


class Clock:
    """The Date header, rendered once a second, and a tick for timeouts."""

    __slots__ = ("date", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self.date = b""
        self.advance()

    def advance(self) -> None:
        """Move on by one second."""
        self.tick += 1
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()


class Prepared(NamedTuple):
    """A body that has been unpacked and read beside."""

    received_s: float
    """When the body was whole, on the site's clock."""
    refusal: RefusalError | None
    """Why it cannot be read; None where it can."""
    data: bytes | bytearray = b""
    """The body, unpacked; empty where it is refused."""
    message: InferMessage | None = None
    """Its JSON; None where that is left to the handler."""
    arrays: dict[int, NDArray[Any]] | None = None
    """Of long lists of numbers, by the input's place in the message."""


class Exchange:
    """A request as far as it has arrived, and the place where its response goes."""

    __slots__ = (
        "accept_encoding",
        "answered",
        "authorization",
        "body",
        "carried",
        "connection",
        "content_type",
        "encoding",
        "expects",
        "given_id",
        "headed",
        "header_length",
        "hop",
        "host",
        "identity",
        "keep_alive",
        "method",
        "old",
        "path",
        "prepared",
        "reply",
        "request",
        "roles",
        "size",
        "target",
        "tick",
        "traceparent",
        "tracestate",
        "withdraw",
    )

    def __init__(self, connection: Connection, tick: int) -> None:
        self.connection = connection
        self.tick = tick
        self.method = b""
        self.body = b""
        self.size = 0
        """Bytes of its body, packed and unpacked, that are accounted for until it is answered."""
        self.prepared: Prepared | None = None
        """What has been made of its body beside, or why that could not be; None before."""
        self.header_length: bytes | None = None
        """Value of Inference-Header-Content-Length."""
        self.host = b""
        self.hop: dict[bytes, bytes] | None = None
        """Hop headers by name in lower case; None on clients' ports."""
        self.carried: bytes | None = None
        """Header lines that go on to the next node as they came; None where they have to be written
        again."""
        self.target = b""
        self.path = b""
        """Nodes that it has come through, as a hop header has them."""
        self.given_id: bytes | None = None
        self.traceparent: bytes | None = None
        self.tracestate: bytes | None = None
        """Of several lines, joined by commas."""
        self.identity: TraceContext | None = None
        """Its names; made when they are first needed."""
        self.authorization: bytes | None = None
        self.content_type: bytes | None = None
        self.encoding: bytes | None = None
        self.accept_encoding: bytes | None = None
        self.expects = False
        """The client waits for 100 Continue before it sends the body."""
        self.keep_alive = True
        self.old = False
        """HTTP/1.0, where keeping the connection has to be said."""
        self.headed = False
        """Its headers have come, and it has not been refused for what came."""
        self.reply: bytes | None = None
        """A response that waits for those before it."""
        self.answered = False
        self.roles = 0
        """Of its key, where keys are looked at."""
        self.request: Any = None
        """The site's request, while one is on its way."""
        self.withdraw: Callable[[Any], None] | None = None
        """What to call with `request` when the client goes."""

    def respond(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = JSON,
        extra: bytes = b"",
        tensors: list[bytes] | None = None,
    ) -> None:
        """Send the response, or keep it until those before it have gone.

        `extra` is more header lines, each ended by CR LF, and `tensors` what follows `body`. Where
        there is no body, the content type is left out.
        """
        connection = self.connection
        length = len(body)
        if tensors:
            length += sum(map(len, tensors))
        # A neighbor has the names already, and whoever it answers gets a date of its own.
        common = b""
        if self.hop is None:
            common = connection.listener.clock.date + (self.identity or self.name()).headers()
        head = b"%s%s%sContent-Length: %d\r\n%s%s\r\n" % (
            _STATUS_LINES[status],
            common,
            b"Content-Type: %s\r\n" % content_type if length else b"",
            length,
            extra,
            b""
            if self.keep_alive and not self.old
            else (b"Connection: keep-alive\r\n" if self.keep_alive else b"Connection: close\r\n"),
        )
        if self.method == b"HEAD":
            reply = head
        elif tensors:
            reply = b"".join((head, body, *tensors))
        else:
            reply = head + body
        self.answered = True
        connection.send(self, reply)

    def name(self) -> TraceContext:
        """Give the request its names."""
        self.identity = TraceContext(self.given_id, self.traceparent, self.tracestate)
        return self.identity

    def refuse(self, status: int, reason: str, extra: bytes = b"") -> None:
        """Send an error response in the protocol's form."""
        self.respond(status, msgspec.json.encode({"error": reason}), JSON, extra)
