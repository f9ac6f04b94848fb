"""One client connection: HTTP/1.1 over httptools, responses in the order of the requests."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import httptools

from inferway.live.http.exchange import Exchange
from inferway.live.http.whole import DEADLINE, NODE, PATH, VARIANT, whole

if TYPE_CHECKING:
    from inferway.live.http.listener import Listener

OPEN = frozenset({b"/v2/health/live", b"/v2/health/ready"})
"""What is answered without a key: whoever starts and balances servers has none."""
_CHALLENGE = b'WWW-Authenticate: Bearer realm="inferway"\r\n'
LINGER_S = 1.0
"""How long a refused client may go on sending, so that it reads the refusal before a reset."""


class Connection(asyncio.Protocol):
    """Parses requests, finds who handles them and writes the responses in order."""

    __slots__ = (
        "_chunks",
        "_current",
        "_deaf",
        "_head_bytes",
        "_parser",
        "_paused",
        "_queued",
        "_received",
        "_stuck",
        "_transport",
        "_url",
        "_whole",
        "exchanges",
        "listener",
        "tick",
    )

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.exchanges: deque[Exchange] = deque()
        self.tick = listener.clock.tick
        self._parser = httptools.HttpRequestParser(self)
        self._current: Exchange | None = None
        self._url = b""
        self._head_bytes = 0
        self._received = 0
        self._chunks: list[bytes] | None = None
        self._deaf = False
        self._paused = False
        self._queued = 0
        self._stuck: int | None = None
        # Between nodes there are no keys, and so none to ask for.
        self._whole = listener.hops and listener.allowed is None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast("asyncio.Transport", transport)
        connections = self.listener.connections
        if len(connections) >= self.listener.limits.connections:
            self._refuse_and_close(503, "too many connections are open", b"Retry-After: 1\r\n")
            return
        connections.add(self)
        if self.listener.draining:  # it was on its way when the listener closed
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Withdraw what the client no longer waits for."""
        self.listener.connections.discard(self)
        self._deaf = True
        self._current = None
        waiting, self.exchanges = self.exchanges, deque()
        for exchange in waiting:
            if not exchange.answered and exchange.withdraw is not None:
                exchange.withdraw(exchange.request)

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        if self._deaf:
            return
        self.tick = self.listener.clock.tick
        # Between two requests the parser keeps nothing, so that it need not see them all.
        if self._whole and self._current is None and self._take_whole(data):
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # No other protocol is offered, and a server may ignore the wish (RFC 9110, 7.8).
            self._parser = httptools.HttpRequestParser(self)
            rest = data[upgrade.args[0] :]
            if rest:
                self.data_received(rest)
        except httptools.HttpParserCallbackError as error:
            self.listener.broken(error.__context__ or error)
            self._refuse_and_close(500, "the server failed on this request")
        except httptools.HttpParserError as error:
            self._refuse_and_close(400, f"malformed HTTP: {error}")

    def pause_writing(self) -> None:
        """Read no more from a client that does not read its answers."""
        self._stuck = self.listener.clock.tick
        self._pause()

    def resume_writing(self) -> None:
        """Read again."""
        self._stuck = None
        self._resume()

    # What httptools calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._deaf:
            return
        self._current = exchange = Exchange(self, self.tick)
        if self.listener.hops:
            exchange.hop = {}
        self.exchanges.append(exchange)
        self._url = b""
        self._head_bytes = self._received = 0
        self._chunks = None

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > self.listener.limits.head_bytes:
            self._refuse_and_close(414, "the request target is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the few headers that matter."""
        exchange = self._current
        if exchange is None:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self.listener.limits.head_bytes:
            limit = self.listener.limits.head_bytes
            self._refuse_and_close(431, f"the headers are longer than {limit} bytes")
            return
        if exchange.hop is not None and name[:9].lower() == b"inferway-":
            exchange.hop[name.lower()] = value
            return
        length = len(name)
        # Told apart by length first: most headers are of no interest.
        if length == 14:
            if name.lower() == b"content-length" and len(value) < 20:
                self._received = -int(value)  # llhttp has checked that these are digits
        elif length == 31:
            if name.lower() == b"inference-header-content-length":
                exchange.header_length = value
        elif length == 16:
            if name.lower() == b"content-encoding":
                exchange.encoding = value
        elif length == 15:
            if name.lower() == b"accept-encoding":
                exchange.accept_encoding = value
        elif length == 13:
            if name.lower() == b"authorization":
                # Two of them are as good as none: whoever stands in front may check the other one.
                exchange.authorization = b"" if exchange.authorization is not None else value
        elif length == 12:
            lower = name.lower()
            if lower == b"x-request-id":
                exchange.given_id = value
            elif lower == b"content-type":
                exchange.content_type = value
        elif length == 11:
            if name.lower() == b"traceparent":
                exchange.traceparent = value
        elif length == 10:
            if name.lower() == b"tracestate":
                before = exchange.tracestate
                exchange.tracestate = value if before is None else b"%s,%s" % (before, value)
        elif length == 4:
            if name.lower() == b"host":
                exchange.host = value
        elif length == 6 and name.lower() == b"expect":
            exchange.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Decide who handles the request, and whether its body may come."""
        exchange = self._current
        if exchange is None:
            return
        parser = self._parser
        exchange.method = parser.get_method()
        exchange.old = parser.get_http_version() == "1.0"
        exchange.keep_alive = parser.should_keep_alive() and not self.listener.draining
        allowed = self.listener.allowed
        if (
            allowed is not None
            and not allowed(exchange.authorization or b"")
            and self._url.partition(b"?")[0] not in OPEN
        ):
            self._refuse_and_close(401, "the request needs a valid key", _CHALLENGE)
            return
        announced, self._received = -self._received, 0
        if announced > self.listener.limits.body_bytes:
            self._too_large()
            return
        exchange.headed = True
        if exchange.expects and self.exchanges[0] is exchange:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            exchange.expects = False

    def on_body(self, chunk: bytes) -> None:
        """Take a piece of the body."""
        exchange = self._current
        if exchange is None:
            return
        self._received += len(chunk)
        if self._received > self.listener.limits.body_bytes:
            self._too_large()
        elif self._chunks is not None:
            self._chunks.append(chunk)
        elif exchange.body:
            self._chunks = [cast("bytes", exchange.body), chunk]
        else:
            exchange.body = chunk

    def on_message_complete(self) -> None:
        """The request is whole."""
        exchange = self._current
        if exchange is None:
            return
        self._current = None
        if self._chunks is not None:
            exchange.body = b"".join(self._chunks)
            self._chunks = None
        exchange.expects = False
        self._handle(exchange, self._received)

    # What exchanges and the listener call.

    def occupy(self, exchange: Exchange, size: int) -> None:
        """Count what an exchange holds in memory until it is answered, in bytes."""
        self._queued += size - exchange.size
        exchange.size = size

    def send(self, exchange: Exchange, reply: bytes) -> None:
        """Write a response, and those that waited for it."""
        exchanges = self.exchanges
        if not exchanges or exchanges[0] is not exchange:
            exchange.reply = reply
            return
        exchanges.popleft()
        self._queued -= exchange.size
        if exchanges and exchanges[0].reply is not None:
            replies = [reply]
            while exchanges and (following := exchanges[0]).reply is not None:
                replies.append(following.reply)
                exchange = exchanges.popleft()
                self._queued -= exchange.size
            reply = b"".join(replies)
        if exchanges and exchanges[0].expects and exchanges[0].headed:
            exchanges[0].expects = False
            reply += b"HTTP/1.1 100 Continue\r\n\r\n"
        self._transport.write(reply)
        if not exchange.keep_alive:
            self._end(lingering=not exchange.headed)
        elif self._paused:
            limits = self.listener.limits
            if len(exchanges) <= limits.pipelined // 2 and self._queued <= limits.queued_bytes:
                self._resume()

    def drain(self) -> None:
        """Close when the last answer has gone."""
        if not self.exchanges:
            self._transport.close()
            return
        last = self.exchanges[-1]
        last.keep_alive = False

    def expire(self) -> None:
        """Close a connection that has been idle or slow for too long."""
        limits, tick = self.listener.limits, self.listener.clock.tick
        if self._stuck is not None and tick - self._stuck > limits.receive_s:
            self._transport.abort()
            return
        current = self._current
        if current is not None:
            if tick - current.tick > limits.receive_s:
                self._refuse_and_close(408, f"the request took more than {limits.receive_s} s")
        elif not self.exchanges and tick - self.tick > limits.idle_s:
            self._transport.close()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def _take_whole(self, data: bytes) -> bool:
        found, limits = whole(data), self.listener.limits
        if found is None:
            return False
        head = found.end()
        size = len(data) - head
        if head > limits.head_bytes or size > limits.body_bytes:
            return False  # the parser's way refuses it
        self._url, node, variant, path, left, carried, *given = found.groups()
        exchange = Exchange(self, self.tick)
        self.exchanges.append(exchange)
        exchange.hop = {NODE: node, VARIANT: variant, PATH: path}
        if left is not None:
            exchange.hop[DEADLINE] = left
        exchange.carried = carried
        (
            exchange.given_id,
            exchange.traceparent,
            exchange.tracestate,
            exchange.content_type,
            exchange.encoding,
            exchange.header_length,
            exchange.accept_encoding,
            _,
        ) = given
        exchange.method, exchange.body = b"POST", data[head:]
        exchange.headed, exchange.keep_alive = True, not self.listener.draining
        self._handle(exchange, size)
        return True

    def _handle(self, exchange: Exchange, size: int) -> None:
        if not exchange.keep_alive:
            self._deaf = True  # whatever follows was not asked for
        self.occupy(exchange, size)
        # Found now and not with the headers: meanwhile another site may have taken over.
        try:
            self.listener.find(exchange.method, self._url)(exchange)
        except Exception as error:  # a failing handler must not leave its client waiting
            self.listener.broken(error)
            if not exchange.answered:
                self._deaf = True
                exchange.keep_alive = exchange.headed = False
                exchange.refuse(500, "the server failed on this request")
        limits = self.listener.limits
        if len(self.exchanges) > limits.pipelined or self._queued > limits.queued_bytes:
            self._pause()

    def _too_large(self) -> None:
        limit = self.listener.limits.body_bytes
        self._refuse_and_close(413, f"the body is larger than the limit of {limit} bytes")

    def _refuse_and_close(self, status: int, reason: str, extra: bytes = b"") -> None:
        if self._deaf:
            return
        self._deaf = True
        exchange, self._current = self._current, None
        if exchange is None or exchange.answered:
            exchange = Exchange(self, self.tick)
            self.exchanges.append(exchange)
        exchange.keep_alive = False
        exchange.headed = False
        exchange.refuse(status, reason, extra)

    def _end(self, lingering: bool) -> None:
        self._deaf = True
        if not lingering or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        self._resume()
        self.listener.loop.call_later(LINGER_S, self._transport.close)

    def _pause(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
