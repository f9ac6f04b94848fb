"""Bytes of a model on their way into a partial file: from a file, or by one HTTPS request.

Both run in a thread, where waiting, decrypting, hashing and writing keep nobody from being served.
The standard library's HTTP client is enough for one GET, and gives a place to decide which address
it connects to; no proxy settings are read.
"""

from __future__ import annotations

import http.client
import os
import re
import socket
import ssl
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn

from inferway.live.store.allowed import Address, Source, shown
from inferway.live.store.error import UnavailableError
from inferway.live.store.partial import Partial

_BLOCK: Final = 1 << 18
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class CutError(UnavailableError):
    """The connection broke; where it had brought something, asking for the rest makes sense.

    Attributes
    ----------
    again
        Whether it makes sense.
    """

    def __init__(self, sentence: str, again: bool) -> None:
        super().__init__(sentence)
        self.again = again


class Copy:
    """A file of this machine, copied.

    Parameters
    ----------
    source
        The file.
    partial
        Takes the bytes.
    """

    def __init__(self, source: Source, partial: Partial) -> None:
        self._source, self._partial = source, partial
        self._stopped = False

    def stop(self) -> None:
        """End soon; from any thread."""
        self._stopped = True

    def run(self) -> None:
        """Copy what is missing.

        Raises
        ------
        StoreError
            If it cannot be read, or not be written.
        """
        descriptor = -1
        try:
            # A pipe without a writer would be waited for.
            descriptor = os.open(self._source.target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise UnavailableError(f"{shown(self._source.uri)} is no ordinary file")
            if status.st_size < self._partial.received:
                self._partial.restart()
            self._partial.expect(status.st_size)
            os.lseek(descriptor, self._partial.received, os.SEEK_SET)
            while not self._stopped and (block := os.read(descriptor, _BLOCK)):
                self._partial.append(block)
        except OSError as error:
            raise UnavailableError(
                f"{shown(self._source.uri)} cannot be read: {error.strerror}"
            ) from None
        finally:
            if descriptor >= 0:
                os.close(descriptor)


class Get:
    """One request for a model, or for the rest of it.

    Parameters
    ----------
    source
        What is asked for.
    origin
        The URI under which the bytes' entity tag is remembered: the one before any redirection.
    addresses
        The only ones that are connected to, one after the other until one answers.
    partial
        Takes the bytes.
    context
        Of TLS.
    patience_s
        How long to wait for any single event of the connection.
    """

    def __init__(
        self,
        source: Source,
        origin: str,
        addresses: Sequence[Address],
        partial: Partial,
        context: ssl.SSLContext,
        patience_s: float,
    ) -> None:
        self._source, self._origin, self._partial = source, origin, partial
        self._connection = _Connection(source, addresses, context, patience_s)
        self.brought = 0
        """Bytes of the model that came."""

    def stop(self, reason: str = "it is no longer wanted") -> None:
        """End soon, for this reason; from any thread."""
        self._connection.stop(reason)

    def run(self) -> str | None:
        """Ask, and take what comes.

        Returns
        -------
        location
            Where the server says that the model is; None when the answer has been taken.

        Raises
        ------
        StoreError
            If it did not come, or not wholly.
        """
        connection, here = self._connection, shown(self._source.uri)
        try:
            connection.putrequest("GET", self._source.target, skip_accept_encoding=True)
            # A compressed body could be anything once it is not.
            connection.putheader("Accept-Encoding", "identity")
            connection.putheader("User-Agent", "inferway")
            if self._partial.received:
                connection.putheader("Range", f"bytes={self._partial.received}-")
                tag = self._partial.validator(self._origin)
                # Without a tag the digest alone tells whether both parts are of one file.
                if tag is not None:
                    connection.putheader("If-Range", tag)
            connection.endheaders()
            # Closing the connection leaves an answer open that was to end with it.
            with connection.getresponse() as response:
                return self._take(response)
        except ssl.SSLCertVerificationError as error:
            self._raise(f"the certificate of {self._source.host} is refused", error.verify_message)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            self._raise(f"{here} does not come", reason)
        finally:
            connection.close()

    def _take(self, response: http.client.HTTPResponse) -> str | None:
        here, partial = shown(self._source.uri), self._partial
        if response.status in _REDIRECTS:
            location = response.getheader("Location")
            if not location:
                raise UnavailableError(f"{here} redirects without saying where to")
            return location
        if response.getheader("Content-Encoding", "identity").lower() != "identity":
            raise UnavailableError(
                f"{here} answers with a compressed body, which was not asked for"
            )
        total = self._begin(response)
        if total is not None:
            partial.expect(total)
        while block := response.read1(_BLOCK):
            if self._connection.stopped is not None:
                break
            partial.append(block)
            self.brought += len(block)
        if self._connection.stopped is not None or (total is not None and partial.received < total):
            self._raise(f"{here} breaks off", f"{partial.received:,} bytes are there")
        return None

    def _begin(self, response: http.client.HTTPResponse) -> int | None:
        """Decide where the answer's bytes belong, and tell how many there will be, if known."""
        partial, here = self._partial, shown(self._source.uri)
        if response.status == 206 and partial.received:
            match = _RANGE.fullmatch(response.getheader("Content-Range", ""))
            if match is not None and int(match[1]) == partial.received:
                return None if match[2] == "*" else int(match[2])
        if response.status in (206, 416) and partial.received:
            # What is there is no beginning of what the server has now.
            partial.restart()
            raise CutError(f"{here} has no such rest of a model", again=True)
        if response.status != 200:
            raise UnavailableError(f"{here} answers {response.status} {response.reason}".rstrip())
        tag = response.getheader("ETag")
        # A weak tag promises less than equal bytes (RFC 9110, 13.1.5).
        strong = tag is not None and tag.startswith('"') and tag.isprintable()
        partial.restart(self._origin, tag if strong else None)
        return response.length

    def _raise(self, what: str, reason: str) -> NoReturn:
        if self._connection.stopped is not None:
            raise UnavailableError(f"{what}: {self._connection.stopped}") from None
        raise CutError(f"{what}: {reason}", again=self.brought > 0) from None


class _Connection(http.client.HTTPSConnection):
    """Connects to given addresses; the certificate must be the host's all the same."""

    def __init__(
        self,
        source: Source,
        addresses: Sequence[Address],
        context: ssl.SSLContext,
        patience_s: float,
    ) -> None:
        super().__init__(source.host, source.port, timeout=patience_s, context=context)
        self._addresses, self._tls, self._patience_s = addresses, context, patience_s
        self._open: socket.socket | None = None
        self.stopped: str | None = None

    def connect(self) -> None:
        """Connect to the first address that answers."""
        failure: OSError | None = None
        for family, where in self._addresses:
            plain = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._use(plain)
                plain.settimeout(self._patience_s)
                plain.connect(where)
            except OSError as error:
                plain.close()
                failure = error
                continue
            break
        else:
            raise failure or ConnectionError("there is no address to connect to")
        try:
            self.sock = self._tls.wrap_socket(
                plain, server_hostname=self.host, do_handshake_on_connect=False
            )
        except BaseException:
            plain.close()
            raise
        self._use(self.sock)
        self.sock.do_handshake()

    def stop(self, reason: str) -> None:
        """Wake whoever waits for this connection; from any thread."""
        self.stopped = self.stopped or reason
        if self._open is not None:
            with suppress(OSError):
                # TLS's own shutdown would let the other thread read on, without TLS.
                socket.socket.shutdown(self._open, socket.SHUT_RDWR)

    def _use(self, opened: socket.socket) -> None:
        self._open = opened
        if self.stopped is not None:
            raise ConnectionAbortedError(self.stopped)
