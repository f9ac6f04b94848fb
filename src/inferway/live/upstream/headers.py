"""Hop headers: what two neighboring nodes say to each other around a request and its answer.

With a request: the node and the variant that the entry node chose, the nodes that it has come
through, what is left of its deadline, and how long it was predicted to take. With an answer: who
gave it, by which nodes it came and how long each had it. Names stand percent-encoded, so that
whatever a file may name fits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from inferway.deployment.nodes import MAX_HOPS
from inferway.live.http.exchange import (
    ACCEPT_ENCODING,
    ENCODING,
    HEADER_LENGTH,
    JSON,
    NODE,
    PATH,
    VARIANT,
)
from inferway.live.request import BAD_GATEWAY, NodeCondition
from inferway.protocol import RefusalError
from inferway.protocol.address import joined
from inferway.protocol.messages import ErrorMessage
from inferway.unreadable import UNREADABLE
from inferway.version import NODE_PROTOCOL

# Hop headers of an answer, beside those of a request; in lower case.
TIMES: Final = b"inferway-time-ms"
DEGRADED: Final = b"inferway-degraded"
UNSERVED: Final = b"inferway-unserved"
_PROTOCOL: Final = b"%d" % NODE_PROTOCOL
_STATUSES: Final = frozenset(status.value for status in HTTPStatus)

# Lines of an answer that go on as they came.
_CARRIED: Final = (
    (b"vary", b"Vary: %s\r\n"),
    (b"inference-header-content-length", b"Inference-Header-Content-Length: %s\r\n"),
    (b"content-encoding", b"Content-Encoding: %s\r\n"),
    (b"retry-after", b"Retry-After: %s\r\n"),
)
_WORD: Final = rb"([!-~]+)"
_WHOLE: Final = re.compile(
    rb"HTTP/1\.1 200 OK\r\nContent-Type: " + _WORD + rb"\r\nContent-Length: ([0-9]{1,9})\r\n"
    rb"Inferway-Node: " + _WORD + rb"\r\nInferway-Path: " + _WORD + rb"\r\n"
    rb"Inferway-Time-Ms: " + _WORD + rb"\r\nInferway-Variant: " + _WORD + rb"\r\n"
    rb"((?:Vary: [!-~]+\r\n)?(?:Inference-Header-Content-Length: " + _WORD + rb"\r\n)?"
    rb"(?:Content-Encoding: [!-~]+\r\n)?)\r\n"
)


@lru_cache(4096)
def encoded(name: str) -> bytes:
    """Write a node's or a variant's name as a header has it."""
    return quote(name).encode()


@lru_cache(4096)
def decoded(name: bytes) -> str:
    """Read a node's or a variant's name, as a header has it."""
    return unquote(name.decode("latin-1"))


class ForwardHeaders(NamedTuple):
    """A neighbor's demands with a request: who shall answer, and the nodes that it has come by."""

    node: str
    variant: str
    address: tuple[bytes, bytes]  # Both as the headers have them
    path: bytes  # The nodes, the sender last, as the header has them
    onward: bytes  # The same with this node behind them
    nodes: frozenset[bytes]  # Each by itself, encoded
    entry: str  # The first of them


def forward_headers_of(
    hops: tuple[bytes | None, ...], own: bytes
) -> tuple[ForwardHeaders, float, float]:
    """Read the hop headers of a request, as its `hops` are, at a node of this encoded name.

    The second value are the seconds until the deadline, when the request was sent, inf without one;
    the third those that it was predicted to take, 0 where nothing was.

    Raises
    ------
    RefusalError
        400 where one is missing or malformed, or of a later protocol; 508 where the request has
        been here before, or has come through too many nodes.
    """
    node, variant, path, protocol, deadline, predicted = hops
    # Whatever came before there were versions is as the first.
    if protocol is not None and protocol != _PROTOCOL:
        _check_protocol(protocol)
    if not node or not variant or not path:
        raise RefusalError(
            400,
            "a request between nodes needs the headers Inferway-Node, Inferway-Variant and "
            "Inferway-Path; clients have a port of their own",
        )
    forward = _forward_headers(node, variant, path, own)
    left_s = math.inf if deadline is None else _seconds_of("Inferway-Deadline-Ms", deadline)
    predicted_s = 0.0 if predicted is None else _seconds_of("Inferway-Predicted-Ms", predicted)
    return forward, left_s, predicted_s


def _check_protocol(said: bytes) -> None:
    """Refuse a later version of what nodes say to each other, and what is none."""
    if not said.isdigit() or not 0 < int(said[:9]) <= NODE_PROTOCOL:
        raise RefusalError(
            400,
            f"the request is of protocol {decoded(said[:32])!r} between nodes, and this node knows "
            f"{NODE_PROTOCOL} and earlier: have all nodes run one version of Inferway",
        )


def _seconds_of(name: str, value: bytes) -> float:
    """Read the milliseconds of a header as seconds; malformed, the request is refused with 400."""
    try:
        seconds = float(value) / 1e3
    except ValueError:
        seconds = math.nan
    if math.isnan(seconds):
        raise RefusalError(400, f"{name} is {decoded(value[:32])!r}, expected a number")
    return seconds


# Between two nodes the same few come again and again.
@lru_cache(1024)
def _forward_headers(node: bytes, variant: bytes, path: bytes, own: bytes) -> ForwardHeaders:
    nodes = path.split(b",")
    if own in nodes:
        came = f"{decoded(own)}: {decoded(path)}"
        raise RefusalError(508, f"the request has come back to node {came}")
    if len(nodes) > MAX_HOPS:
        raise RefusalError(
            508, f"the request has come through {len(nodes)} nodes, the limit is {MAX_HOPS}"
        )
    return ForwardHeaders(
        decoded(node),
        decoded(variant),
        (node, variant),
        path,
        b"%s,%s" % (path, own),
        frozenset(nodes),
        decoded(nodes[0]),
    )


def forward_head(
    target: bytes,
    address: tuple[bytes, bytes],
    path: bytes,
    left_s: float,
    predicted_s: float,
    carried: bytes,
    size: int,
) -> bytes:
    """Write the head of a request to a neighbor, for a body of so many bytes.

    It begins with `target_of`. Node and variant, and the nodes so far, this one included and joined
    by commas, are encoded. Without a deadline, inf seconds are left. `predicted_s` is for nodes
    that pass the request on, 0 where there are none; lines that the client gave go on.
    """
    return (
        b"POST %sInferway-Node: %s\r\nInferway-Variant: %s\r\nInferway-Path: %s\r\n"
        b"Inferway-Protocol: %b\r\n%s%s%sContent-Length: %d\r\n\r\n"
    ) % (
        target,
        *address,
        path,
        _PROTOCOL,
        b"" if left_s == math.inf else b"Inferway-Deadline-Ms: %.3f\r\n" % (left_s * 1e3),
        b"Inferway-Predicted-Ms: %.3f\r\n" % (predicted_s * 1e3) if predicted_s > 0.0 else b"",
        carried,
        size,
    )


def live_head(at: bytes, to: str = "", path: bytes = b"") -> bytes:
    """Write a question that a neighbor at an address answers, or has another node answer.

    The nodes so far are encoded and joined by commas; there are none for whoever asks first.
    """
    lines = b"Inferway-Node: %s\r\n" % encoded(to) if to else b""
    if path:
        lines += b"Inferway-Path: %s\r\n" % path
    return b"GET /v2/health/live HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at, lines)


def target_of(task: str, host: str, port: int) -> bytes:
    """Write what `forward_head` begins with."""
    at = joined(host, port)
    return f"/v2/models/{quote(task, safe='')}/infer HTTP/1.1\r\nHost: {at}\r\n".encode()


def body_lines(headers: Mapping[bytes, bytes]) -> bytes:
    """Lines of a client's request that say how to read its body, and the answer's wish."""
    get, lines = headers.get, b""
    if (value := get(b"content-type")) is not None:
        lines = b"Content-Type: %s\r\n" % value
    if (value := get(ENCODING)) is not None:
        lines += b"Content-Encoding: %s\r\n" % value
    if (value := get(HEADER_LENGTH)) is not None:
        lines += b"Inference-Header-Content-Length: %s\r\n" % value
    if (value := get(ACCEPT_ENCODING)) is not None:
        lines += b"Accept-Encoding: %s\r\n" % value
    return lines


class Response:
    """A neighbor's answer, its body undecoded.

    `lines` go on as they came; what else is of its headers is empty without them. It is `unserved`
    where the request has certainly not been run, and `strayed` where a link on its way took
    otherwise than is known of it: what it took says little of the next.
    """

    lines = degraded = retry_after = b""
    unserved = strayed = False
    json_length: bytes | None = None

    def __init__(
        self,
        status: int,
        kind: bytes,
        body: bytes,
        node: bytes,
        variant: bytes,
        path: bytes,
        times: bytes,
    ) -> None:
        self.status, self.kind, self.body = status, kind, body
        self.node, self.variant, self.path, self.times = node, variant, path, times

    @classmethod
    def headed(cls, status: int, headers: dict[bytes, bytes], body: bytes) -> Response:
        """Make an answer of its headers, by name in lower case."""
        kind, *named = (
            headers.get(name, b"") for name in (b"content-type", NODE, VARIANT, PATH, TIMES)
        )
        answer = cls(status, kind, body, *named)
        answer.degraded = headers.get(DEGRADED, b"")
        answer.unserved = headers.get(UNSERVED) == b"1"
        answer.json_length = headers.get(b"inference-header-content-length")
        answer.retry_after = headers.get(b"retry-after", b"")
        answer.lines = b"".join(line % headers[name] for name, line in _CARRIED if name in headers)
        return answer

    @classmethod
    def whole(cls, data: bytes) -> Response | None:
        """Make an answer of what has come, where that is one and nothing else.

        It has to be exactly as a node writes it that has answered and has nothing to add; None
        leaves everything else to the parser.
        """
        match = _WHOLE.match(data)
        if match is None:
            return None
        kind, size, node, path, times, variant, lines, json_length = match.groups()
        end = match.end()
        if len(data) - end != int(size):
            return None
        answer = cls(200, kind, data[end:], node, variant, path, times)
        answer.lines, answer.json_length = lines, json_length
        return answer

    @property
    def said(self) -> str:
        """Error that it states; empty where it says nothing."""
        with suppress(*UNREADABLE):
            return msgspec.json.decode(self.body, type=ErrorMessage).error
        return ""

    @property
    def is_strange_failure(self) -> bool:
        """Tell whether it says that something failed, and no node has written it.

        What is refused for want of room or of time is no failure.
        """
        return not self.node and (
            (self.status >= 500 and self.status not in (503, 504)) or 200 < self.status < 400
        )

    def complaint(self, neighbor: str) -> str:
        """Say in a sentence that a neighbor refused, or failed, and what it says itself."""
        who, said = self.node.decode("latin-1") or neighbor, self.said
        return f"node {who} answered {self.status}" + (f": {said}" if said else "")

    def word(self, neighbor: str) -> str:
        """Put a refusal of this neighbor's into a sentence, its body where that holds none."""
        reason = self.complaint(neighbor)
        if not self.said:
            self.body, self.kind = msgspec.json.encode({"error": reason}), JSON
            self.json_length = None
            self.lines = b"Retry-After: %s\r\n" % self.retry_after if self.retry_after else b""
        if self.status not in _STATUSES:
            self.status = 400 if 400 <= self.status < 500 else BAD_GATEWAY
        return reason


class ConnectError(NamedTuple):
    """Reason for having no answer, in a sentence.

    A request is `unserved` where it has certainly not been run, as it never went out, and `late`
    where it was taken back.
    """

    reason: str
    unserved: bool = False
    late: bool = False

    @property
    def sentence(self) -> str:
        """The reason, and that nobody knows what became of a request that another node had."""
        return self.reason if self.unserved else f"{self.reason}; the request may have been run"


def failure_of(result: Response | ConnectError, neighbor: str) -> ConnectError | None:
    """Tell why there is no answer: none came, or no node has written what did."""
    if isinstance(result, Response) and result.is_strange_failure:
        # Nobody knows how far the request had come when something on the way failed.
        return ConnectError(f"{result.complaint(neighbor)}, and no node wrote that")
    return None if isinstance(result, Response) else result


class ResponseHeaders:
    """Headers in which a node tells of itself with each answer."""

    def __init__(self, node: NodeCondition) -> None:
        self.node, self.name = node, encoded(node.name)

    def own(self, path: bytes, took_s: float, variant: str, unserved: bool) -> bytes:
        """Lines of an answer that was made here.

        The path is that of the nodes before this one, empty at the entry. The time is counted from
        the whole request's arrival. No variant is named where none answered.
        """
        lines = b"Inferway-Node: %s\r\nInferway-Path: %s\r\nInferway-Time-Ms: %.2f\r\n" % (
            self.name, b"%s,%s" % (path, self.name) if path else self.name, took_s * 1e3
        )  # fmt: skip
        if variant:
            lines += b"Inferway-Variant: %s\r\n" % encoded(variant)
        return lines + self._condition(unserved, b"")

    def passed(self, answer: Response, path: bytes, took_s: float) -> bytes:
        """Lines of an answer that another node made; `path` and `took_s` as `own` has them."""
        if not answer.path:  # it was refused before anybody had read whose it is
            return answer.lines + self.own(path, took_s, "", answer.unserved)
        lines = b"Inferway-Node: %s\r\nInferway-Path: %s\r\nInferway-Time-Ms: %.2f,%s\r\n" % (
            answer.node, answer.path, took_s * 1e3, answer.times
        )  # fmt: skip
        if answer.variant:
            lines += b"Inferway-Variant: %s\r\n" % answer.variant
        if answer.unserved or answer.degraded or self.node.degraded:
            lines += self._condition(answer.unserved, answer.degraded)
        return lines + answer.lines

    def _condition(self, unserved: bool, degraded: bytes) -> bytes:
        lines = b"Inferway-Unserved: 1\r\n" if unserved else b""
        if self.node.degraded:  # of several nodes' sentences the nearest to the client's is told
            degraded = quote(self.node.degraded, safe=" !'()*,/:;=").encode()
        return lines + b"Inferway-Degraded: %s\r\n" % degraded if degraded else lines
