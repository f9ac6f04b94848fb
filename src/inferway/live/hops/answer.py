"""A neighbor's answer, its body undecoded, or why there is none."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from inferway.live.http.whole import NODE, PATH, VARIANT

TIMES: Final = b"inferway-time-ms"
DEGRADED: Final = b"inferway-degraded"
UNSERVED: Final = b"inferway-unserved"
"""Hop headers of an answer, beside those of a request; in lower case."""

_CARRIED: Final = (
    (b"vary", b"Vary: %s\r\n"),
    (b"inference-header-content-length", b"Inference-Header-Content-Length: %s\r\n"),
    (b"content-encoding", b"Content-Encoding: %s\r\n"),
    (b"retry-after", b"Retry-After: %s\r\n"),
)
"""Lines of an answer that go on as they came."""
_WORD: Final = rb"([!-~]+)"
_WHOLE: Final = re.compile(
    rb"HTTP/1\.1 200 OK\r\nContent-Type: " + _WORD + rb"\r\nContent-Length: ([0-9]{1,9})\r\n"
    rb"Inferway-Node: " + _WORD + rb"\r\nInferway-Path: " + _WORD + rb"\r\n"
    rb"Inferway-Time-Ms: " + _WORD + rb"\r\nInferway-Variant: " + _WORD + rb"\r\n"
    rb"((?:Vary: " + _WORD + rb"\r\n)?(?:Inference-Header-Content-Length: " + _WORD + rb"\r\n)?"
    rb"(?:Content-Encoding: " + _WORD + rb"\r\n)?)\r\n"
)


class Answer:
    """What a neighbor answered.

    Attributes
    ----------
    status, kind, body
        Status code, Content-Type and body.
    lines
        Header lines that go on as they came.
    json_length
        Value of Inference-Header-Content-Length; None without it.
    retry_after
        Value of Retry-After; empty without it.
    node, variant, path, times, degraded
        Values of the hop headers; empty without them.
    unserved
        Whether the request has certainly not been run.
    strayed
        Whether a link on its way took otherwise than is known of it: what it took says little of
        the next.
    """

    __slots__ = (
        "body",
        "degraded",
        "json_length",
        "kind",
        "lines",
        "node",
        "path",
        "retry_after",
        "status",
        "strayed",
        "times",
        "unserved",
        "variant",
    )

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
        self.lines = self.degraded = self.retry_after = b""
        self.unserved = self.strayed = False
        self.json_length: bytes | None = None

    @classmethod
    def headed(cls, status: int, headers: dict[bytes, bytes], body: bytes) -> Answer:
        """Make an answer of its headers, by name in lower case."""
        get = headers.get
        answer = cls(
            status,
            get(b"content-type", b""),
            body,
            get(NODE, b""),
            get(VARIANT, b""),
            get(PATH, b""),
            get(TIMES, b""),
        )
        answer.degraded = get(DEGRADED, b"")
        answer.unserved = get(UNSERVED) == b"1"
        answer.json_length = get(b"inference-header-content-length")
        answer.retry_after = get(b"retry-after", b"")
        for name, line in _CARRIED:
            if name in headers:
                answer.lines += line % headers[name]
        return answer

    @classmethod
    def whole(cls, data: bytes) -> Answer | None:
        """Make an answer of what has come, where that is one and nothing else.

        It has to be exactly as a node writes it that has answered and has nothing to add; None
        leaves everything else to the parser.
        """
        found = _WHOLE.match(data)
        if found is None:
            return None
        kind, size, node, path, times, variant, lines, _, json_length, _ = found.groups()
        end = found.end()
        if len(data) - end != int(size):
            return None
        answer = cls(200, kind, data[end:], node, variant, path, times)
        answer.lines, answer.json_length = lines, json_length
        return answer


class Failure(NamedTuple):
    """Why there is no answer.

    Attributes
    ----------
    reason
        In a sentence.
    unserved
        Whether the request has certainly not been run: it never went out.
    late
        Whether it was taken back, as it took too long.
    """

    reason: str
    unserved: bool = False
    late: bool = False
