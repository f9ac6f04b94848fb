"""Messages on their way in, and answers that wait to be read: what they hold, and for how long.

gRPC says nothing of a message before it has come whole, and until a message is asked for keeps no
more of it than 64 KiB. From then on it may hold all of it. So while messages that have been asked
for take their time, the kernel is asked how much has come on their connections, and that is what
they count in the account of all bodies.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import grpc.aio

from inferway.live.grpc.inference import CallError, refused
from inferway.live.headroom import Bodies
from inferway.live.http.compression import Beside, unpacking
from inferway.live.http.exchange import Limits
from inferway.protocol import RefusalError

# How often it is looked what has come of messages that take their time, and how old the counts may
# be from which a connection's are taken.
LOOK_S, SETTLE_S = 0.005, 1.0
FULL: Final = "the messages of all calls have no room for this one now"
# Most that a call may bring which needs no key: the name of a service.
OPEN_BYTES: Final = 16 * 1024
TOO_LONG: Final = f"the message is larger than the limit of {OPEN_BYTES} bytes"
# Address and port of the other end.
Peer = tuple[str, int]

_OPEN_FILES: Final = Path("/proc/self/fd")

# Bytes up to which an answer is not followed, as it fits a connection's window, and how often it is
# looked who reads others too slowly.
SMALLEST: Final = 64 * 1024
CUT_S: Final = 1.0


@dataclass(slots=True, eq=False)
class _Wire:
    """A connection on which messages take their time.

    `before` are the bytes that belong to none of these messages, `held` those in the account.
    """

    peer: Peer
    before: int
    held: int = 0
    arrivals: set[_Arrival] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Arrival:
    """A message that has been asked for, and when it was first seen to take its time."""

    context: Any
    keyless: bool
    looked_s: float = 0.0
    wire: _Wire | None = None
    refused: bool = False


class _Reading(NamedTuple):
    """Waits for a call's message; canceled after it has come, takes it all the same.

    gRPC would otherwise keep it for as long as the process lives.
    """

    context: Any

    def __await__(self) -> Generator[Any, None, Any]:
        reading = self.context.read()
        while True:
            try:
                awaited = reading.send(None)
            except StopIteration as stop:
                return stop.value
            try:
                yield awaited
            except asyncio.CancelledError:
                if awaited.done() and not awaited.cancelled():
                    with suppress(Exception, StopIteration):
                        reading.send(None)
                reading.close()
                raise


class CallTraffic:
    """Receives messages, and follows large answers until they have been read.

    Messages keep within the caps on one and on all that are held, answers within those of one
    client and of all: gRPC keeps an answer for as long as its client does not read on, and a call
    whose answer is being sent can no longer be ended. So the connection of a client that reads too
    slowly is cut. `port` is the own one of the connections.
    """

    port = 0
    _settled_s = 0.0
    _look_timer: asyncio.TimerHandle | None = None
    _cut_timer: asyncio.TimerHandle | None = None

    def __init__(self, bodies: Bodies, limits: Limits) -> None:
        self._bodies, self._limits, self._beside = bodies, limits, Beside()
        self._arriving: set[_Arrival] = set()
        self._wires: dict[Peer, _Wire] = {}
        self._totals: dict[Peer, int] = {}
        # Of answers that wait to be read, by the other end: how many bytes, and until when.
        self.unread: Counter[Peer] = Counter()
        self._due_s: dict[Peer, float] = {}

    async def receive(self, context: Any, *, keyless: bool = False) -> bytes:
        """Wait for the message of a call; that of one which needed no key must be short.

        The call is ended where the message takes too long or there is no room for it. RefusalError
        when it is too long for a call without a key; for a packed one, see `unpacking`.
        """
        arrival = _Arrival(context, keyless)
        self._arriving.add(arrival)
        if self._look_timer is None:
            self._look_timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        message: Any = b""
        try:
            message = await _Reading(context)
            if message is grpc.aio.EOF:  # there was none
                message = b""
                raise asyncio.CancelledError
        except grpc.aio.InternalError:
            # It was too large, which gRPC has said, or the client has gone.
            raise asyncio.CancelledError from None
        finally:
            self._arriving.discard(arrival)
            if arrival.wire is not None:
                self._leave(arrival, arrival.wire, len(message))
        if keyless and len(message) > OPEN_BYTES:
            raise RefusalError(413, TOO_LONG)
        # gRPC hands over what it does not unpack without a word. No message of the protocols begins
        # as gzip does, which protobuf has no such type for, nor as zlib does, with a field 15.
        if message[:2] == b"\x1f\x8b":
            return await self._unpack(message, b"gzip", keyless)
        if message[:1] == b"x" and int.from_bytes(message[:2]) % 31 == 0:
            return await self._unpack(message, b"deflate", keyless)
        return bytes(message)

    def follow(self, context: Any, size: int) -> None:
        """Bound an answer of so many bytes, which is about to be sent."""
        if size <= SMALLEST:
            return
        loop, peer = asyncio.get_running_loop(), peer_of(context.peer())
        due_s = self._due_s.setdefault(peer, loop.time() + self._limits.receive_s)
        self._due_s[peer] = due_s + size / self._limits.read_rate
        self.unread[peer] += size
        context.add_done_callback(lambda _: self._read(peer, size))
        while self.unread.total() > self._limits.bodies_bytes and len(self.unread) > 1:
            self._cut(self.unread.most_common(1)[0][0])
        if self._cut_timer is None:
            self._cut_timer = loop.call_later(CUT_S, self._cut_slow)

    def close(self) -> None:
        """Look no more at messages, and unpack none; answers are followed to their end."""
        self._beside.close()

    def end(self) -> None:
        """Follow answers no longer: the server has ended."""
        if self._cut_timer is not None:
            self._cut_timer.cancel()
        if self._look_timer is not None:
            self._look_timer.cancel()

    async def _unpack(self, packed: bytes, encoding: bytes, keyless: bool) -> bytes:
        limit, beyond = (OPEN_BYTES, TOO_LONG) if keyless else (self._limits.body_bytes, "")
        work = unpacking(packed, encoding, limit, beyond)
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            before, counted = counted, len(packed) + size
            if not self._bodies.reserve(counted - before):
                counted = before
                raise RefusalError(503, FULL)

        try:
            count(0)
            try:  # most messages end with the first step
                count(next(work))
            except StopIteration as end:
                return bytes(end.value)
            return bytes(await self._beside.result(work, count))
        finally:
            self._bodies.release(counted)

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s, limit_s = loop.time(), self._limits.receive_s
        # Most messages come at once, and are never looked at.
        slow = any(arrival.looked_s or arrival.keyless for arrival in self._arriving)
        if slow or now_s - self._settled_s > SETTLE_S:
            totals = received(self.port)
            for arrival in self._arriving:
                if arrival.wire is None:
                    peer = peer_of(arrival.context.peer())
                    if peer not in self._wires:
                        self._wires[peer] = _Wire(peer, self._totals.get(peer, 0))
                    arrival.wire = self._wires[peer]
                    arrival.wire.arrivals.add(arrival)
                if arrival.looked_s and now_s - arrival.looked_s > limit_s:
                    self._refuse([arrival], 504, f"the message took more than {limit_s} s")
            for wire in self._wires.values():
                self._weigh(wire, totals.get(wire.peer, wire.before))
            self._totals, self._settled_s = totals, now_s
        for arrival in self._arriving:
            arrival.looked_s = arrival.looked_s or now_s
        self._look_timer = loop.call_later(LOOK_S, self._look) if self._arriving else None

    def _leave(self, arrival: _Arrival, wire: _Wire, size: int) -> None:
        wire.arrivals.discard(arrival)
        wire.before += size
        given = min(wire.held, size) if wire.arrivals else wire.held
        wire.held -= given
        self._bodies.release(given)
        if not wire.arrivals:
            del self._wires[wire.peer]

    def _weigh(self, wire: _Wire, total: int) -> None:
        come, most = max(0, total - wire.before), len(wire.arrivals)
        if all(arrival.keyless for arrival in wire.arrivals):
            if come > most * OPEN_BYTES + 2 * self._limits.head_bytes:
                self._refuse(wire.arrivals, 413, TOO_LONG)
            return
        come = min(come, most * self._limits.body_bytes)
        if come <= wire.held:
            self._bodies.release(wire.held - come)
        elif not self._bodies.reserve(come - wire.held):
            self._refuse(wire.arrivals, 503, FULL)
            return
        wire.held = come

    def _refuse(self, arrivals: Iterable[_Arrival], status: int, reason: str) -> None:
        for arrival in arrivals:
            if not arrival.refused:
                arrival.refused = True
                self._beside.begin(self._end(arrival, refused(RefusalError(status, reason))))

    async def _end(self, arrival: _Arrival, error: CallError) -> None:
        # Whoever reads hears of it. Canceled there, it would leave a message that has come to
        # nobody.
        if arrival in self._arriving:
            with suppress(grpc.aio.AbortError, grpc.aio.InternalError):  # the first: it is done
                await arrival.context.abort(error.code, error.reason, error.trailing)

    def _read(self, peer: Peer, size: int) -> None:
        if peer in self._due_s:  # it has not been cut
            self.unread[peer] -= size
            if not self.unread[peer]:
                del self.unread[peer], self._due_s[peer]

    def _cut_slow(self) -> None:
        loop = asyncio.get_running_loop()
        for peer in [peer for peer, due_s in self._due_s.items() if loop.time() > due_s]:
            self._cut(peer)
        self._cut_timer = loop.call_later(CUT_S, self._cut_slow) if self._due_s else None

    def _cut(self, peer: Peer) -> None:
        """End the connection, whatever is on its way; nothing where there is none."""
        for wire, there in _wires(self.port):
            if there == peer:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)
        del self.unread[peer], self._due_s[peer]


def received(port: int) -> dict[Peer, int]:
    """Count the bytes that have come on each connection to an own port, by the other end.

    Empty where the kernel does not tell.
    """
    counts: dict[Peer, int] = {}
    for wire, peer in _wires(port):
        with suppress(OSError, struct.error):  # closed meanwhile, or an older kernel
            info = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            # There struct tcp_info of Linux 4.2 and newer has tcpi_bytes_received.
            counts[peer] = struct.unpack_from("=Q", info, 128)[0]
    return counts


def peer_of(text: str) -> Peer:
    """Read the other end of a call as gRPC writes it, such as ``ipv4:HOST:PORT``."""
    _, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdecimal() else 0


def _wires(port: int) -> Iterator[tuple[socket.socket, Peer]]:
    """Look through this process's connections with such a port; each is lent until the next."""
    try:
        files = list(_OPEN_FILES.iterdir())
    except OSError:
        return
    for file in files:
        with suppress(OSError):  # no socket, none that is connected, or closed meanwhile
            wire = socket.socket(fileno=int(file.name))
            try:
                internet = wire.family in (socket.AF_INET, socket.AF_INET6)
                if internet and wire.getsockname()[1] == port:
                    host, there = wire.getpeername()[:2]
                    yield wire, (_plain(host), there)
            finally:
                wire.detach()  # it is gRPC's own, and stays open


def _plain(host: str) -> str:
    return host.partition("%")[0].removeprefix("::ffff:")
