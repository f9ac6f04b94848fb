"""One client connection: HTTP/1.1 over httptools, responses in the order of the requests."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Any, Final, cast

import httptools

from inferway.live.http.exchange import (
    DEADLINE,
    NODE,
    PATH,
    PREDICTED,
    RETRY,
    VARIANT,
    Exchange,
    Port,
    whole,
)
from inferway.live.security.keys import Denied
from inferway.protocol.refusal import long_json

LINGER_S: Final = 1.0
"""How long a refused client may send nothing more before its connection is closed."""
LINGERS: Final = 10
"""How many times so long it may go on sending, so that it reads the refusal before a reset."""
PIECE: Final = 64 * 1024
"""Larger answers are written in pieces of so many bytes, as the client reads them."""
_SMALL: Final = 2048
"""Answers that are no larger, refusals among them, always have a place."""

_HOST: Final = re.compile(rb"(?:[!$&-.0-9;=A-Z_a-z~%]*|\[[0-9A-Za-z:.%]+\])(?::[0-9]*)?")
_CHALLENGE: Final = b'WWW-Authenticate: Bearer realm="inferway"\r\n'
_METHODS: Final = b"Allow: GET, HEAD, POST\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNSERVED: Final = b"Inferway-Unserved: 1\r\n"
_FIELDS: Final = {
    b"content-type": "content_type",
    b"accept-encoding": "accept_encoding",
    b"x-request-id": "given_id",
    b"traceparent": "traceparent",
}
"""Headers that an exchange keeps as they are, by its fields."""
_LISTS: Final = {
    b"inference-header-content-length": "header_length",
    b"content-encoding": "encoding",
    b"transfer-encoding": "transfer",
    b"tracestate": "tracestate",
}
"""Headers of which several lines are joined by commas."""


class _RefusedError(Exception):
    """Ends the reading of a request: status, reason, and header lines of the refusal."""


class Connection(asyncio.Protocol):
    """Parses requests, finds who handles them and writes the responses in order."""

    def __init__(self, listener: Port) -> None:
        self.listener = listener
        self.exchanges: deque[Exchange] = deque()
        self.tick = listener.tick
        self._parser: Any = httptools.HttpRequestParser(self)
        self._head: Exchange | None = None
        """The one whose header lines come; none once they are whole."""
        self._current: Exchange | None = None
        self._url = self._host = self._upgrade = b""
        self._head_bytes = self._received = self._cap = self._queued = self._allowed_bytes = 0
        self._buffer: bytearray | None = None
        self._resumed = self._deaf = self._heard = self._paused = self._gone = False
        self._backlog: deque[memoryview] = deque()
        self.unread = 0
        """Bytes of answers that wait here: for the client to read, or for those before them."""
        self._stuck: int | None = None
        self._since: int | None = None
        self._ending: bool | None = None
        self._closed: int | None = None
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
        self.tick = self.listener.tick
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
                framing, self._upgrade, self._resumed = self._upgrade, b"", True
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
        self._pause()

    def resume_writing(self) -> None:
        """Write what has waited, and read again."""
        self._stuck = None
        self._flush()
        if self._stuck is None:
            self._since = None
            if not self._deaf:
                self._regulate()

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._deaf or self._resumed:
            return
        self._head = self._current = exchange = Exchange(self, self.tick)
        if self.listener.hops:
            exchange.hop = {}
        self.exchanges.append(exchange)
        self._url = b""
        self._head_bytes = self._received = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        if self._resumed:
            return
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self.listener.limits.head_bytes:
            raise _RefusedError(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few headers that matter."""
        self._head_bytes += len(name) + len(value)
        limit = self.listener.limits.head_bytes
        if self._head_bytes > limit:
            raise _RefusedError(431, f"the headers are longer than {limit} bytes")
        exchange = self._head
        if exchange is None:
            return  # a trailer, say: whoever looked at the headers before us has not seen it
        if exchange.hop is not None and name[:9].lower() == b"inferway-":
            exchange.hop[name.lower()] = value
            return
        lower = name.lower()
        if lower == b"content-length":
            # llhttp has checked that these are digits, and that others before them are zeros.
            self._received = -int(value[-20:])
        elif lower == b"host":
            exchange.host = value
            exchange.hosts += 1
        elif (field := _FIELDS.get(lower)) is not None:
            setattr(exchange, field, value)
        elif (field := _LISTS.get(lower)) is not None:
            before = getattr(exchange, field)
            setattr(exchange, field, value if before is None else b"%s,%s" % (before, value))
        elif lower == b"authorization":
            # Two of them are as good as none: whoever stands in front may check the other one.
            exchange.authorization = b"" if exchange.authorization is not None else value
        elif lower == b"expect":
            exchange.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Decide who handles the request, and whether its body may come."""
        exchange, self._head = self._head, None
        if exchange is None:
            self._resumed = False
            return
        parser, listener = self._parser, self.listener
        exchange.method = parser.get_method()
        version = parser.get_http_version()
        exchange.old = version == "1.0"
        exchange.keep_alive = parser.should_keep_alive() and not listener.draining
        plain = version == "1.1" and exchange.hosts == 1 and exchange.host == self._host
        if not plain or exchange.transfer is not None:
            _check_head(exchange, version)
            self._host = exchange.host
        guard = listener.guard
        if guard is not None:
            roles = guard.look(
                exchange.authorization or b"", listener.role(self._url), self._client
            )
            if isinstance(roles, Denied):
                extra = b"Retry-After: %d\r\n" % roles.retry_s if roles.retry_s else b""
                extra = _CHALLENGE if roles.status == 401 else extra
                raise _RefusedError(roles.status, roles.reason, extra)
            exchange.roles = roles
        # Without raw tensors all of a body is JSON.
        text = exchange.header_length is None
        self._cap = listener.text_cap if text else listener.limits.body_bytes
        announced = -self._received
        if announced:
            self._received = 0
            # It counts as it comes, for who announces much and sends nothing takes nothing.
            bodies = listener.bodies
            if announced > self._cap or bodies.held + announced > bodies.limit:
                bodies.refused += announced <= self._cap
                raise self._too_large(announced)
        if parser.should_upgrade():
            if exchange.method == b"CONNECT":
                raise _RefusedError(405, "CONNECT is not answered: this is no proxy", _METHODS)
            if announced or exchange.transfer is not None:
                self._upgrade = b"Transfer-Encoding: chunked\r\n"
                if announced:
                    self._upgrade = b"Content-Length: %d\r\n" % announced
        exchange.headed = True
        if exchange.expects and self.exchanges[0] is exchange:
            exchange.expects = False
            if not exchange.old:
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
        if exchange.size:
            exchange.size += size
            if self._buffer is None:
                # One buffer, for a list of small chunks takes many times what it holds.
                self._buffer = bytearray(exchange.body)
            self._buffer += chunk
        else:
            exchange.size, exchange.body = size, chunk

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange = self._current
        if exchange is None or self._upgrade:
            return
        self._current = None
        if self._buffer is not None:
            exchange.body = bytes(self._buffer)
            self._buffer = None
        exchange.expects = False
        self._handle(exchange, self._url)

    # What exchanges and the listener call.

    def grow(self, exchange: Exchange, size: int) -> bool:
        """Count more bytes that a whole request holds until it is answered; False without room."""
        if not self.listener.bodies.reserve(size):
            return False
        exchange.size += size
        self._queued += size
        return True

    def again(self, exchange: Exchange) -> None:
        """Find once more who answers a whole request: its body has been unpacked."""
        self._find(exchange)
        self._regulate()

    def send(self, exchange: Exchange, reply: bytes) -> None:
        """Write a response, and those that waited for it."""
        size = exchange.size
        if size:
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
        current = self._current
        if current is not None:
            if tick - current.tick > limits.receive_s:
                self._refuse_and_close(408, f"the request took more than {limits.receive_s} s")
        elif not self.exchanges and tick - self.tick > limits.idle_s:
            self._close()

    def abort(self) -> None:
        """Close now."""
        self._drop_unread()
        self._transport.abort()

    def _take_whole(self, data: bytes) -> bool:
        match, listener = whole(data), self.listener
        if match is None:
            return False
        head = match.end()
        size = len(data) - head
        cap = listener.text_cap if match[13] is None else listener.limits.body_bytes
        bodies = listener.bodies
        if head > listener.limits.head_bytes or size > cap or bodies.held + size > bodies.limit:
            return False  # the parser's way refuses it
        bodies.held += size
        exchange = Exchange(self, self.tick, b"POST", data[head:], size)
        self.exchanges.append(exchange)
        target, node, variant, path, left, predicted, exchange.carried, *given, _ = match.groups()
        exchange.hop = hop = {NODE: node, VARIANT: variant, PATH: path}
        if left is not None:
            hop[DEADLINE] = left
        if predicted is not None:
            hop[PREDICTED] = predicted
        (
            exchange.given_id,
            exchange.traceparent,
            exchange.tracestate,
            exchange.content_type,
            exchange.encoding,
            exchange.header_length,
            exchange.accept_encoding,
        ) = given
        exchange.headed, exchange.keep_alive = True, not listener.draining
        self._handle(exchange, target)
        return True

    def _handle(self, exchange: Exchange, target: bytes) -> None:
        if not exchange.keep_alive:
            self._deaf = True  # whatever follows was not asked for
        self._queued += exchange.size
        # Found now and not with the headers: meanwhile another site may have taken over.
        exchange.target = target
        self._find(exchange)
        limits = self.listener.limits
        if len(self.exchanges) > limits.pipelined or self._queued > limits.queued_bytes:
            self._pause()

    def _find(self, exchange: Exchange) -> None:
        listener = self.listener
        if listener.guard is not None:
            # With the body something else may have come to be there.
            needed = listener.role(exchange.target)
            if needed and not needed & exchange.roles:
                denied = listener.guard.other(needed)
                exchange.refuse(denied.status, denied.reason)
                return
        try:
            listener.find(exchange.method, exchange.target)(exchange)
        except Exception as error:  # a failing handler must not leave its client waiting
            self.listener.broken(error)
            if not exchange.answered:
                self._deaf = True
                exchange.keep_alive = exchange.headed = False
                exchange.refuse(500, "the server failed on this request")

    def _client(self) -> str:
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def _too_large(self, size: int) -> _RefusedError:
        bodies, limit = self.listener.bodies, self.listener.limits.body_bytes
        if size > self._cap:
            reason = f"the body is larger than the limit of {limit} bytes"
            return _RefusedError(413, long_json(self._cap) if self._cap < limit else reason)
        if size > bodies.limit:
            reason = f"the body is larger than all bodies together may be, {bodies.limit} bytes"
            return _RefusedError(413, reason)
        # Whoever forwards it gives it to another node.
        extra = _UNSERVED if self.listener.hops else b""
        return _RefusedError(503, bodies.reason, RETRY + extra)

    def _refuse_and_close(self, status: int, reason: str, extra: bytes = b"") -> None:
        if self._deaf:
            return
        self._deaf = True
        exchange = self._drop_current()
        if exchange is None or exchange.answered:
            exchange = Exchange(self, self.tick)
            self.exchanges.append(exchange)
        exchange.keep_alive = exchange.headed = False
        exchange.refuse(status, reason, extra)

    def _drop_current(self) -> Exchange | None:
        """Keep nothing of a body that has come in part."""
        exchange, self._head, self._current, self._buffer = self._current, None, None, None
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
            if self._since is None:
                self._since, self._allowed_bytes = self.listener.tick, 0
            self._allowed_bytes += len(data)
            self._backlog.append(memoryview(data))
            self._count(len(data))
            self._flush()
            if self._backlog:
                self._pause()
                self.listener.relieve()
            elif self._stuck is None:
                self._since = None

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
            return
        if not lingering or not self._transport.can_write_eof():
            self._close()
            return
        self._transport.write_eof()
        self._resume()
        self._heard = True
        # Connections beyond the cap are not kept for what they may send.
        self._linger(LINGERS if self in self.listener.connections else 1)

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
        if (
            self._stuck is not None
            or self._backlog
            or waiting > limits.pipelined
            or self._queued > limits.queued_bytes
        ):
            self._pause()
        elif waiting <= limits.pipelined // 2:
            self._resume()

    def _pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()


def _check_head(exchange: Exchange, version: str) -> None:
    """Refuse a head that is wrong (RFC 9112, 3.2, 6.1 and 6.3)."""
    if version not in ("1.0", "1.1"):
        raise _RefusedError(400, f"malformed HTTP: version {version} is not spoken here; 1.1 is")
    if exchange.hosts > 1:
        raise _RefusedError(400, f"the request has {exchange.hosts} Host headers, expected one")
    if not exchange.hosts and version == "1.1":
        raise _RefusedError(400, "the request has no Host header")
    if _HOST.fullmatch(exchange.host) is None:
        shown = exchange.host[:64].decode("latin-1")
        raise _RefusedError(
            400, f"the Host header is {shown!r}, expected a host and perhaps a port"
        )
    if exchange.transfer is None:
        return
    if exchange.old:
        raise _RefusedError(400, "a request of HTTP/1.0 has no Transfer-Encoding")
    codings = [c for part in exchange.transfer.lower().split(b",") if (c := part.strip())]
    if codings[-1:] != [b"chunked"]:
        raise _RefusedError(400, "the last Transfer-Encoding of a request must be chunked")
    if len(codings) > 1:
        shown = codings[0][:32].decode("latin-1")
        raise _RefusedError(501, f"transfer encoding {shown!r} is not offered; chunked alone is")
