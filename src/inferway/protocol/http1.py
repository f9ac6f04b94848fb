"""One HTTP/1.1 client: answers read as they come, connections that are kept, a pool of them."""

from __future__ import annotations

import asyncio
import math
import select
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar, Final, cast

import httptools

# Bytes of an answer, and of its headers, after which the reading stops.
LONGEST_BODY, LONGEST_HEAD = 256 * 1024**2, 64 * 1024
# Connections that have been idle for less are used unasked.
FRESH_S: Final = 0.005
_LEAST_SWEEP_S: Final = 0.1
_JOINED: Final = 64 * 1024


class ClientConnection(asyncio.Protocol):
    """One kept connection, which carries one call at a time.

    Of an answer, `form` makes what its `headed` returns for the status, the headers by name in
    lower case, and the body; where it has a `whole`, that is given what came in one piece first,
    and leaves it to the parser with None. `answered` is told the connection, the answer, and
    whether the connection can take another call; `lost`, when it has ended, and why where something
    was wrong with what came.

    `call` is whose answer it waits for, None while idle, and `since_s`, which its owner keeps,
    since when it does either; `begun` is whether any of an answer has come, and `came` how many
    bytes have; `wrong` is what is wrong with these, in a sentence's part.
    """

    sentences: ClassVar[Mapping[str, str]] = {
        "garbage": "what it sent is no answer ({error})",
        "long head": "the headers of its answer are longer than {limit} bytes",
        "long body": "its answer is longer than {limit} bytes",
        "announced": "it announces {size} bytes, the limit is {limit}",
    }

    def __init__(
        self,
        form: Any,
        answered: Callable[[ClientConnection, Any, bool], None],
        lost: Callable[[ClientConnection, str], None],
    ) -> None:
        self._headed, self._whole = form.headed, getattr(form, "whole", None)
        self.answered, self.lost = answered, lost
        self._parser: Any = httptools.HttpResponseParser(self)
        self._poll = select.poll()
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []
        self._head_bytes = self._received = self.came = 0
        self._has_head = self.begun = False
        self.wrong, self.since_s = "", 0.0
        self.call: Any = None
        self.transport: Any = None

    def send(self, head: bytes, body: bytes | Sequence[bytes] = b"") -> None:
        """Write a request."""
        self.begun = False
        if not isinstance(body, bytes):
            self.transport.writelines((head, *body))
        elif len(body) <= _JOINED:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    def stale(self, now_s: float) -> bool:
        """Tell whether an idle connection can take no request: it has ended, or is about to.

        One that has been idle for a while is looked up in the kernel, for the loop may not have
        come to its end yet. A request that is written all the same may have been read.
        """
        if self.transport.is_closing():
            return True
        return now_s - self.since_s > FRESH_S and bool(self._poll.poll(0))

    def abort(self) -> None:
        """End the connection now."""
        self.transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self.transport = transport
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell the owner."""
        self.lost(self, self.wrong)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        # Before the first piece of an answer the parser keeps nothing, and need not see them all.
        if not self.begun and self.call is not None and self._whole is not None:
            answer = self._whole(data)
            if answer is not None:
                self.answered(self, answer, True)
                return
        self.begun = True
        self.came += len(data)
        if not self._has_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, ValueError) as error:
            said = str(error)[:120] or "no HTTP"
            self.wrong = self.wrong or self.sentences["garbage"].format(error=said)
        if not self._has_head and self._head_bytes > LONGEST_HEAD:
            self.wrong = self.sentences["long head"].format(limit=LONGEST_HEAD)
        if self.wrong:
            self.transport.abort()

    def end(self) -> None:
        """Take the end of the connection, which ends a body whose length nobody said."""
        if self._has_head and not self._headers.keys() & {b"content-length", b"transfer-encoding"}:
            self._hand(False)

    # What httptools calls.

    def on_message_begin(self) -> None:
        """Note what begins where nobody has asked: whose it is, nobody knows."""
        if self.call is None:
            self.wrong = "it answered what nobody asked"

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Count what comes from now on as the body."""
        self._has_head = True
        size = self._headers.get(b"content-length", b"")[:20]
        # The parser has checked that these are digits.
        if len(size) > 8 and int(size) > LONGEST_BODY:
            self.wrong = self.sentences["announced"].format(
                size=size.decode("latin-1"), limit=LONGEST_BODY
            )

    def on_body(self, chunk: bytes) -> None:
        """Keep a piece of the body."""
        self._received += len(chunk)
        if self._received > LONGEST_BODY:
            self.wrong = self.sentences["long body"].format(limit=LONGEST_BODY)
        else:
            self._chunks.append(chunk)

    def on_message_complete(self) -> None:
        """Hand the answer on, unless it is an interim one: the answer comes after that."""
        if not self.wrong:
            self._hand(self._parser.should_keep_alive())

    def _hand(self, keep: bool) -> None:
        status: int = self._parser.get_status_code()
        headers, body = self._headers, b"".join(self._chunks)
        self._headers, self._chunks = {}, []
        self._head_bytes = self._received = 0
        self._has_head = False
        if status >= 200:
            self.take(status, headers, body, keep)

    def take(self, status: int, headers: dict[bytes, bytes], body: bytes, keep: bool) -> None:
        """Hand a whole answer on; `keep` if the connection may carry another request."""
        self.answered(self, self._headed(status, headers, body), keep)


class ConnectionPool(ABC):
    """Connections to one server, opened when calls need them, and kept.

    A call goes out at once on an idle connection, or on one that is opened for it, up to `most`;
    only beyond that it waits. A server that takes no connection for `connect_s` is given up. A pool
    of one's own says how a call is written and what becomes of it: `write`, `answered`, `broken`,
    `unreachable`, `queued`, `full`; `form` makes answers, as `ClientConnection` has it. With a
    context `tls`, a certificate must hold `server_name`, or else the host.
    """

    # Connections that nothing has used for so long are closed.
    idle_s: float = math.inf
    connection_kind: type[ClientConnection] = ClientConnection

    def __init__(
        self,
        host: str,
        port: int,
        *,
        form: Any,
        most: int,
        connect_s: float,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.tls = tls
        self.host, self.port, self.server_name = host, port, server_name or host
        self._form, self._most, self._connect_s = form, most, connect_s
        self._idle: list[ClientConnection] = []
        self._busy: set[ClientConnection] = set()
        self._waiting: deque[Any] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        # Connections made so far.
        self.opened = 0

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept, for in this Python each question for the running loop is a call of the system.
        return asyncio.get_running_loop()

    # What a pool of one's own says.

    @abstractmethod
    def write(self, connection: ClientConnection, call: Any) -> None:
        """Write a call's request."""

    @abstractmethod
    def answered(self, call: Any, answer: Any, sent_s: float, now_s: float) -> None:
        """Take an answer; the times are on the monotonic clock."""

    @abstractmethod
    def broken(self, connection: ClientConnection, call: Any, wrong: str) -> None:
        """See to a call whose connection has ended before its answer."""

    @abstractmethod
    def unreachable(self, call: Any | None, error: Exception) -> None:
        """See to a call for which no connection can be made; None where none waits."""

    def queued(self, call: Any) -> None:  # noqa: B027 - a pool may have nothing to note
        """Note that a call waits for a connection, be it one that is opened for it."""

    def full(self) -> None:  # noqa: B027 - likewise
        """Note that calls wait for one of the connections that there are."""

    # What calls go through.

    def submit(self, call: Any) -> None:
        """Write a call on an idle connection, or on one that is opened for it."""
        idle, now_s = self._idle, monotonic()
        while idle:
            connection = idle.pop()
            if not connection.stale(now_s):
                self._write(connection, call, now_s)
                return
            connection.abort()
        self._waiting.append(call)
        self.queued(call)
        self._open()

    def adopt(self, connection: ClientConnection) -> None:
        """Keep a connection that has been made, for the next call."""
        connection.answered, connection.lost = self._take, self._lost
        self.opened += 1
        if self._closed:
            connection.abort()
        else:
            self._use(connection, monotonic())

    def end_idle(self) -> None:
        """End the connections that nothing has used for too long, now and when it is time again."""
        if self._sweep is not None:
            self._sweep.cancel()
        now_s, self._sweep, idle = monotonic(), None, self._idle
        # Those used last come last.
        while idle and now_s - idle[0].since_s >= self.idle_s:
            idle.pop(0).abort()
        if idle and not self._closed:
            left_s = idle[0].since_s + self.idle_s - now_s
            self._sweep = self._loop.call_later(max(_LEAST_SWEEP_S, left_s), self.end_idle)

    def withdraw(self, call: Any) -> None:
        """Forget a call that knows its connection; one that carries it is closed."""
        connection, call.connection = call.connection, None
        if connection is not None:
            connection.call = None
            self._busy.discard(connection)
            connection.abort()
        elif call in self._waiting:
            self._waiting.remove(call)

    def forget(self) -> None:
        """End the idle connections: whoever is at their other end may have come anew."""
        while self._idle:
            self._idle.pop().abort()

    def anew(self) -> None:
        """Give up connections that are being made, and idle ones."""
        self.forget()
        for task in tuple(self._opening):
            task.cancel()
        self._opening.clear()

    def _write(self, connection: ClientConnection, call: Any, now_s: float) -> None:
        connection.call, connection.since_s = call, now_s
        self._busy.add(connection)
        self.write(connection, call)

    def _open(self) -> None:
        opening = len(self._opening)
        if opening + len(self._busy) + len(self._idle) >= self._most:
            self.full()
        elif opening < len(self._waiting):
            task = self._loop.create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await self._loop.create_connection(
                    lambda: self.connection_kind(self._form, self._take, self._lost),
                    self.host,
                    self.port,
                    ssl=self.tls,
                    server_hostname=None if self.tls is None else self.server_name,
                )
        except (OSError, ValueError) as error:
            self._made()
            self.unreachable(self._waiting.popleft() if self._waiting else None, error)
            if self._waiting and not self._closed:
                self._open()
            return
        self._made()
        self.adopt(connection)

    def _made(self) -> None:
        # Whoever waits next needs a task of its own; this one is about to end.
        self._opening.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _use(self, connection: ClientConnection, now_s: float) -> None:
        """Write the next call that waits, or keep the connection for one."""
        if self._waiting:
            self._write(connection, self._waiting.popleft(), now_s)
            return
        connection.since_s = now_s
        self._idle.append(connection)
        # One timer for all: one for each connection would cost more than it saves.
        if self._sweep is None and self.idle_s < math.inf:
            self._sweep = self._loop.call_later(self.idle_s, self.end_idle)

    def _take(self, connection: ClientConnection, answer: Any, keep: bool) -> None:
        call, connection.call = connection.call, None
        sent_s, now_s = connection.since_s, monotonic()
        self._busy.discard(connection)
        if not keep:
            connection.abort()
            if self._waiting:
                self._open()
        else:
            self._use(connection, now_s)
        self.answered(call, answer, sent_s, now_s)

    def _lost(self, connection: ClientConnection, wrong: str) -> None:
        call, connection.call = connection.call, None
        if call is None:
            if connection in self._idle:
                self._idle.remove(connection)
            return
        self._busy.discard(connection)
        self.broken(connection, call, wrong)
        if self._waiting and not self._closed:
            self._open()


def connect_failure(error: Exception) -> str:
    """Say in a few words why there is no connection."""
    match error:
        case TimeoutError():
            return "no connection in time"
        case ConnectionRefusedError():
            return "connection refused"
        case ssl.SSLCertVerificationError():
            return f"its certificate does not pass: {error.verify_message}"
        case OSError() if error.strerror:
            return error.strerror
    return str(error) or type(error).__name__
