"""One HTTP request, its names and its response, and the caps on what clients send.

Source of the names: https://www.w3.org/TR/trace-context/ (version 00; tracestate: 3.3). Keys of a
tracestate that come twice stay as they are: nothing is added here that could have made them so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import count
from typing import Any, Final

import msgspec

JSON: Final = b"application/json"
OCTETS: Final = b"application/octet-stream"
RETRY: Final = b"Retry-After: 1\r\n"

# Hop headers of a request, in lower case as all names of headers are.
NODE: Final = b"inferway-node"
VARIANT: Final = b"inferway-variant"
PATH: Final = b"inferway-path"
DEADLINE: Final = b"inferway-deadline-ms"
PREDICTED: Final = b"inferway-predicted-ms"
PROTOCOL: Final = b"inferway-protocol"
HOPS: Final = (NODE, VARIANT, PATH, PROTOCOL, DEADLINE, PREDICTED)

# How a response speaks of its request, and how bodies are to be read and packed.
REQUEST_ID: Final = b"x-request-id"
TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
NAMES: Final = (REQUEST_ID, TRACEPARENT, TRACESTATE)
ENCODING: Final = b"content-encoding"
HEADER_LENGTH: Final = b"inference-header-content-length"
ACCEPT_ENCODING: Final = b"accept-encoding"
ACCEPT: Final = b"accept"
_WHOLE_NAMES: Final = (
    *HOPS, *NAMES, b"content-type", ENCODING, HEADER_LENGTH, ACCEPT_ENCODING
)  # fmt: skip
# Of these, several lines are one list.
LISTS: Final = frozenset((HEADER_LENGTH, ENCODING, b"transfer-encoding", TRACESTATE))
KEPT: Final = LISTS.union(_WHOLE_NAMES[6:], (b"host", b"authorization", b"expect", ACCEPT))
"""Headers that an exchange keeps, beside those of nodes on their own ports."""

_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_WORD: Final = rb"([!-~]+)"
_TEXT: Final = rb"([!-~](?:[ -~]*[!-~])?)"
_HOST: Final = rb"(?:[!$&-.0-9;=A-Z_a-z~%]*|\[[0-9A-Za-z:.%]+\])(?::[0-9]*)?"
_WHOLE: Final = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\nHost: " + _HOST + rb"\r\n"
    rb"Inferway-Node: " + _WORD + rb"\r\nInferway-Variant: " + _WORD + rb"\r\n"
    rb"Inferway-Path: " + _WORD + rb"\r\n(?:Inferway-Protocol: " + _WORD + rb"\r\n)?"
    rb"(?:Inferway-Deadline-Ms: " + _WORD + rb"\r\n)?"
    rb"(?:Inferway-Predicted-Ms: " + _WORD + rb"\r\n)?"
    rb"((?:X-Request-Id: " + _WORD + rb"\r\n)?(?:traceparent: " + _WORD + rb"\r\n"
    rb"(?:tracestate: " + _TEXT + rb"\r\n)?)?"
    rb"(?:Content-Type: " + _TEXT + rb"\r\n)?(?:Content-Encoding: " + _WORD + rb"\r\n)?"
    rb"(?:Inference-Header-Content-Length: " + _WORD + rb"\r\n)?"
    rb"(?:Accept-Encoding: " + _TEXT + rb"\r\n)?)"
    rb"Content-Length: ([0-9]{1,15})\r\n\r\n"
)


# Members and bytes of a tracestate that have to go on at least; members beyond go, and those that
# are so long before others do.
MOST_MEMBERS, MOST_BYTES, LONG = 32, 512, 128
_KEY_WORD: Final = rb"[a-z0-9_*/-]"
_KEY: Final = b"(?:[a-z]%b{0,255}|[a-z0-9]%b{0,240}@[a-z]%b{0,13})" % ((_KEY_WORD,) * 3)
_MEMBER: Final = re.compile(_KEY + rb"=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_TRACEPARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
_ID: Final = re.compile(rb"[!-~]{1,128}")
# Unique without asking the system for random bytes each time: a random beginning per process.
_TRACE: Final = os.urandom(8).hex().encode()
_PROCESS: Final = os.urandom(4).hex().encode()
_next = count(1).__next__


class TraceContext:
    """Names of one request: X-Request-Id, and W3C Trace Context's traceparent and tracestate.

    `id` is the client's or a new one, and so is `trace`; `span` is our own span's, `parent` the
    client's, empty without one, `flags` are its trace flags, ``00`` without them, and `state` is
    what goes on of its tracestate: all but the id are hexadecimal. Nothing malformed is taken over,
    nor an id with spaces or of more than 128 characters, for it would end up in headers and logs.
    """

    __slots__ = ("flags", "id", "parent", "span", "state", "trace")

    def __init__(
        self, given: bytes | None, parent: bytes | None, state: bytes | None = None
    ) -> None:
        number = b"%016x" % _next()
        self.id, self.span = _PROCESS + b"-" + number, _PROCESS + number[8:]
        # Samplers take a share of the traces by the last half of their ids, read as a number: from
        # the end to the front a counter is spread evenly over all numbers.
        self.trace = _TRACE + number[::-1]
        self.parent, self.flags, self.state = b"", b"00", b""
        if given is not None and _ID.fullmatch(given):
            self.id = given
        if parent is not None and (match := _TRACEPARENT.fullmatch(parent)):
            self.trace, self.parent, self.flags = match.groups()
            if state is not None:
                self.state = carried(state)

    def headers(self) -> bytes:
        """Lines for the response: our span is the parent of what the client does with it."""
        return b"X-Request-Id: %s\r\ntraceparent: 00-%s-%s-%s\r\n" % (
            self.id, self.trace, self.span, self.flags
        )  # fmt: skip

    def onward(self, span: bytes = b"", flags: bytes = b"") -> bytes:
        """Lines for a node that the request is forwarded to.

        They name the span that the forward is, hexadecimal. Where there is none the client's goes
        on, so that what follows hangs on a span that somebody has made.
        """
        names = self.id, self.trace, span or self.parent or self.span, flags or self.flags
        lines = b"X-Request-Id: %s\r\ntraceparent: 00-%s-%s-%s\r\n" % names
        return lines + b"tracestate: %s\r\n" % self.state if self.state else lines


def carried(given: bytes) -> bytes:
    """Tell what of a tracestate goes on: all of it, as a rule.

    Several headers are given joined by commas. Nothing goes on of one that is malformed, has too
    many members or none; of one that is too long, all but whole members, long ones first and from
    the end.
    """
    if given.count(b",") >= MOST_MEMBERS:
        return b""
    members = [member for one in given.split(b",") if (member := one.strip(b" \t"))]
    if not all(map(_MEMBER.fullmatch, members)):
        return b""
    if len(given) <= MOST_BYTES:
        return given if members else b""
    size = sum(map(len, members)) + len(members) - 1
    for least in (LONG, 0):
        for place in reversed(range(len(members))):
            if size > MOST_BYTES and len(members[place]) > least:
                size -= len(members.pop(place)) + 1
    return b",".join(members)


def members_of(state: bytes) -> dict[str, str]:
    """Take apart what `carried` has let through; of a key that comes twice, the first counts."""
    members: dict[str, str] = {}
    for one in state.decode("ascii").split(","):
        key, _, value = one.strip(" \t").partition("=")
        if key:
            members.setdefault(key, value)
    return members


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one request, and on what one client and all of them can occupy.

    Attributes
    ----------
    body_bytes
        Largest body, as sent and after decompression.
    json_bytes
        Longest JSON of one request, as sent and after decompression, raw tensors apart.
    memory_bytes
        Growth of resident memory while requests run.
    bodies_bytes
        Bodies of all connections together that have come in part, or wait; and, of each listener,
        answers that wait to be read.
    head_bytes
        Request line and headers together.
    elements
        Largest number of elements in one tensor.
    pipelined
        Requests of one connection that may wait for their answers before reading pauses.
    queued_bytes
        Bodies of one connection, unpacked, that may wait for their answers before reading pauses,
        and answers of one connection that may wait to be read before others are dropped.
    connections
        Open connections of one listener; more are told to come back later.
    receive_s
        Time for one request to arrive whole, and for a client to go on reading its answers.
    read_rate
        Bytes of its answers that a client must read in a second, once `receive_s` are over.
    idle_s
        Time that an unused connection stays open.
    """

    body_bytes: int = 64 * 1024**2
    json_bytes: int = 8 * 1024**2
    memory_bytes: int = 512 * 1024**2
    bodies_bytes: int = 256 * 1024**2
    head_bytes: int = 64 * 1024
    elements: int = 16 * 1024**2
    pipelined: int = 64
    queued_bytes: int = 64 * 1024**2
    connections: int = 4096
    receive_s: int = 60
    read_rate: int = 1024**2
    idle_s: int = 300

    @classmethod
    def of(cls, written: Any, **given: int | None) -> Limits:
        """Take those that a deployment file gives its node; fields that are given count instead."""
        chosen = {name: value for name, value in given.items() if value is not None}
        return cls(**{"memory_bytes": written.memory, "bodies_bytes": written.bodies} | chosen)


def whole(data: bytes) -> re.Match[bytes] | None:
    """Match a request between nodes that `data` holds in the form in which nodes write it.

    One match takes the place of a callback for each header. Whatever is not exactly of this form
    (other headers, another order, a body in pieces, several requests at once) is left to the
    parser, so that nothing is read here that the parser would have read otherwise.
    """
    match = _WHOLE.match(data)
    return None if match is None or len(data) - match.end() != int(match[16]) else match


def head_fault(
    version: str, host: bytes | None, more: int, transfer: bytes | None
) -> tuple[int, str] | None:
    """Say with which status, and why, a head is refused (RFC 9112, 3.2, 6.1 and 6.3), if it is.

    Given are its Host and how many `more` there are, and its Transfer-Encoding.
    """
    if version not in ("1.0", "1.1"):
        return 400, f"malformed HTTP: version {version} is not spoken here; 1.1 is"
    if more:
        return 400, f"the request has {more + 1} Host headers, expected one"
    if host is None and version == "1.1":
        return 400, "the request has no Host header"
    if host is not None and re.fullmatch(_HOST, host) is None:
        shown = host[:64].decode("latin-1")
        return 400, f"the Host header is {shown!r}, expected a host and perhaps a port"
    if transfer is None:
        return None
    if version == "1.0":
        return 400, "a request of HTTP/1.0 has no Transfer-Encoding"
    codings = [c for part in transfer.lower().split(b",") if (c := part.strip())]
    if codings[-1:] != [b"chunked"]:
        return 400, "the last Transfer-Encoding of a request must be chunked"
    if len(codings) == 1:
        return None
    shown = codings[0][:32].decode("latin-1")
    return 501, f"transfer encoding {shown!r} is not offered; chunked alone is"


@dataclass(slots=True, eq=False)
class Exchange:
    """A request as far as it has arrived, and the place where its response goes."""

    connection: Any  # the `Connection` that it came on
    method: bytes = b""
    body: bytes = b""
    # Bytes of its body, packed and unpacked, that are accounted for until it is answered.
    size: int = 0
    # The headers that matter, by name in lower case; those of nodes on their own ports alone. Of
    # what has been matched they are here when they have been unfolded.
    headers: dict[bytes, bytes] = field(default_factory=dict)
    # Header lines that go on to the next node as they came; None where they must be written again.
    carried: bytes | None = None
    target: bytes = b""
    match: re.Match[bytes] | None = None  # what `whole` has matched, while it is handled
    path: bytes = b""  # nodes that it has come through, as a hop header has them
    identity: TraceContext | None = None  # its names, made when they are first needed
    prepared: Any = None  # what has been made of its body beside, or why that could not be
    expects: bool = False  # the client waits for 100 Continue before it sends the body
    keep_alive: bool = True
    old: bool = False  # HTTP/1.0, where keeping the connection has to be said
    headed: bool = False  # its headers have come, and it has not been refused for what came
    reply: bytes | None = None  # a response that waits for those before it
    answered: bool = False
    roles: int = 0  # of its key, where keys are looked at
    # The site's request, or a task, while one is on its way, and what ends it when the client goes.
    request: Any = None
    withdraw: Callable[[Any], object] | None = None

    def hops(self) -> tuple[bytes | None, ...]:
        """Values of its hop headers: node, variant, path, protocol, deadline, predicted time."""
        if self.match is not None:
            return self.match.group(2, 3, 4, 5, 6, 7)
        return tuple(map(self.headers.get, HOPS))

    def unfold(self) -> None:
        """Put what has been matched among the headers, for whoever does more than pass it on."""
        if self.match is not None:
            values = self.match.group(2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15)
            named = zip(_WHOLE_NAMES, values)  # noqa: B905 - each request pays for a keyword
            self.headers, self.match = {name: value for name, value in named if value}, None

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
        length = len(body) + (sum(map(len, tensors)) if tensors else 0)
        # A neighbor has the names already, and whoever it answers gets a date of its own.
        common = b""
        if not connection.listener.hops:
            common = connection.listener.date + (self.identity or self.name()).headers()
        kept = b"Connection: keep-alive\r\n" if self.old else b""
        head = b"%s%s%sContent-Length: %d\r\n%s%s\r\n" % (
            _STATUS_LINES[status],
            common,
            b"Content-Type: %s\r\n" % content_type if length else b"",
            length,
            extra,
            kept if self.keep_alive else b"Connection: close\r\n",
        )
        self.answered, self.request, self.withdraw = True, None, None
        if self.method == b"HEAD":
            connection.send(self, head)
        else:
            connection.send(self, b"".join((head, body, *tensors)) if tensors else head + body)

    def name(self) -> TraceContext:
        """Give the request its names."""
        get = self.headers.get
        self.identity = TraceContext(get(REQUEST_ID), get(TRACEPARENT), get(TRACESTATE))
        return self.identity

    def refuse(self, status: int, reason: str, extra: bytes = b"") -> None:
        """Send an error response in the protocol's form."""
        self.respond(status, msgspec.json.encode({"error": reason}), JSON, extra)


Handler = Callable[[Exchange], None]
