"""A listening port and its connections: HTTP/1.1 over httptools, responses in their order."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, cast

import httptools

from inferway.live.headroom import Bodies
from inferway.live.http.compression import Beside
from inferway.live.http.exchange import KEPT, LISTS, RETRY, Exchange, Limits, head_fault, whole
from inferway.live.security.keys import Denied, Guard, Role
from inferway.protocol.schema import long_json

# A refused client that sends nothing more for so long is cut off, and whoever goes on sending after
# so many times as long: it is to read the refusal before a reset.
LINGER_S: Final = 1.0
LINGERS: Final = 10
# Larger answers are written in pieces of so many bytes, as the client reads them.
PIECE: Final = 64 * 1024
# Answers that are no larger, refusals among them, always have a place.
_SMALL: Final = 2048

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _RefusedError(Exception):
    """Ends the reading of a request: status, reason, and header lines of the refusal."""


class Connection(asyncio.Protocol):
    """Parses requests, finds who handles them and writes the responses in order."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.exchanges: deque[Exchange] = deque()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._host = self._upgrade = b""
        self._head_bytes = self._received = self._cap = self._queued = self._allowed_bytes = 0
        self._hosts = 0
        self._buffer: bytearray | None = None
        self._deaf = self._heard = self._paused = self._gone = False
        self._backlog: deque[memoryview] = deque()
        # Bytes of answers that wait here: for the client to read, or for those before them.
        self.unread = 0
        # Ticks: of the last that came, of the present request's begin, since when the client takes
        # nothing, since when it has not taken all, and of the end.
        self._tick = self._begun = listener.tick
        self._stuck: int | None = None
        self._since: int | None = None
        self._closed: int | None = None
        # Whether the end, which waits for the backlog, lingers.
        self._ending: bool | None = None
        # Between nodes there are no keys, and so none to ask for.
        self._whole = listener.hops and listener.guard is None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast("asyncio.Transport", transport)
        connections = self.listener.connections
        if len(connections) >= self.listener.limits.connections:
            self._refuse_and_close(503, "too many connections are open", RETRY)
            return
        connections.add(self)
        if self.listener.draining:  # it was on its way when the listener closed
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Withdraw what the client no longer waits for, and keep nothing of it."""
        self.listener.connections.discard(self)
        self._deaf = True
        self._drop_current()
        self._drop_unread()
        self._parser = None  # each of the two holds the other
        waiting, self.exchanges = self.exchanges, deque()
        for exchange in waiting:
            self._release(exchange)
            if not exchange.answered and exchange.withdraw is not None:
                exchange.withdraw(exchange.request)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._deaf:
            self._heard = True
            return
        self._tick = self.listener.tick
        # Between two requests the parser keeps nothing, so that it need not see them all.
        if self._whole and self._current is None and self._take_whole(data):
            return
        rest = b""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is offered, and a server may ignore the wish (RFC 9110, 7.8). The
            # parser ends there: the body, if there is one, is another's, with a head of its own.
            self._parser = httptools.HttpRequestParser(self)
            rest = data[upgrade.args[0] :]
            if self._upgrade:
                framing, self._upgrade = self._upgrade, b""
                rest = b"POST / HTTP/1.1\r\n%s\r\n%s" % (framing, rest)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, _RefusedError):
                self._refuse_and_close(*cause.args)
            else:
                self.listener.broken(cause or error)
                self._refuse_and_close(500, "the server failed on this request")
        except httptools.HttpParserError as error:
            self._refuse_and_close(400, f"malformed HTTP: {error}")
        if rest:
            self.data_received(rest)

    def pause_writing(self) -> None:
        """Read no more from a client that does not read its answers."""
        self._stuck = self.listener.tick
        if self._since is None:
            self._since, self._allowed_bytes = self._stuck, 0
        self._read(False)

    def resume_writing(self) -> None:
        """Write what has waited, and read again."""
        self._stuck = None
        self._flush()
        if self._stuck is None and not self._deaf:
            self._regulate()

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        # Below an upgrade, what begins is the rest of the one that is there.
        if not self._deaf and self._current is None:
            self._current = exchange = Exchange(self)
            self.exchanges.append(exchange)
            self._begun = self._tick
            self._head_bytes = self._received = self._hosts = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        exchange = self._current
        if exchange is not None and not exchange.headed:
            exchange.target += url
            self._head_bytes += len(url)
            if self._head_bytes > self.listener.limits.head_bytes:
                raise _RefusedError(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few headers that matter."""
        listener, exchange = self.listener, self._current
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > (limit := listener.limits.head_bytes):
            raise _RefusedError(431, f"the headers are longer than {limit} bytes")
        if exchange is None or exchange.headed:
            return  # a trailer, say: whoever looked at the headers before us has not seen it
        name = name.lower()
        if name == b"content-length":
            # llhttp has checked that these are digits, and that others before them are zeros.
            self._received = -int(value[-20:])
        elif name in KEPT or (listener.hops and name.startswith(b"inferway-")):
            headers = exchange.headers
            if name in headers:
                if name in LISTS:
                    value = b"%s,%s" % (headers[name], value)
                elif name == b"authorization":
                    # Two are as good as none: whoever stands in front may check the other one.
                    value = b""
                self._hosts += name == b"host"
            headers[name] = value

    def on_headers_complete(self) -> None:
        """Decide who handles the request, and whether its body may come."""
        exchange = self._current
        if exchange is None or exchange.headed:
            return
        parser, listener, headers = self._parser, self.listener, exchange.headers
        exchange.method, version = parser.get_method(), parser.get_http_version()
        exchange.old = version == "1.0"
        exchange.keep_alive = parser.should_keep_alive() and not listener.draining
        host, transfer = headers.get(b"host"), headers.get(b"transfer-encoding")
        if host != self._host or self._hosts or version != "1.1" or transfer is not None:
            if (wrong := head_fault(version, host, self._hosts, transfer)) is not None:
                raise _RefusedError(*wrong)
            self._host = host or b""
        guard = listener.guard
        if guard is not None:
            key = headers.get(b"authorization", b"")
            get = self._transport.get_extra_info
            roles = guard.look(
                key, listener.role(exchange.target), lambda: str((get("peername") or ("",))[0])
            )
            if isinstance(roles, Denied):
                extra = b"Retry-After: %d\r\n" % roles.retry_s if roles.retry_s else b""
                if roles.status == 401:
                    extra = b'WWW-Authenticate: Bearer realm="inferway"\r\n'
                raise _RefusedError(roles.status, roles.reason, extra)
            exchange.roles = roles
        # Without raw tensors all of a body is JSON.
        raw, bodies = b"inference-header-content-length" in headers, listener.bodies
        self._cap = listener.limits.body_bytes if raw else listener.text_cap
        announced, self._received = -self._received, 0
        # It counts as it comes, for who announces much and sends nothing takes nothing.
        if announced > self._cap or bodies.held + announced > bodies.limit:
            bodies.refused += announced <= self._cap
            raise self._too_large(announced)
        if parser.should_upgrade():
            if exchange.method == b"CONNECT":
                allowed = b"Allow: GET, HEAD, POST\r\n"
                raise _RefusedError(405, "CONNECT is not answered: this is no proxy", allowed)
            if announced:
                self._upgrade = b"Content-Length: %d\r\n" % announced
            elif transfer is not None:
                self._upgrade = b"Transfer-Encoding: chunked\r\n"
        exchange.headed = True
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue":
            exchange.expects = self.exchanges[0] is not exchange
            if not exchange.expects and not exchange.old:
                self._write(CONTINUE)

    def on_body(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        exchange = self._current
        if exchange is None:
            return
        size = len(chunk)
        self._received += size
        if self._received > self._cap or not self.listener.bodies.reserve(size):
            raise self._too_large(self._received)
        if not exchange.size:
            exchange.body = chunk
        elif self._buffer is None:
            # One buffer, for a list of small chunks takes many times what it holds.
            self._buffer = bytearray(exchange.body) + chunk
        else:
            self._buffer += chunk
        exchange.size += size

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange = self._current
        if exchange is None or self._upgrade:
            return
        self._current = None
        if self._buffer is not None:
            exchange.body, self._buffer = bytes(self._buffer), None
        exchange.expects = False
        self._queued += exchange.size
        self.handle(exchange)

    # What exchanges and the listener call.

    def grow(self, exchange: Exchange, size: int) -> bool:
        """Count more bytes that a whole request holds until it is answered; False without room."""
        if not self.listener.bodies.reserve(size):
            return False
        exchange.size += size
        self._queued += size
        return True

    def handle(self, exchange: Exchange) -> None:
        """Find who answers a whole request, and do so again when its body has been unpacked.

        That is found now and not with the headers: meanwhile another site may have taken over.
        """
        listener, limits = self.listener, self.listener.limits
        if not exchange.keep_alive:
            self._deaf = True  # whatever follows was not asked for
        try:
            needed = 0 if listener.guard is None else listener.role(exchange.target)
            if needed and not needed & exchange.roles:
                # With the body something else may have come to be there.
                denied = Guard.other(needed)
                exchange.refuse(denied.status, denied.reason)
            else:
                listener.find(exchange.method, exchange.target)(exchange)
        except Exception as error:  # a failing handler must not leave its client waiting
            listener.broken(error)
            if not exchange.answered:
                self._deaf = True
                exchange.keep_alive = exchange.headed = False
                exchange.refuse(500, "the server failed on this request")
        many = len(self.exchanges) > limits.pipelined or self._queued > limits.queued_bytes
        if many or self._paused:
            self._regulate()

    def send(self, exchange: Exchange, reply: bytes) -> None:
        """Write a response, and those that waited for it."""
        if size := exchange.size:
            self._queued -= size
            self.listener.bodies.held -= size
            exchange.size, exchange.body = 0, b""
        unread = self.unread
        if unread and len(reply) > _SMALL:
            limit = self.listener.limits.queued_bytes
            if unread + len(reply) > limit:
                reason = f"{unread} bytes of answers of this connection wait to be read"
                exchange.refuse(503, f"the answer was dropped: {reason}", RETRY)
                return
        exchanges = self.exchanges
        if not exchanges or exchanges[0] is not exchange:
            exchange.reply = reply
            self._count(len(reply))
            return
        exchanges.popleft()
        if exchanges:
            replies = [reply]
            while exchanges and (following := exchanges[0]).reply is not None:
                replies.append(following.reply)
                self._count(-len(following.reply))
                exchange = exchanges.popleft()
            if exchanges and exchanges[0].expects and exchanges[0].headed:
                exchanges[0].expects = False
                replies.append(CONTINUE)
            reply = b"".join(replies)
        if unread or self._stuck is not None or len(reply) > PIECE:
            self._write(reply)
        else:  # most of them
            self._transport.write(reply)
        if not exchange.keep_alive:
            self._end(lingering=not exchange.headed)
        elif self._paused:
            self._regulate()

    def drain(self) -> None:
        """Close when the last answer has gone."""
        if self.exchanges:
            self.exchanges[-1].keep_alive = False
        else:
            self._end(lingering=False)

    def expire(self) -> None:
        """Close a connection that has been idle or slow for too long."""
        limits, tick = self.listener.limits, self.listener.tick
        slow_s = 0.0 if self._since is None else self._allowed_bytes / limits.read_rate
        for begun, more_s in ((self._closed, 0.0), (self._stuck, 0.0), (self._since, slow_s)):
            # The last bytes of one that has been closed may never be read.
            if begun is not None and tick - begun > limits.receive_s + more_s:
                self.abort()
                return
        if self._current is not None:
            if tick - self._begun > limits.receive_s:
                self._refuse_and_close(408, f"the request took more than {limits.receive_s} s")
        elif not (self.exchanges or self._backlog) and tick - self._tick > limits.idle_s:
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._drop_unread()
        self._transport.abort()

    def _take_whole(self, data: bytes) -> bool:
        match, listener = whole(data), self.listener
        if match is None:
            return False
        head, bodies, limits = match.end(), listener.bodies, listener.limits
        size = len(data) - head
        cap = listener.text_cap if match[14] is None else limits.body_bytes
        if head > limits.head_bytes or size > cap or bodies.held + size > bodies.limit:
            return False  # the parser's way refuses it
        bodies.held += size
        self._queued += size
        exchange = Exchange(self, b"POST", data[head:], size, {}, match[8], match[1], match)
        exchange.headed, exchange.keep_alive = True, not listener.draining
        self.exchanges.append(exchange)
        self.handle(exchange)
        exchange.match = None  # it keeps all that has come
        return True

    def _too_large(self, size: int) -> _RefusedError:
        bodies, limit = self.listener.bodies, self.listener.limits.body_bytes
        if size > self._cap:
            reason = f"the body is larger than the limit of {limit} bytes"
            return _RefusedError(413, long_json(self._cap) if self._cap < limit else reason)
        if size > bodies.limit:
            reason = f"the body is larger than all bodies together may be, {bodies.limit} bytes"
            return _RefusedError(413, reason)
        # Whoever forwards it gives it to another node.
        extra = b"Inferway-Unserved: 1\r\n" if self.listener.hops else b""
        return _RefusedError(503, bodies.reason, RETRY + extra)

    def _refuse_and_close(self, status: int, reason: str, extra: bytes = b"") -> None:
        if self._deaf:
            return
        self._deaf = True
        exchange = self._drop_current()
        if exchange is None or exchange.answered:
            exchange = Exchange(self)
            self.exchanges.append(exchange)
        exchange.keep_alive = exchange.headed = False
        exchange.refuse(status, reason, extra)

    def _drop_current(self) -> Exchange | None:
        """Keep nothing of a body that has come in part."""
        exchange, self._current, self._buffer = self._current, None, None
        if exchange is not None:
            self._release(exchange)
            exchange.body = b""
        return exchange

    def _release(self, exchange: Exchange) -> None:
        self.listener.bodies.release(exchange.size)
        exchange.size = 0

    def _write(self, data: bytes) -> None:
        if self._stuck is None and len(data) <= PIECE and not self._backlog:
            self._transport.write(data)
        elif not self._transport.is_closing():
            self._backlog.append(memoryview(data))
            self._count(len(data))
            self._flush()
            # Since when it is read too slowly, and so how much may be left, is known by now.
            self._allowed_bytes += len(data)
            if self._backlog:
                self.listener.relieve()

    def _flush(self) -> None:
        backlog = self._backlog
        while backlog and self._stuck is None:
            first = backlog.popleft()
            if len(first) > PIECE:
                backlog.appendleft(first[PIECE:])
                first = first[:PIECE]
            else:
                self._count(-len(cast("bytes", first.obj)))
            self._transport.write(first)
        if self._stuck is None:
            self._since = None
        if not backlog and self._ending is not None:
            lingering, self._ending = self._ending, None
            self._end(lingering)

    def _count(self, size: int) -> None:
        if not self._gone:
            self.unread += size
            self.listener.unread += size

    def _drop_unread(self) -> None:
        self._backlog.clear()
        self._count(-self.unread)
        self._gone = True

    def _end(self, lingering: bool) -> None:
        self._deaf = True
        if self._backlog:
            self._ending = lingering
        elif lingering and self._transport.can_write_eof():
            self._transport.write_eof()
            self._read(True)
            self._heard = True
            # Connections beyond the cap are not kept for what they may send.
            self._linger(LINGERS if self in self.listener.connections else 1)
        else:
            self._close()

    def _linger(self, times: int) -> None:
        if times and self._heard:
            self._heard = False
            asyncio.get_running_loop().call_later(LINGER_S, self._linger, times - 1)
        else:
            self._close()

    def _close(self) -> None:
        if self._closed is None:
            self._closed = self.listener.tick
        self._transport.close()

    def _regulate(self) -> None:
        """Read on or not, by what waits."""
        limits, waiting = self.listener.limits, len(self.exchanges)
        many = waiting > limits.pipelined or self._queued > limits.queued_bytes
        if many or self._stuck is not None:
            self._read(False)
        elif waiting <= limits.pipelined // 2:
            self._read(True)

    def _read(self, on: bool) -> None:
        """Go on reading, or pause."""
        if self._paused is on and not self._transport.is_closing():
            self._paused = not on
            (self._transport.resume_reading if on else self._transport.pause_reading)()


class Listener:
    """Accepts connections on one address, and keeps what they share.

    `find` gives the handler for a method and a request target, one that refuses for unknown ones,
    and `role` which of a key's roles a target asks for, an administrator's without it; both may be
    replaced at any time. `broken` is told of an exception in a handler, and `guard` looks at the
    keys of requests; None lets everybody in. `bodies` is the account of the bodies that are held,
    with other ports'. `beat` is called every second. With `hops` neighboring nodes ask here, whose
    hop headers count.
    """

    port = 0
    draining = False
    # Bytes of answers that clients have not read.
    unread = 0
    # Seconds, for timeouts, and the Date header: both move on once a second.
    tick, date = 0, b""
    _server: asyncio.AbstractServer | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        find: Callable[[bytes, bytes], Callable[[Exchange], None]],
        broken: Callable[[BaseException], None],
        limits: Limits | None = None,
        guard: Guard | None = None,
        role: Callable[[bytes], int] = lambda target: Role.ADMIN,
        *,
        bodies: Bodies | None = None,
        beat: Callable[[], None] | None = None,
        hops: bool = False,
    ) -> None:
        self.find, self.broken, self.hops = find, broken, hops
        self.guard, self.role, self.beat = guard, role, beat
        self.limits = limits or Limits()
        self.bodies = bodies or Bodies(self.limits.bodies_bytes)
        # Largest body without raw tensors, bytes.
        self.text_cap = min(self.limits.body_bytes, self.limits.json_bytes)
        self.connections: set[Connection] = set()
        self.beside = Beside()

    async def start(self, host: str, port: int, **options: Any) -> None:
        """Listen; port 0 takes a free one, told in `port`. OSError where it cannot be had."""
        place: dict[str, Any] = {"host": host, "port": port}
        if host == "::":
            # As gRPC's and Zenoh's: asyncio would leave IPv4 out.
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6
            place = {"sock": socket.create_server((host, port), family=family, dualstack_ipv6=both)}
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), **place, backlog=1024, **options
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._advance()

    def close(self) -> None:
        """Accept no more; open connections end with their last answer."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()

    def abort(self) -> None:
        """Close what is still open."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.abort()
        self.beside.close()

    def relieve(self) -> None:
        """Cut off whoever has left most answers unread, where all have left too many."""
        while self.unread > self.limits.bodies_bytes:
            behind = [connection for connection in self.connections if connection.unread]
            if len(behind) < 2:
                return  # one answer may be larger
            max(behind, key=lambda connection: connection.unread).abort()

    def _advance(self) -> None:
        self.tick += 1
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        for connection in list(self.connections):
            connection.expire()
        if self.beat is not None and self.tick > 1:
            self.beat()
        self._timer = asyncio.get_running_loop().call_later(1.0, self._advance)
