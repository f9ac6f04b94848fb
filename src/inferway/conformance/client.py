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

from inferway.conformance.errors import ViolationError
from inferway.protocol.address import ServerAddress

LONGEST_BODY: Final = 256 * 1024**2
"""Bytes of an answer after which the reading stops."""

Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """One response.

    Attributes
    ----------
    call
        Method and path, for messages.
    status
        HTTP status code.
    headers
        Names in lower case.
    body
        As it came, chunks joined.
    closes
        Whether the server ends the connection after it.
    """

    call: str
    status: int
    headers: Headers
    body: bytes
    closes: bool

    @property
    def plain(self) -> bytes:
        """The body without its content coding.

        Raises
        ------
        ViolationError
            When it is not what Content-Encoding says.
        """
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding == "identity":
            return self.body
        bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(coding)
        if bits is None:
            raise ViolationError(
                f"{self.call} was answered in the coding {coding!r}, not asked for"
            )
        try:
            return zlib.decompress(self.body, bits)
        except zlib.error as error:
            raise ViolationError(
                f"{self.call} was answered with damaged {coding}: {error}"
            ) from None

    @property
    def json(self) -> Any:
        """The body as JSON.

        Raises
        ------
        ViolationError
            When it is none.
        """
        return document(self.plain, self.call)

    def __str__(self) -> str:
        start = self.body[:160].decode("utf-8", "replace")
        return f"{self.call} answered {self.status}" + (f": {start}" if start else "")


def document(text: bytes, call: str) -> Any:
    """Decode JSON from the server.

    Raises
    ------
    ViolationError
        When it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        start = text[:80].decode("utf-8", "replace")
        raise ViolationError(f"{call} answered with what is not JSON: {start!r}") from None


def _why(error: Exception) -> str:
    """Why there was no answer, in words."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return (os.strerror(error.errno) if error.errno > 0 else str(error.strerror)).lower()
    return str(error) or type(error).__name__


class Wire:
    """One connection that may carry several calls.

    Parameters
    ----------
    address
        The server's.
    timeout_s
        Longest wait of one call, in seconds.
    key
        Sent with every call, if the server asks for one.
    """

    def __init__(self, address: ServerAddress, timeout_s: float, key: str | None = None) -> None:
        kind = http.client.HTTPSConnection if address.tls else http.client.HTTPConnection
        self._connection = kind(address.host, address.port, timeout=timeout_s)
        self._address = address
        self._timeout_s = timeout_s
        self._key = key

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def call(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Headers | None = None,
    ) -> Answer:
        """Send one request and read its answer.

        Parameters
        ----------
        method, path
            The path begins with `/v2`.
        body
            Bytes are sent with their Content-Length, pieces as chunks.
        headers
            Besides Host and the key, which are sent unasked.

        Raises
        ------
        ViolationError
            When no complete HTTP answer comes in time.
        """
        connection, said = self._connection, f"{method} {path}"
        deadline_s = time.monotonic() + self._timeout_s
        try:
            if connection.sock is not None:
                connection.sock.settimeout(self._timeout_s)
            connection.putrequest(
                method, self._address.prefix + path, skip_host=True, skip_accept_encoding=True
            )
            connection.putheader("Host", self._address.authority)
            if isinstance(body, bytes):
                connection.putheader("Content-Length", str(len(body)))
            elif body is not None:
                connection.putheader("Transfer-Encoding", "chunked")
            if self._key is not None:
                connection.putheader("Authorization", f"Bearer {self._key}")
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders(body, encode_chunked=not isinstance(body, bytes))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            with response:
                received = _whole(response, deadline_s)
        except TimeoutError:
            self.close()
            raise ViolationError(
                f"{said} had no complete answer after {self._timeout_s:g} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            reason = _why(error)
            raise ViolationError(f"{said} had no answer: {reason}") from None
        return Answer(said, response.status, found, received, response.will_close)


def _whole(response: http.client.HTTPResponse, deadline_s: float) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := response.read1(1 << 20):
        parts.append(part)
        size += len(part)
        if time.monotonic() > deadline_s or size > LONGEST_BODY:
            raise TimeoutError
    announced = response.headers.get("Content-Length")
    if announced is not None and announced.isdigit() and int(announced) != size:
        raise http.client.IncompleteRead(b"".join(parts), int(announced) - size)
    return b"".join(parts)
