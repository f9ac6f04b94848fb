"""One kept connection to a neighbor: a request out, its answer in, undecoded."""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import httptools

from inferway.live.hops.headers import DEGRADED, TIMES, UNSERVED
from inferway.live.http.whole import NODE, PATH, VARIANT

LONGEST_BODY: Final = 256 * 1024**2
"""Bytes of an answer after which the connection is ended."""
LONGEST_HEAD: Final = 64 * 1024
"""Bytes of its headers, likewise."""
FRESH_S: Final = 0.005
"""Connections that have been idle for less are used unasked."""
_JOINED: Final = 64 * 1024

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


class Wire(asyncio.Protocol):
    """Carries one request at a time.

    Parameters
    ----------
    answered
        Told the wire, the answer and whether the wire can take another request.
    lost
        Told the wire, when its connection has ended, and why where something was wrong with what
        came.

    Attributes
    ----------
    sending
        Whose answer it waits for; None while idle.
    since_s
        Since when, or since when it has been idle; its owner keeps it.
    transport
        Of the connection, once it is made.
    begun
        Whether any of the answer has come.
    came
        Bytes that have come, of answers that did not come in one piece.
    """

    __slots__ = (
        "_answered",
        "_chunks",
        "_head_bytes",
        "_headed",
        "_headers",
        "_lost",
        "_parser",
        "_poll",
        "_received",
        "_wrong",
        "begun",
        "came",
        "sending",
        "since_s",
        "transport",
    )

    def __init__(
        self,
        answered: Callable[[Wire, Answer, bool], None],
        lost: Callable[[Wire, str], None],
    ) -> None:
        self._answered, self._lost = answered, lost
        self._parser: Any = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._head_bytes = self._received = 0
        self._headed = False
        self._wrong = ""
        self.sending: Any = None
        self.since_s = 0.0
        self.begun = False
        self.came = 0

    def belong(
        self,
        answered: Callable[[Wire, Answer, bool], None],
        lost: Callable[[Wire, str], None],
    ) -> None:
        """Tell another owner from now on."""
        self._answered, self._lost = answered, lost

    def send(self, head: bytes, body: bytes | Sequence[bytes]) -> None:
        """Write a request."""
        self.begun = False
        if isinstance(body, bytes):
            if len(body) <= _JOINED:
                self.transport.write(head + body)
            else:
                self.transport.writelines((head, body))
        else:
            self.transport.writelines((head, *body))

    def stale(self, now_s: float) -> bool:
        """Whether an idle connection can take no request: it has ended, or is about to.

        One that has been idle for a while is looked up in the kernel, for the loop may not have
        come to its end yet. A request that is written all the same may have been read.
        """
        if self.transport.is_closing():
            return True
        return now_s - self.since_s > FRESH_S and bool(self._poll.poll(0))

    @property
    def connected(self) -> bool:
        """Whether its connection has been made."""
        return hasattr(self, "transport")

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self.transport = cast("asyncio.Transport", transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner."""
        self._lost(self, self._wrong)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        # Before the first piece of an answer the parser keeps nothing, and need not see them all.
        if not self.begun and self.sending is not None:
            answer = Answer.whole(data)
            if answer is not None:
                self._answered(self, answer, True)
                return
        self.begun = True
        self.came += len(data)
        if not self._headed:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self._wrong = self._wrong or f"what it sent is no answer ({str(error)[:120]})"
        if not self._headed and self._head_bytes > LONGEST_HEAD:
            self._wrong = f"the headers of its answer are longer than {LONGEST_HEAD} bytes"
        if self._wrong:
            self.transport.abort()

    # What httptools calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Count what comes from now on as the body."""
        self._headed = True
        announced = self._headers.get(b"content-length", b"")
        # The parser has checked that these are digits.
        if len(announced) > 8 and int(announced[:20]) > LONGEST_BODY:
            shown = announced[:20].decode("latin-1")
            self._wrong = f"it announces {shown} bytes, the limit is {LONGEST_BODY}"

    def on_body(self, chunk: bytes) -> None:
        """Keep a piece of the body."""
        self._received += len(chunk)
        if self._received > LONGEST_BODY:
            self._wrong = f"its answer is longer than {LONGEST_BODY} bytes"
            return
        self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """Hand the answer on."""
        status = self._parser.get_status_code()
        if self.sending is None or self._wrong:
            self._wrong = self._wrong or "it answered what nobody asked"
            return
        headers, chunks = self._headers, self._chunks
        self._headers, self._chunks = {}, []
        self._head_bytes = self._received = 0
        self._headed = False
        if status < 200:  # interim: the answer comes after it
            return
        answer = Answer.headed(status, headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self._answered(self, answer, self._parser.should_keep_alive())
