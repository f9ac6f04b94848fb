"""The kept connections to one neighbor."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar, Final, cast

from inferway.live.hops.suspicion import LEAST_S, STALL_BYTES, STALL_S, suspect_after_s
from inferway.live.hops.wire import Answer, Failure, Wire

CONNECTIONS: Final = 512
"""Of one pool; what would need more waits for one of them."""
CONNECT_S: Final = 1.0
"""A neighbor that takes no connection for so long is given up."""
IDLE_S: Final = 60.0
"""Idle connections are closed before the neighbor does (`http.limits`): a request that meets a
closing connection is lost."""
SWEEP_S: Final = 4.0
"""Time between two looks at which are to be closed."""
TICK_S: Final = 0.1
"""Shortest time between two looks at what is out."""


class Sending:
    """One request on its way to a neighbor and back.

    Attributes
    ----------
    head, body
        What is written.
    done
        Called once with the answer or the failure, unless it is canceled; never before the call
        that made it has returned.
    wire
        The connection that carries it; None before and after.
    timer
        What goes on with it, where it waits for an emulated latency.
    late
        Whether its answer is to be late by half of an emulated latency, as it was.
    ended
        Whether it has been answered, has failed or has been canceled.
    predicted_s
        How long it was predicted to take, s; 0 where nothing was.
    patience_s
        How long the neighbor may have it, s.
    since_s
        Since when it waits for a connection, on the monotonic clock, where it had to.
    """

    __slots__ = (
        "_pool",
        "body",
        "done",
        "ended",
        "head",
        "late",
        "patience_s",
        "predicted_s",
        "since_s",
        "timer",
        "wire",
    )
    since_s: float
    asks: ClassVar[bool] = False
    """Whether it is a question about health: its answer says nothing of how requests fare."""

    def __init__(
        self,
        pool: ConnectionPool,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Answer | Failure], None],
        predicted_s: float = 0.0,
        patience_s: float = math.inf,
    ) -> None:
        self._pool = pool
        self.predicted_s, self.patience_s = predicted_s, patience_s
        self.head, self.body, self.done = head, body, done
        self.wire: Wire | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ended = self.late = False

    def cancel(self) -> None:
        """Nobody waits for the answer: the connection that carries the request is closed."""
        if self.ended:
            return
        self.ended = True
        if self.timer is not None:
            self.timer.cancel()
        self._pool.withdraw(self)


class Question(Sending):
    """One question about health on its way."""

    __slots__ = ()
    asks: ClassVar[bool] = True


class ConnectionPool:
    """Connections that are opened when requests need them, and kept.

    Parameters
    ----------
    name
        Of the neighbor.
    host, port
        Where it listens for hops.
    tls
        Context of encrypted connections; None for plain ones.
    server_name
        That its certificate must hold; None for the host.
    patience_s
        Longest wait for any answer.
    answered
        Told of each what was answered, when it was written and when the answer came, on the
        monotonic clock: a loop's may go by milliseconds.
    failed
        Told of each that has failed why, and whether the neighbor is certainly of no use; of one
        that was out for too long, whether nothing has been answered since it was sent.
    waited
        Told, again and again while requests are out, what time it is and when the first of them
        should have been answered at the latest, both on the monotonic clock.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        server_name: str | None,
        patience_s: float,
        answered: Callable[[Sending, Answer, float, float], None],
        failed: Callable[[Sending, Failure, bool], None],
        waited: Callable[[float, float], None],
    ) -> None:
        self.name, self.tls = name, tls
        self._host, self._port, self._server_name = host, port, server_name or host
        self._options: dict[str, Any] = {}
        if tls is not None:
            self._options = {"ssl": tls, "server_hostname": self._server_name}
        self.patience_s = patience_s
        self.heard_s = 0.0
        """When a request was answered last; kept by whoever knows which count."""
        self._answered, self._failed, self._waited = answered, failed, waited
        self._idle: list[Wire] = []
        self._busy: set[Wire] = set()
        self._waiting: deque[Sending] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._begun: dict[Sending, tuple[int, float]] = {}
        """Of answers that have begun, how many bytes of theirs had come when enough last had."""
        self._closed = False
        self.opened = 0
        """Connections made so far."""

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept, for in this Python each question for the running loop is a call of the system.
        return asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._busy) + len(self._waiting)

    def send(self, sending: Sending) -> None:
        """Write a request on an idle connection, or on one that is opened for it."""
        idle = self._idle
        while idle:
            wire = idle.pop()
            if not wire.stale(monotonic()):
                self._write(wire, sending)
                return
            wire.abort()
        sending.since_s = monotonic()
        self._waiting.append(sending)
        self._look_after(LEAST_S)
        self._open()

    async def reach(self, wire: Wire) -> None:
        """Connect a wire of somebody else's, not encrypted yet.

        Raises
        ------
        OSError
            When that cannot be.
        """
        await self._loop.create_connection(lambda: wire, self._host, self._port)

    async def encrypt(self, wire: Wire) -> None:
        """Encrypt a wire that has just been connected, where connections are.

        Raises
        ------
        OSError
            When that cannot be.
        """
        if self.tls is not None:
            before = wire.transport
            transport = await self._loop.start_tls(
                before, wire, self.tls, server_hostname=self._server_name
            )
            if transport is None:
                raise ConnectionResetError("the connection ended")
            wire.connection_made(transport)

    def adopt(self, wire: Wire) -> None:
        """Keep a connection that somebody else has made, for the next request."""
        wire.belong(self._take, self._lost)
        self.opened += 1
        if self._closed:
            wire.abort()
        elif self._waiting:
            self._write(wire, self._waiting.popleft())
        else:
            self._keep(wire, monotonic())

    def withdraw(self, sending: Sending) -> None:
        """Forget a request; a connection that carries it is closed."""
        wire, sending.wire = sending.wire, None
        if wire is not None:
            wire.sending = None
            self._busy.discard(wire)
            wire.abort()
        elif sending in self._waiting:
            self._waiting.remove(sending)

    def drop(self, reason: str) -> None:
        """End every connection; what they carry has failed, and so has what waits."""
        self.forget()
        for wire in list(self._busy):
            self._fail_wire(wire, Failure(reason))
        self.refuse(reason)

    def forget(self) -> None:
        """End the idle connections: whoever is at their other end may have come anew."""
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.abort()

    def anew(self) -> None:
        """Give up connections that are being made, and idle ones."""
        self.forget()
        for task in tuple(self._opening):
            task.cancel()
        self._opening.clear()

    def refuse(self, reason: str) -> None:
        """Fail what waits for a connection."""
        waiting, self._waiting = self._waiting, deque()
        for sending in waiting:
            self._failed(sending, Failure(reason, unserved=True), False)

    def close(self) -> None:
        """End every connection, for good."""
        self._closed = True
        for timer in (self._sweep, self._guard):
            if timer is not None:
                timer.cancel()
        self._sweep = self._guard = None
        for task in tuple(self._opening):
            task.cancel()
        self.drop(f"the connections to node {self.name} have been closed")

    def _write(self, wire: Wire, sending: Sending) -> None:
        wire.sending, sending.wire = sending, wire
        wire.since_s = monotonic()
        self._busy.add(wire)
        if self._guard is None:
            self._look_after(LEAST_S)
        wire.send(sending.head, sending.body)

    def _open(self) -> None:
        most = CONNECTIONS - len(self._busy) - len(self._idle)
        if len(self._opening) < min(len(self._waiting), most):
            task = self._loop.create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, wire = await self._loop.create_connection(
                    lambda: Wire(self._take, self._lost), self._host, self._port, **self._options
                )
        except (OSError, TimeoutError) as error:
            self._unreachable(f"node {self.name} cannot be reached: {said(error)}")
            return
        self.opened += 1
        self._made()
        if self._closed:
            wire.abort()
        elif self._waiting:
            self._write(wire, self._waiting.popleft())
        else:
            self._keep(wire, monotonic())

    def _made(self) -> None:
        # Whoever waits next needs a task of its own; this one is about to end.
        self._opening.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    def _unreachable(self, reason: str) -> None:
        self._made()
        if self._waiting:
            self._failed(self._waiting.popleft(), Failure(reason, unserved=True), True)
        if self._waiting and not self._closed:
            self._open()

    def _keep(self, wire: Wire, now_s: float) -> None:
        wire.since_s = now_s
        self._idle.append(wire)
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._look)

    def _take(self, wire: Wire, answer: Answer, keep: bool) -> None:
        sending: Sending = wire.sending
        wire.sending = sending.wire = None
        sent_s, now_s = wire.since_s, monotonic()
        self._busy.discard(wire)
        if not keep:
            wire.abort()
            if self._waiting:
                self._open()
        elif self._waiting:
            self._write(wire, self._waiting.popleft())
        else:
            self._keep(wire, now_s)
        self._answered(sending, answer, sent_s, now_s)

    def _lost(self, wire: Wire, wrong: str) -> None:
        if wire.sending is None:
            if wire in self._idle:
                self._idle.remove(wire)
            return
        when = "in the middle of its answer" if wire.begun else "before it answered"
        reason = f"node {self.name} closed the connection {when}"
        if wrong:
            reason = f"node {self.name} is not understood: {wrong}"
        # What was written may have been read and run, so it is never written again.
        self._fail_wire(wire, Failure(reason))

    def _fail_wire(self, wire: Wire, failure: Failure, certain: bool = False) -> None:
        sending: Sending = wire.sending
        wire.sending = sending.wire = None
        self._busy.discard(wire)
        wire.abort()
        self._failed(sending, failure, certain)

    def _look_after(self, wait_s: float) -> None:
        if self._guard is None and not self._closed:
            self._guard = self._loop.call_later(wait_s, self._guarded)

    def _guarded(self) -> None:
        # Nothing is done for each request: what is out is looked through now and then.
        self._guard = None
        now_s, overdue_s = monotonic(), math.inf
        begun: dict[Sending, tuple[int, float]] = {}
        stalled: list[tuple[Wire, int]] = []
        late: list[Wire] = []
        for wire in self._busy:
            sending: Sending = wire.sending
            if now_s - wire.since_s > min(self.patience_s, sending.patience_s):
                late.append(wire)
                continue
            if wire.begun:
                came, since_s = self._begun.get(sending, (-STALL_BYTES, now_s))
                if wire.came - came >= STALL_BYTES:
                    came, since_s = wire.came, now_s
                elif now_s - since_s >= STALL_S:
                    stalled.append((wire, wire.came - came))
                begun[sending] = came, since_s
            overdue_s = min(overdue_s, wire.since_s + suspect_after_s(sending.predicted_s))
        for sending in self._waiting:
            overdue_s = min(overdue_s, sending.since_s + LEAST_S)
        self._begun = begun
        # The last one first: where nothing was answered since, all that is out is settled with it.
        for wire in sorted(late, key=lambda one: one.since_s, reverse=True):
            if wire.sending is not None:
                self._take_back(wire)
        for wire, came in stalled:
            if wire.sending is None:
                continue
            said = f"only {came} bytes of its answer came within {1e3 * STALL_S:g} ms"
            self._fail_wire(wire, Failure(f"node {self.name} does not get on: {said}"))
        self._waited(now_s, overdue_s)
        if self._busy or self._waiting:
            wait_s = TICK_S if begun else min(LEAST_S, max(TICK_S, overdue_s - now_s))
            self._look_after(wait_s)

    def _take_back(self, wire: Wire) -> None:
        limit_s = min(self.patience_s, wire.sending.patience_s)
        did_not = "did not end its answer" if wire.begun else "did not answer"
        failure = Failure(f"node {self.name} {did_not} within {limit_s:.3g} s", late=True)
        self._fail_wire(wire, failure, wire.since_s > self.heard_s)

    def _look(self) -> None:
        # One timer for all: one for each connection would cost more than it saves.
        now_s, self._sweep = monotonic(), None
        # Those used last come last.
        while self._idle and now_s - self._idle[0].since_s > IDLE_S:
            self._idle.pop(0).abort()
        if self._idle and not self._closed:
            self._sweep = self._loop.call_later(SWEEP_S, self._look)


def said(error: OSError) -> str:
    """Say why there is no connection."""
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate does not pass: {error.verify_message}"
    return error.strerror or str(error) or type(error).__name__
