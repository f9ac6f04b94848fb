"""Hop headers: what two neighboring nodes say to each other around a request and its answer.

With a request: the node and the variant that the entry node chose, the nodes that it has come
through, what is left of its deadline, and how long it was predicted to take. With an answer: who
gave it, by which nodes it came and how long each had it. Names stand percent-encoded, so that
whatever a file may name fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from inferway.deployment.nodes import MAX_HOPS
from inferway.live.http.whole import DEADLINE, NODE, PATH, VARIANT
from inferway.protocol.address import joined
from inferway.protocol.refusal import RefusalError

if TYPE_CHECKING:
    from inferway.live.hops.answer import Answer


@lru_cache(4096)
def encoded(name: str) -> bytes:
    """Write a node's or a variant's name as a header has it."""
    return quote(name).encode()


class Heading(NamedTuple):
    """What a neighbor asks with a request.

    Attributes
    ----------
    node, variant
        Who shall answer.
    address
        The same two as the headers have them.
    path
        Nodes that it has come through, the sender last, as the header has them.
    onward
        The same with this node behind them.
    nodes
        The path's, encoded.
    entry
        The first of these.
    """

    node: str
    variant: str
    address: tuple[bytes, bytes]
    path: bytes
    onward: bytes
    nodes: frozenset[bytes]
    entry: str


def heading_of(headers: Mapping[bytes, bytes], own: bytes) -> tuple[Heading, float]:
    """Read the hop headers of a request.

    Parameters
    ----------
    headers
        By name in lower case.
    own
        Name of this node, encoded.

    Returns
    -------
    Heading
        What is asked.
    float
        Seconds until the deadline, when the request was sent; inf without one.

    Raises
    ------
    RefusalError
        400 where one is missing or malformed; 508 where the request has been here before, or has
        come through too many nodes.
    """
    node, variant = headers.get(NODE), headers.get(VARIANT)
    path, deadline = headers.get(PATH), headers.get(DEADLINE)
    if not node or not variant or not path:
        raise RefusalError(
            400,
            "a request between nodes needs the headers Inferway-Node, Inferway-Variant and "
            "Inferway-Path; clients have a port of their own",
        )
    heading = _heading(node, variant, path, own)
    if deadline is None:
        return heading, math.inf
    return heading, _seconds("Inferway-Deadline-Ms", deadline)


def predicted_of(said: bytes) -> float:
    """Read how long a request was predicted to take, s, as `PREDICTED` has it.

    Raises
    ------
    RefusalError
        400 where it is malformed.
    """
    return _seconds("Inferway-Predicted-Ms", said)


def _seconds(name: str, said: bytes) -> float:
    try:
        found_s = float(said) / 1e3
    except ValueError:
        found_s = math.nan
    if math.isnan(found_s):
        raise RefusalError(400, f"{name} is {_text(said[:32])!r}, expected a number")
    return found_s


# Between two nodes the same few come again and again.
@lru_cache(1024)
def _heading(node: bytes, variant: bytes, path: bytes, own: bytes) -> Heading:
    nodes = path.split(b",")
    if own in nodes:
        raise RefusalError(508, f"the request has come back to node {_text(own)}: {_text(path)}")
    if len(nodes) > MAX_HOPS:
        raise RefusalError(
            508, f"the request has come through {len(nodes)} nodes, the limit is {MAX_HOPS}"
        )
    return Heading(
        _text(node),
        _text(variant),
        (node, variant),
        path,
        b"%s,%s" % (path, own),
        frozenset(nodes),
        _text(nodes[0]),
    )


def hop_head(
    target: bytes, to: bytes, variant: bytes, path: bytes, left_s: float, carried: bytes, size: int
) -> bytes:
    """Write the head of a request to a neighbor.

    Parameters
    ----------
    target
        Path of the task's `infer`, and the Host line.
    to, variant
        Who shall answer, encoded.
    path
        Nodes so far, this one included, encoded and joined by commas.
    left_s
        Until the deadline; inf without one.
    carried
        Lines that go on as the client gave them, after how long it is predicted to take
        (`predicted_line`), where that is said.
    size
        Bytes of the body.
    """
    return (
        b"POST %sInferway-Node: %s\r\nInferway-Variant: %s\r\nInferway-Path: %s\r\n%s%s"
        b"Content-Length: %d\r\n\r\n"
    ) % (
        target,
        to,
        variant,
        path,
        b"" if left_s == math.inf else b"Inferway-Deadline-Ms: %.3f\r\n" % (left_s * 1e3),
        carried,
        size,
    )


def predicted_line(predicted_s: float) -> bytes:
    """Write how long a request is predicted to take, for nodes that pass it on; first of lines."""
    return b"Inferway-Predicted-Ms: %.3f\r\n" % (predicted_s * 1e3)


def live_head(at: bytes, to: str = "", path: bytes = b"") -> bytes:
    """Write a question that a neighbor answers at once, or has answered by another node.

    Parameters
    ----------
    at
        The neighbor's address.
    to
        The node that shall answer; empty for the neighbor.
    path
        Nodes so far, encoded and joined by commas; empty for whoever asks first.
    """
    lines = b"Inferway-Node: %s\r\n" % encoded(to) if to else b""
    if path:
        lines += b"Inferway-Path: %s\r\n" % path
    return b"GET /v2/health/live HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (at, lines)


def target_of(task: str, host: str, port: int) -> bytes:
    """Write what `hop_head` begins with."""
    at = joined(host, port)
    return f"/v2/models/{quote(task, safe='')}/infer HTTP/1.1\r\nHost: {at}\r\n".encode()


def body_lines(exchange: Any) -> bytes:
    """Lines of a client's request that say how to read its body, and the answer's wish."""
    lines = b""
    if exchange.content_type is not None:
        lines = b"Content-Type: %s\r\n" % exchange.content_type
    if exchange.encoding is not None:
        lines += b"Content-Encoding: %s\r\n" % exchange.encoding
    if exchange.header_length is not None:
        lines += b"Inference-Header-Content-Length: %s\r\n" % exchange.header_length
    if exchange.accept_encoding is not None:
        lines += b"Accept-Encoding: %s\r\n" % exchange.accept_encoding
    return lines


class Trail:
    """What a node says of itself with each answer.

    Parameters
    ----------
    node
        Its name.

    Attributes
    ----------
    node
        The name, encoded.
    degraded
        In a sentence, why answers are not what they could be; empty while they are.
    """

    __slots__ = ("degraded", "node")

    def __init__(self, node: str) -> None:
        self.node = encoded(node)
        self.degraded = ""

    def own(self, path: bytes, took_s: float, variant: str, unserved: bool) -> bytes:
        """Lines of an answer that was made here.

        Parameters
        ----------
        path
            Nodes before this one, as the header has them; empty at the entry.
        took_s
            From the whole request's arrival.
        variant
            Who answered, empty where none did.
        unserved
            Whether the request has certainly not been run.
        """
        lines = b"Inferway-Node: %s\r\nInferway-Path: %s\r\nInferway-Time-Ms: %.2f\r\n" % (
            self.node,
            b"%s,%s" % (path, self.node) if path else self.node,
            took_s * 1e3,
        )
        if variant:
            lines += b"Inferway-Variant: %s\r\n" % encoded(variant)
        if unserved:
            lines += b"Inferway-Unserved: 1\r\n"
        return lines + self._degraded(b"")

    def passed(self, answer: Answer, path: bytes, took_s: float) -> bytes:
        """Lines of an answer that another node made.

        Parameters
        ----------
        answer
            As it came.
        path, took_s
            As `own` has them.
        """
        if not answer.path:  # it was refused before anybody had read whose it is
            return answer.lines + self.own(path, took_s, "", answer.unserved)
        lines = b"Inferway-Node: %s\r\nInferway-Path: %s\r\nInferway-Time-Ms: %.2f,%s\r\n" % (
            answer.node,
            answer.path,
            took_s * 1e3,
            answer.times,
        )
        if answer.variant:
            lines += b"Inferway-Variant: %s\r\n" % answer.variant
        if answer.unserved:
            lines += b"Inferway-Unserved: 1\r\n"
        if self.degraded or answer.degraded:
            lines += self._degraded(answer.degraded)
        return lines + answer.lines

    def _degraded(self, others: bytes) -> bytes:
        # Of several nodes' sentences the nearest to the client's is told.
        said = quote(self.degraded, safe=" !'()*,/:;=").encode() if self.degraded else others
        return b"Inferway-Degraded: %s\r\n" % said if said else b""


@lru_cache(4096)
def _text(name: bytes) -> str:
    return unquote(name.decode("latin-1"))
