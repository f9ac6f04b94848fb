"""One HTTP request and its response, and what the connections of one port share."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import msgspec
from numpy.typing import NDArray

from inferway.live.headroom import Bodies
from inferway.live.http.beside import Beside
from inferway.live.http.limits import Limits
from inferway.live.http.trace_context import TraceContext
from inferway.live.security.keys import Guard, Role
from inferway.protocol.messages import InferMessage
from inferway.protocol.refusal import RefusalError

JSON: Final = b"application/json"
OCTETS: Final = b"application/octet-stream"
RETRY: Final = b"Retry-After: 1\r\n"

NODE: Final = b"inferway-node"
VARIANT: Final = b"inferway-variant"
PATH: Final = b"inferway-path"
DEADLINE: Final = b"inferway-deadline-ms"
PREDICTED: Final = b"inferway-predicted-ms"
"""Hop headers of a request, in lower case."""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_WORD: Final = rb"([!-~]+)"
_TEXT: Final = rb"([!-~](?:[ -~]*[!-~])?)"
_HEAD: Final = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\n"
    rb"Host: (?:[!$&-.0-9;=A-Z_a-z~%]*|\[[0-9A-Za-z:.%]+\])(?::[0-9]*)?\r\n"
    rb"Inferway-Node: " + _WORD + rb"\r\nInferway-Variant: " + _WORD + rb"\r\n"
    rb"Inferway-Path: " + _WORD + rb"\r\n(?:Inferway-Deadline-Ms: " + _WORD + rb"\r\n)?"
    rb"(?:Inferway-Predicted-Ms: " + _WORD + rb"\r\n)?"
    rb"((?:X-Request-Id: " + _WORD + rb"\r\n)?(?:traceparent: " + _WORD + rb"\r\n"
    rb"(?:tracestate: " + _TEXT + rb"\r\n)?)?"
    rb"(?:Content-Type: " + _TEXT + rb"\r\n)?(?:Content-Encoding: " + _WORD + rb"\r\n)?"
    rb"(?:Inference-Header-Content-Length: " + _WORD + rb"\r\n)?"
    rb"(?:Accept-Encoding: " + _TEXT + rb"\r\n)?)"
    rb"Content-Length: ([0-9]{1,15})\r\n\r\n"
)


def whole(data: bytes) -> re.Match[bytes] | None:
    """Match a request between nodes that `data` holds in the form in which nodes write it.

    One match takes the place of a callback for each header. Whatever is not exactly of this form
    (other headers, another order, a body in pieces, several requests at once) is left to the
    parser, so that nothing is read here that the parser would have read otherwise.

    Its groups are the target, the five hop headers (the last two may be missing), the lines that go
    on as they came, their seven values, and the body's length; its end is where the body begins.
    """
    match = _HEAD.match(data)
    if match is None or len(data) - match.end() != int(match[15]):
        return None
    return match


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
    ignored: int = 0
    """How many of its parameters mean nothing here."""
    arrays: dict[int, NDArray[Any]] | None = None
    """Of long lists of numbers, by the input's place in the message."""


@dataclass(slots=True, eq=False)
class Exchange:
    """A request as far as it has arrived, and the place where its response goes."""

    connection: Any
    """The `Connection` that it came on."""
    tick: int
    method: bytes = b""
    body: bytes = b""
    size: int = 0
    """Bytes of its body, packed and unpacked, that are accounted for until it is answered."""
    prepared: Prepared | None = None
    """What has been made of its body beside, or why that could not be; None before."""
    header_length: bytes | None = None
    """Value of Inference-Header-Content-Length."""
    host: bytes = b""
    hosts: int = 0
    """How many Host headers it has."""
    transfer: bytes | None = None
    """Of several lines, joined by commas, as those of other lists are."""
    hop: dict[bytes, bytes] | None = None
    """Hop headers by name in lower case; None on clients' ports."""
    carried: bytes | None = None
    """Header lines that go on to the next node as they came; None where they have to be written
    again."""
    target: bytes = b""
    path: bytes = b""
    """Nodes that it has come through, as a hop header has them."""
    given_id: bytes | None = None
    traceparent: bytes | None = None
    tracestate: bytes | None = None
    identity: TraceContext | None = None
    """Its names; made when they are first needed."""
    authorization: bytes | None = None
    content_type: bytes | None = None
    encoding: bytes | None = None
    accept_encoding: bytes | None = None
    expects: bool = False
    """The client waits for 100 Continue before it sends the body."""
    keep_alive: bool = True
    old: bool = False
    """HTTP/1.0, where keeping the connection has to be said."""
    headed: bool = False
    """Its headers have come, and it has not been refused for what came."""
    reply: bytes | None = None
    """A response that waits for those before it."""
    answered: bool = False
    roles: int = 0
    """Of its key, where keys are looked at."""
    request: Any = None
    """The site's request, or a task, while one is on its way."""
    withdraw: Callable[[Any], object] | None = None
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
            common = connection.listener.date + (self.identity or self.name()).headers()
        kept = b"" if self.keep_alive else b"Connection: close\r\n"
        if self.old and self.keep_alive:
            kept = b"Connection: keep-alive\r\n"
        head = b"%s%s%sContent-Length: %d\r\n%s%s\r\n" % (
            _STATUS_LINES[status],
            common,
            b"Content-Type: %s\r\n" % content_type if length else b"",
            length,
            extra,
            kept,
        )
        self.answered = True
        if self.method == b"HEAD":
            connection.send(self, head)
        elif tensors:
            connection.send(self, b"".join((head, body, *tensors)))
        else:
            connection.send(self, head + body)

    def name(self) -> TraceContext:
        """Give the request its names."""
        self.identity = TraceContext(self.given_id, self.traceparent, self.tracestate)
        return self.identity

    def refuse(self, status: int, reason: str, extra: bytes = b"") -> None:
        """Send an error response in the protocol's form."""
        self.respond(status, msgspec.json.encode({"error": reason}), JSON, extra)


Handler = Callable[[Exchange], None]


class Port:
    """The state that the connections of one listening port share.

    Parameters
    ----------
    find
        Gives the handler for a method and a request target; unknown ones get a handler too, one
        that refuses.
    broken
        Told of an exception in a handler.
    limits
        Caps on requests.
    guard
        Looks at the keys of requests. None lets everybody in.
    role
        Tells which of a key's roles a request target asks for; an administrator's without it.
    bodies
        Account of the bodies that are held, with other ports'; one of its own by default.
    beat
        Called every second.
    hops
        Whether neighboring nodes ask here, whose hop headers count.
    """

    def __init__(
        self,
        find: Callable[[bytes, bytes], Handler],
        broken: Callable[[BaseException], None],
        limits: Limits | None = None,
        guard: Guard | None = None,
        role: Callable[[bytes], int] = lambda target: Role.ADMIN,
        *,
        bodies: Bodies | None = None,
        beat: Callable[[], None] | None = None,
        hops: bool = False,
    ) -> None:
        self.find, self.broken, self.hops = find, broken, hops
        self.limits = limits or Limits()
        self.bodies = bodies or Bodies(self.limits.bodies_bytes)
        self.text_cap = min(self.limits.body_bytes, self.limits.json_bytes)
        """Largest body without raw tensors, bytes."""
        self.guard, self.role = guard, role
        self.tick, self.date = 0, b""
        """Seconds, for timeouts, and the Date header: both move on once a second."""
        self.connections: set[Any] = set()
        self.unread = 0
        """Bytes of answers that clients have not read."""
        self.beside = Beside()
        self.beat = beat
        self.draining = False

    def relieve(self) -> None:
        """Cut off whoever has left most answers unread, where all have left too many."""
        while self.unread > self.limits.bodies_bytes:
            behind = [connection for connection in self.connections if connection.unread]
            if len(behind) < 2:
                return  # one answer may be larger
            max(behind, key=lambda connection: connection.unread).abort()
