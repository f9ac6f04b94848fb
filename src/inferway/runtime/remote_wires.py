"""Connections to a remote server, kept for the next call, each used by one thread at a time."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock
from typing import Final

from inferway.protocol.address import ModelAddress
from inferway.protocol.http1 import AnswerReader
from inferway.runtime.remote_failure import Fault, RemoteError

CONNECT_S: Final = 2.0
"""Longest wait for a connection: several round trips, even around the world."""
IDLE_S: Final = 3.0
"""Unused connections are closed after this, unless the server announces another time: servers
close theirs after 5 s (uvicorn) or more, and a request that meets that close may be lost."""
_MARGIN_S: Final = 1.0
_PIECE: Final = 256 * 1024
_TOGETHER: Final = 64 * 1024
"""Up to so many bytes are joined and sent with one call."""


class GarbageError(ValueError):
    """What came is no HTTP answer, or too long."""


class RemoteReply(AnswerReader):
    """One answer of a remote server.

    Attributes
    ----------
    status
        HTTP status code, once `whole`.
    whole
        Whether all of it has come.
    headers
        By name in lower case.
    body
        As it came, chunks joined.
    json_length
        What Inference-Header-Content-Length says; None without it.
    keep
        Whether the connection can take another request.
    """

    garbage = "{error}"
    long_head = "its headers are longer than {limit:,} bytes"
    long_body = "it is longer than {limit:,} bytes"
    announced = "it announces more than {limit:,} bytes"

    def __init__(self) -> None:
        super().__init__()
        self.whole = self.keep = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.json_length: int | None = None

    def read(self, data: bytes) -> None:
        """Take what has come.

        Raises
        ------
        GarbageError
            When it cannot be (part of) an answer.
        """
        self.feed(data)
        if self.wrong:
            self.keep = False
            if not self.whole:
                raise GarbageError(self.wrong)

    def on_message_begin(self) -> None:
        """Note that more has come than one answer: whose it is, nobody knows."""
        if self.whole:
            self.keep = False

    def take(self, status: int, headers: dict[bytes, bytes], body: bytes, keep: bool) -> None:
        """Keep the first answer."""
        if self.whole:
            return
        length = headers.get(b"inference-header-content-length")
        if length is not None and not length.strip().isdigit():
            self.wrong = "Inference-Header-Content-Length is not a number"
            return
        self.json_length = None if length is None else int(length)
        self.status, self.headers, self.body, self.keep = status, headers, body, keep
        self.whole = True

    @property
    def retry_after_s(self) -> float:
        """What Retry-After says in seconds; 0 without it."""
        value = self.headers.get(b"retry-after", b"").strip()
        return float(value) if value.isdigit() else 0.0

    @property
    def keep_s(self) -> float | None:
        """How long the server says that it keeps the connection; None where it says nothing."""
        for word in self.headers.get(b"keep-alive", b"").split(b","):
            key, _, number = word.strip().partition(b"=")
            if key == b"timeout" and number.isdigit():
                return float(number)
        return None

    @property
    def coding(self) -> str:
        """Content-Encoding, in lower case."""
        return self.headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()


class UnsentError(Exception):
    """The connection ended before the whole request was out, so it cannot have been served."""


class RemoteCall:
    """One call that can be stopped from another thread; see `inferway.runtime.Call`."""

    __slots__ = ("_socket", "_stopped")

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._stopped = False

    @property
    def terminate(self) -> bool:
        """Whether the call is to stop; set to True, its connection ends."""
        return self._stopped

    @terminate.setter
    def terminate(self, stop: bool) -> None:
        self._stopped = stop
        self.on(self._socket)

    def on(self, connected: socket.socket | None) -> None:
        """Say which connection the call is on; None while it is on none."""
        self._socket = connected
        if self._stopped and connected is not None:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)


class _Wire:
    """One connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.ends_s = 0.0
        self._poll = select.poll()
        self._poll.register(connected.fileno(), select.POLLIN)

    @property
    def quiet(self) -> bool:
        """Whether nothing has come since the last answer, not even the connection's end."""
        return not self._poll.poll(0)

    def exchange(self, parts: Sequence[bytes], deadline_s: float) -> RemoteReply:
        """Send a request and read its answer, until `deadline_s` on the monotonic clock.

        Raises
        ------
        UnsentError, RemoteError
            When there is none.
        """
        reply = RemoteReply()
        try:
            self._send(parts, deadline_s)
        except TimeoutError:
            raise UnsentError("the request was not taken in time") from None
        except OSError as error:
            # A server that refuses a long request may answer before it has read it all.
            if not self._refused_early(reply):
                raise UnsentError(str(error) or type(error).__name__) from None
            return reply
        try:
            while not reply.whole:
                self.socket.settimeout(_left(deadline_s))
                data = self.socket.recv(_PIECE)
                if not data:
                    reply.end()
                    if not reply.whole:
                        raise _lost(reply, "closed the connection")
                else:
                    reply.read(data)
                    # One that never stops talking is late as well.
                    if not reply.whole and time.monotonic() > deadline_s:
                        raise TimeoutError
        except TimeoutError:
            raise RemoteError(Fault.LATE, "the remote server gave no answer in time") from None
        except OSError as error:
            raise _lost(reply, f"broke the connection ({error.strerror or error})") from None
        except GarbageError as error:
            raise RemoteError(
                Fault.BROKEN, f"the remote server answered with what is not HTTP: {error}"
            ) from None
        return reply

    def _send(self, parts: Sequence[bytes], deadline_s: float) -> None:
        size = sum(map(len, parts))
        for part in [b"".join(parts)] if size <= _TOGETHER else parts:
            self.socket.settimeout(_left(deadline_s))
            self.socket.sendall(part)

    def _refused_early(self, reply: RemoteReply) -> bool:
        with suppress(OSError, GarbageError):
            self.socket.settimeout(_MARGIN_S)
            while not reply.whole:
                data = self.socket.recv(_PIECE)
                if not data:
                    reply.end()
                    break
                reply.read(data)
        reply.keep = False
        return reply.whole


class RemoteWires:
    """Connections to one server.

    Parameters
    ----------
    address
        The server's.

    Attributes
    ----------
    opened
        Connections made so far.
    retried
        Calls that were made again because the first connection ended before they were out.
    """

    def __init__(self, address: ModelAddress) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.tls else None
        self._idle: list[_Wire] = []
        self._lock = Lock()
        self._closed = False
        self.opened = self.retried = 0

    def exchange(
        self, parts: Sequence[bytes], deadline_s: float, call: RemoteCall | None = None
    ) -> RemoteReply:
        """Send one request and read its answer; once more where the first was not sent whole.

        Parameters
        ----------
        parts
            Of the request, head and body.
        deadline_s
            When the answer must be whole, on the monotonic clock.
        call
            What stops it, or None.

        Raises
        ------
        RemoteError
            When there is no answer.
        """
        for again in (False, True):
            wire = None if again else self._kept()
            if wire is None:
                wire = self._connect(deadline_s)
            try:
                if call is not None:
                    call.on(wire.socket)
                reply = wire.exchange(parts, deadline_s)
            except UnsentError as error:
                self._end(wire, call)
                stopped = call is not None and call.terminate
                if again or stopped or time.monotonic() >= deadline_s:
                    raise RemoteError(
                        Fault.UNREACHABLE,
                        f"the request could not be sent to the remote server: {error}",
                        unserved=True,
                    ) from None
                with self._lock:
                    self.retried += 1
                continue
            except BaseException:
                self._end(wire, call)
                raise
            if call is not None:
                call.on(None)
            self._keep(wire, reply)
            return reply
        raise AssertionError  # the second try returns or raises

    def close(self) -> None:
        """End the connections that are not in use; those in use end with their calls."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.socket.close()

    def _kept(self) -> _Wire | None:
        now_s = time.monotonic()
        while True:
            with self._lock:
                if not self._idle:
                    return None
                wire = self._idle.pop()
            if now_s < wire.ends_s and wire.quiet:
                return wire
            wire.socket.close()

    def _keep(self, wire: _Wire, reply: RemoteReply) -> None:
        kept_s = IDLE_S if reply.keep_s is None else reply.keep_s - _MARGIN_S
        wire.ends_s = time.monotonic() + kept_s
        with self._lock:
            if reply.keep and not self._closed:
                self._idle.append(wire)
                return
        wire.socket.close()

    @staticmethod
    def _end(wire: _Wire, call: RemoteCall | None) -> None:
        if call is not None:
            call.on(None)
        wire.socket.close()

    def _connect(self, deadline_s: float) -> _Wire:
        address = self._address
        limit_s = min(CONNECT_S, _left(deadline_s))
        connected = None
        try:
            connected = socket.create_connection((address.host, address.port), limit_s)
            # A request is one write or several; none may wait for the other side's delayed ACK.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connected = self._tls.wrap_socket(connected, server_hostname=address.host)
        except (OSError, ValueError) as error:
            if connected is not None:
                connected.close()
            raise RemoteError(
                Fault.UNREACHABLE,
                f"the remote server cannot be reached: {_reason(error)}",
                unserved=True,
            ) from None
        with self._lock:
            self.opened += 1
        return _Wire(connected)


def _left(deadline_s: float) -> float:
    # 0 would mean a socket that does not block.
    return max(1e-3, deadline_s - time.monotonic())


def _lost(reply: RemoteReply, how: str) -> RemoteError:
    when = "in the middle of its answer" if reply.begun else "without an answer"
    return RemoteError(Fault.BROKEN, f"the remote server {how} {when}")


def _reason(error: Exception) -> str:
    match error:
        case ConnectionRefusedError():
            return "connection refused"
        case TimeoutError():
            return "no connection in time"
        case ssl.SSLCertVerificationError():
            return f"its certificate does not pass: {error.verify_message}"
        case OSError() if error.strerror:
            return error.strerror
        case _:
            return str(error) or type(error).__name__
