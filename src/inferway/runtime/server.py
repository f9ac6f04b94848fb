"""Requests to one remote server of the Open Inference Protocol, and how they fail."""

from __future__ import annotations

import asyncio
import enum
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from inferway.protocol.address import ServerAddress
from inferway.protocol.http1 import ClientConnection, ConnectionPool, connect_failure
from inferway.protocol.messages import ErrorMessage
from inferway.unreadable import UNREADABLE

# Longest wait for a connection: several round trips, even around the world.
CONNECT_S: Final = 2.0
# Unused connections are closed after this, unless the server announces another time: servers close
# theirs after 5 s (uvicorn) or more, and a request that meets that close may be lost.
IDLE_S: Final = 3.0
_MARGIN_S: Final = 1.0
_CONNECTIONS: Final = 4096
_LONGEST_REASON: Final = 300


class Fault(enum.Enum):
    """Kinds of failure; the values are label values of metrics.

    Attributes
    ----------
    REFUSED
        The server takes no such input: another one it may take.
    OVERLOADED
        The server works and has no room now.
    UNAVAILABLE
        The server works and does not serve the model now.
    UNREACHABLE
        There was no connection, or it ended before the request was out.
    LATE
        There was no whole answer in time.
    DIED
        What ran the request ended before it had answered: it may have been run.
    BROKEN
        The server failed at the request, or what it answered is no answer to it.
    UNFIT
        The server's model is not what it should be: another signature, or none that can be used.
    """

    REFUSED = "refused"
    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    UNREACHABLE = "unreachable"
    LATE = "late"
    DIED = "died"
    BROKEN = "broken"
    UNFIT = "unfit"


_FAULTS: Final = {
    429: Fault.OVERLOADED,
    404: Fault.UNAVAILABLE,
    503: Fault.UNAVAILABLE,
    408: Fault.LATE,
    504: Fault.LATE,
}
# What is wrong with our access, and not with the input.
_OURS: Final = frozenset((401, 402, 403, 405, 407, 411))


class RemoteError(RuntimeError):
    """A call to a remote server that gave no answer; the message is one sentence.

    Parameters
    ----------
    fault
        Kind of failure.
    reason
        The sentence.
    unserved
        True where it is certain that the model has not run: another server may be asked.
    retry_after_s
        Time after which another try may be worth it, s; 0 where the server says nothing.

    Attributes
    ----------
    hung
        True where the server was asked afterwards whether it lives, and did not say so.
    """

    hung = False

    def __init__(
        self, fault: Fault, reason: str, *, unserved: bool = False, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(reason)
        self.fault, self.unserved, self.retry_after_s = fault, unserved, retry_after_s


class ServerReply(NamedTuple):
    """One answer of a remote server.

    Attributes
    ----------
    status
        Of HTTP.
    headers
        Values by name in lower case.
    body
        All of it, undecoded.
    """

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @classmethod
    def headed(cls, status: int, headers: dict[bytes, bytes], body: bytes) -> ServerReply:
        """Make an answer of its headers and its body."""
        return cls(status, headers, body)

    @property
    def json_length(self) -> int | None:
        """Value of Inference-Header-Content-Length, bytes; None without it.

        Raises
        ------
        RemoteError
            Where it is no number.
        """
        value = self.headers.get(b"inference-header-content-length")
        if value is not None and not value.strip().isdigit():
            raise _not_http("Inference-Header-Content-Length is not a number")
        return None if value is None else int(value)

    @property
    def keep_s(self) -> float:
        """Time for which an idle connection can be kept."""
        for word in self.headers.get(b"keep-alive", b"").split(b","):
            key, _, number = word.strip().partition(b"=")
            if key == b"timeout" and number.isdigit():
                return float(number) - _MARGIN_S
        return IDLE_S

    def check(self) -> None:
        """Refuse any answer but a plain 200.

        Raises
        ------
        RemoteError
            With the kind of failure that the status stands for, and the server's own sentence.
        """
        if self.status != 200:
            raise self._failure()
        coding = self.headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if coding not in ("", "identity"):
            raise RemoteError(
                Fault.BROKEN,
                f"the remote server answered in the coding {coding[:20]!r}, not asked for",
            )

    def _failure(self) -> RemoteError:
        status = self.status
        kind = _FAULTS.get(status, Fault.BROKEN)
        if status not in _FAULTS and 400 <= status < 500 and status not in _OURS:
            kind = Fault.REFUSED
        try:
            said = msgspec.json.decode(self.body, type=ErrorMessage).error
        except UNREADABLE:
            said = "redirects are not followed" if 300 <= status < 400 else ""
        said = " ".join(said.split())
        if len(said) > _LONGEST_REASON:
            said = said[: _LONGEST_REASON - 3] + "..."
        after = self.headers.get(b"retry-after", b"").strip()
        return RemoteError(
            kind,
            f"the remote server answered {status}" + (f": {said}" if said else ""),
            unserved=kind in (Fault.OVERLOADED, Fault.UNAVAILABLE),
            retry_after_s=float(after) if after.isdigit() else 0.0,
        )


class ServerConnection(ClientConnection):
    """A connection that knows whether a request is out as a whole."""

    sentences: ClassVar[Mapping[str, str]] = {
        "garbage": "{error}",
        "long head": "its headers are longer than {limit:,} bytes",
        "long body": "it is longer than {limit:,} bytes",
        "announced": "it announces more than {limit:,} bytes",
    }
    unsent = False
    error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be told from now on when bytes are left to be sent, and when none are."""
        super().connection_made(transport)
        self.transport.set_write_buffer_limits(high=1, low=0)

    def stale(self, now_s: float) -> bool:
        """Tell whether an idle connection can take no request: the kernel is asked each time."""
        return self.transport.is_closing() or bool(self._poll.poll(0))

    def pause_writing(self) -> None:
        """Note that a request is not out."""
        self.unsent = True

    def resume_writing(self) -> None:
        """Note that it is."""
        self.unsent = False

    def take(self, status: int, headers: dict[bytes, bytes], body: bytes, keep: bool) -> None:
        """Hand an answer on; what is refused before it is out ends the connection."""
        super().take(status, headers, body, keep and not self.unsent)

    def eof_received(self) -> None:
        """Take the end of what comes, which ends a body whose length nobody said."""
        self.end()

    def connection_lost(self, error: Exception | None) -> None:
        """Remember why."""
        self.error = error
        self.unsent = self.unsent or isinstance(error, BrokenPipeError)
        super().connection_lost(error)


class _ServerCall:
    connection: ServerConnection | None = None
    again = False

    def __init__(
        self, head: bytes, body: Sequence[bytes], reply: asyncio.Future[ServerReply]
    ) -> None:
        self.head, self.body, self.reply = head, body, reply

    def fail(self, error: RemoteError) -> None:
        if not self.reply.done():
            self.reply.set_exception(error)

    def expire(self) -> None:
        if self.connection is None:
            self.fail(_unreached(TimeoutError()))
        elif self.connection.unsent:
            self.fail(_unsent("the request was not taken in time"))
        else:
            self.fail(RemoteError(Fault.LATE, "the remote server gave no answer in time"))


class ServerConnections(ConnectionPool):
    """The connections to one server, of one event loop."""

    connection_kind = ServerConnection
    idle_s = IDLE_S

    def __init__(self, address: ServerAddress, tls: ssl.SSLContext | None) -> None:
        super().__init__(
            address.host,
            address.port,
            form=ServerReply,
            most=_CONNECTIONS,
            connect_s=CONNECT_S,
            tls=tls,
        )
        # Calls that were made again because the first connection ended before they were out.
        self.retried = 0

    async def exchange(self, head: bytes, body: Sequence[bytes], deadline_s: float) -> ServerReply:
        """Send a request and read its answer; canceled, the connection ends.

        Parameters
        ----------
        head, body
            Request line and headers with the empty line, and the parts of the body.
        deadline_s
            Until when, on the monotonic clock, s.

        Raises
        ------
        RemoteError
            When no whole answer comes until then.
        """
        call = _ServerCall(head, body, self._loop.create_future())
        timer = self._loop.call_later(max(0.0, deadline_s - time.monotonic()), call.expire)
        self.submit(call)
        try:
            return await call.reply
        finally:
            timer.cancel()
            self.withdraw(call)

    def write(self, connection: Any, call: _ServerCall) -> None:
        """Write a request."""
        call.connection = connection
        connection.send(call.head, call.body)

    def answered(self, call: _ServerCall, answer: ServerReply, sent_s: float, now_s: float) -> None:
        """Hand an answer on, and keep connections as long as it says."""
        call.connection = None
        if not call.reply.done():
            call.reply.set_result(answer)
        if self._closed or answer.keep_s != self.idle_s:
            self.idle_s = 0.0 if self._closed else answer.keep_s
            self.end_idle()

    def broken(self, connection: Any, call: _ServerCall, wrong: str) -> None:
        """Send what was not sent whole once more; else it has failed."""
        call.connection = None
        error = connection.error
        if connection.unsent and not connection.begun:
            if call.again or call.reply.done():
                call.fail(_unsent(str(error or "it ended")))
                return
            call.again = True
            self.retried += 1
            self.forget()
            self.submit(call)
        elif wrong:
            call.fail(_not_http(wrong))
        else:
            why = None if error is None else getattr(error, "strerror", None) or error
            how = "closed the connection" if why is None else f"broke the connection ({why})"
            when = "in the middle of its answer" if connection.begun else "without an answer"
            call.fail(RemoteError(Fault.BROKEN, f"the remote server {how} {when}"))

    def unreachable(self, call: _ServerCall | None, error: Exception) -> None:
        """Fail a request for which there is no connection."""
        if call is not None:
            call.fail(_unreached(error))

    def close(self) -> None:
        """End the connections that are not in use; those in use end with their calls."""
        self._closed = True
        self.anew()
        if self._sweep is not None:
            self._sweep.cancel()


def _not_http(wrong: str) -> RemoteError:
    said = f"the remote server answered with what is not HTTP: {wrong}"
    return RemoteError(Fault.BROKEN, said)


def _unreached(error: Exception) -> RemoteError:
    said = f"the remote server cannot be reached: {connect_failure(error)}"
    return RemoteError(Fault.UNREACHABLE, said, unserved=True)


def _unsent(why: str) -> RemoteError:
    said = f"the request could not be sent to the remote server: {why}"
    return RemoteError(Fault.UNREACHABLE, said, unserved=True)
