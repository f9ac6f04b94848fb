"""One answer of a remote server, as it comes in over HTTP/1.1."""

from __future__ import annotations

from typing import Any, Final

import httptools

LONGEST_BODY: Final = 256 * 1024**2
"""Bytes of an answer after which the reading stops."""
LONGEST_HEAD: Final = 64 * 1024
"""Bytes of its headers, likewise."""


class GarbageError(ValueError):
    """What came is no HTTP answer, or too long."""


class Reply:
    """Takes bytes until an answer is whole.

    Attributes
    ----------
    status
        HTTP status code, once `whole`.
    whole
        Whether all of it has come.
    begun
        Whether any of it has come.
    json_length
        What Inference-Header-Content-Length says; None without it.
    retry_after_s
        What Retry-After says in seconds; 0 without it.
    keep_s
        How long the server says that it keeps the connection; None where it says nothing.
    coding
        Content-Encoding, in lower case.
    keep
        Whether the connection can take another request.
    """

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = self._head = 0
        self._measured = self._headed = self._spilled = False
        self._complaint = ""
        self.begun = self.whole = False
        self.status = 0
        self.json_length: int | None = None
        self.retry_after_s = 0.0
        self.keep_s: float | None = None
        self.coding = ""
        self.keep = False

    def feed(self, data: bytes) -> None:
        """Take what has come.

        Raises
        ------
        GarbageError
            When it cannot be (part of) an answer.
        """
        self.begun = True
        if not self._headed:
            self._head += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            self.keep = False
            if self.whole:
                return
            raise GarbageError(str(error)[:120] or "no HTTP") from None
        if not self._headed and self._head > LONGEST_HEAD:
            raise GarbageError(f"its headers are longer than {LONGEST_HEAD:,} bytes")
        if self._complaint:
            raise GarbageError(self._complaint)
        if self._size > LONGEST_BODY:
            raise GarbageError(f"it is longer than {LONGEST_BODY:,} bytes")

    def end(self) -> bool:
        """Take the end of the connection; whether the answer is whole now."""
        if self._headed and not self._measured and not self.whole:
            # Without a length, the end of the connection is the end of the body.
            self.status = self._parser.get_status_code()
            self.whole = True
        return self.whole

    @property
    def body(self) -> bytes:
        """The body as it came, chunks joined."""
        return b"".join(self._parts)

    # What the HTTP parser calls.

    def on_message_begin(self) -> None:
        """Note that more has come than one answer: whose it is, nobody knows."""
        if self.whole:
            self._spilled, self.keep = True, False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note a header that matters here."""
        if self._spilled:
            return
        match name.lower():
            case b"content-length":
                self._measured = True
                # The parser has checked that these are digits.
                if len(value) > 8 and int(value[:20]) > LONGEST_BODY:
                    self._complaint = f"it announces more than {LONGEST_BODY:,} bytes"
            case b"transfer-encoding":
                self._measured = True
            case b"inference-header-content-length":
                if not value.strip().isdigit():
                    self._complaint = "Inference-Header-Content-Length is not a number"
                else:
                    self.json_length = int(value)
            case b"retry-after" if value.strip().isdigit():
                self.retry_after_s = float(value)
            case b"keep-alive":
                for word in value.split(b","):
                    key, _, number = word.strip().partition(b"=")
                    if key == b"timeout" and number.isdigit():
                        self.keep_s = float(number)
            case b"content-encoding":
                self.coding = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        """Note that the body follows."""
        self._headed = True

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        if self._spilled:
            return
        self._size += len(body)
        if self._size <= LONGEST_BODY:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """Note the end, unless it was an interim answer's."""
        if self._spilled:
            return
        if self._parser.get_status_code() < 200:  # interim: the answer comes after it
            self._headed = self._measured = False
            self._parts.clear()
            return
        self.status = self._parser.get_status_code()
        self.keep = self._parser.should_keep_alive()
        self.whole = True
