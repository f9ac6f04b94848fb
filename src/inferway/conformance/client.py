"""Raw HTTP/1.1 to the server under test: every header is said, and every wait has an end."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from inferway.protocol.address import ServerAddress

LONGEST_BODY: Final = 256 * 1024**2  # Bytes of an answer after which the reading stops

Headers = Mapping[str, str]


class ViolationError(Exception):
    """The server did what its clause does not allow; the message is the evidence."""


class NotOfferedError(Exception):
    """The server does without something optional; the message is the evidence."""


def expect(holds: object, violation: str) -> None:
    """Raise a violation unless something holds."""
    if not holds:
        raise ViolationError(violation)


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """One response."""

    call: str  # Method and path, for messages
    status: int
    headers: Headers  # Names in lower case
    body: bytes  # As it came, chunks joined
    closes: bool  # Whether the server ends the connection after it

    @property
    def plain(self) -> bytes:
        """The body without its content coding; a violation if it is not what that says."""
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding == "identity":
            return self.body
        bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(coding)
        expect(bits, f"{self.call} was answered in the coding {coding!r}, not asked for")
        try:
            return zlib.decompress(self.body, bits or 0)
        except zlib.error as error:
            raise ViolationError(
                f"{self.call} was answered with damaged {coding}: {error}"
            ) from None

    @property
    def json(self) -> Any:
        """The body as JSON; a violation if it is none."""
        return document(self.plain, self.call)

    def good(self, expected: str = "expected 200") -> TargetAnswer:
        """Give the answer back if its status is 200; a violation if not."""
        expect(self.status == 200, f"{self}; {expected}")
        return self

    def refused(self, expected: str = "expected 4xx") -> TargetAnswer:
        """Give the answer back if it lays the fault on the client; a violation if not."""
        expect(400 <= self.status < 500, f"{self}; {expected}")
        return self

    def __str__(self) -> str:
        start = self.body[:160].decode("utf-8", "replace")
        return f"{self.call} answered {self.status}" + (f": {start}" if start else "")


def document(text: bytes, call: str) -> Any:
    """Decode JSON from the server; a violation if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        start = text[:80].decode("utf-8", "replace")
        raise ViolationError(f"{call} answered with what is not JSON: {start!r}") from None


class RawConnection:
    """One connection that may carry several calls; the key is sent with every one."""

    def __init__(self, address: ServerAddress, timeout_s: float, key: str | None = None) -> None:
        kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
        self._connection = kind(address.host, address.port, timeout=timeout_s)
        self._path = address.prefix
        self._timeout_s = timeout_s
        self._headers = {"Host": address.authority}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self.close = self._connection.close

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Headers | None = None,
    ) -> TargetAnswer:
        """Send one request and read its answer; a violation when none comes whole and in time.

        The path begins with `/v2`. Bytes are sent with their Content-Length, pieces as chunks;
        `headers` come besides Host and the key.
        """
        connection, call = self._connection, f"{method} {path}"
        deadline_s = time.monotonic() + self._timeout_s
        sent = dict(self._headers)
        if isinstance(body, bytes):
            sent["Content-Length"] = str(len(body))
        elif body is not None:
            sent["Transfer-Encoding"] = "chunked"
        try:
            if connection.sock is not None:
                connection.sock.settimeout(self._timeout_s)
            connection.putrequest(
                method, self._path + path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in (sent | dict(headers or {})).items():
                connection.putheader(name, value)
            connection.endheaders(body, encode_chunked=not isinstance(body, bytes))
            response = connection.getresponse()
            with response:
                received = _whole(response, deadline_s)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, TimeoutError):
                why = f"complete answer after {self._timeout_s:g} s"
            else:
                why = f"answer: {_reason(error)}"
            raise ViolationError(f"{call} had no {why}") from None
        names = {name.lower(): value for name, value in response.getheaders()}
        return TargetAnswer(call, response.status, names, received, response.will_close)


def _whole(response: http.client.HTTPResponse, deadline_s: float) -> bytes:
    body = bytearray()
    while part := response.read1(1 << 20):
        body += part
        if time.monotonic() > deadline_s or len(body) > LONGEST_BODY:
            raise TimeoutError
    announced = response.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) != len(body):
        raise http.client.IncompleteRead(bytes(body), int(announced) - len(body))
    return bytes(body)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else str(error.strerror)).lower()
    return str(error) or type(error).__name__
