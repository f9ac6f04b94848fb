"""The kept connections to one neighbor."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import ClassVar, Final

from inferway.live.hops.answer import Answer, Failure
from inferway.live.hops.suspicion import LEAST_S, STALL_BYTES, STALL_S, suspect_after_s
from inferway.protocol.http1 import ClientConnection, ConnectionPool

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
    connection
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
        "connection",
        "done",
        "ended",
        "head",
        "late",
        "patience_s",
        "predicted_s",
        "since_s",
        "timer",
    )
    since_s: float
    asks: ClassVar[bool] = False
    """Whether it is a question about health: its answer says nothing of how requests fare."""

    def __init__(
        self,
        pool: NeighborPool,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Answer | Failure], None],
        predicted_s: float = 0.0,
        patience_s: float = math.inf,
    ) -> None:
        self._pool = pool
        self.predicted_s, self.patience_s = predicted_s, patience_s
        self.head, self.body, self.done = head, body, done
        self.connection: ClientConnection | None = None
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


class NeighborPool(ConnectionPool):
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
        super().__init__(
            host,
            port,
            form=Answer,
            most=CONNECTIONS,
            connect_s=CONNECT_S,
            tls=tls,
            server_name=server_name,
        )
        self.name = name
        self.patience_s = patience_s
        self.heard_s = 0.0
        """When a request was answered last; kept by whoever knows which count."""
        self._tell_answered, self._failed, self._waited = answered, failed, waited
        self._sweep: asyncio.TimerHandle | None = None
        self._guard: asyncio.TimerHandle | None = None
        self._begun: dict[Sending, tuple[int, float]] = {}
        """Of answers that have begun, how many bytes of theirs had come when enough last had."""

    def __len__(self) -> int:
        return len(self._busy) + len(self._waiting)

    def write(self, connection: ClientConnection, call: Sending) -> None:
        """Write a request."""
        call.connection = connection
        if self._guard is None:
            self._look_after(LEAST_S)
        connection.send(call.head, call.body)

    def send(self, call: Sending) -> None:
        """Write a request on an idle connection, or on one that is opened for it."""
        super().send(call)
        if call.connection is None:
            call.since_s = monotonic()
            self._look_after(LEAST_S)

    def answered(self, call: Sending, answer: Answer, sent_s: float, now_s: float) -> None:
        """Tell of an answer."""
        call.connection = None
        self._tell_answered(call, answer, sent_s, now_s)

    def broken(self, connection: ClientConnection, call: Sending, wrong: str) -> None:
        """Fail a request whose connection has ended."""
        when = "in the middle of its answer" if connection.begun else "before it answered"
        reason = f"node {self.name} closed the connection {when}"
        if wrong:
            reason = f"node {self.name} is not understood: {wrong}"
        # What was written may have been read and run, so it is never written again.
        call.connection = None
        self._failed(call, Failure(reason), False)

    def unreachable(self, call: Sending | None, error: OSError) -> None:
        """Fail a request for which there is no connection."""
        if call is not None:
            reason = f"node {self.name} cannot be reached: {said(error)}"
            self._failed(call, Failure(reason, unserved=True), True)

    async def reach(self, connection: ClientConnection) -> None:
        """Connect a connection of somebody else's, not encrypted yet.

        Raises
        ------
        OSError
            When that cannot be.
        """
        await self._loop.create_connection(lambda: connection, self._host, self._port)

    async def encrypt(self, connection: ClientConnection) -> None:
        """Encrypt a connection that has just been connected, where connections are.

        Raises
        ------
        OSError
            When that cannot be.
        """
        if self.tls is not None:
            before = connection.transport
            transport = await self._loop.start_tls(
                before, connection, self.tls, server_hostname=self._server_name
            )
            if transport is None:
                raise ConnectionResetError("the connection ended")
            connection.connection_made(transport)

    def adopt(self, connection: ClientConnection) -> None:
        """Keep a connection that somebody else may have made, for the next request."""
        connection.belong(self._take, self._lost)
        super().adopt(connection)

    def withdraw(self, sending: Sending) -> None:
        """Forget a request; a connection that carries it is closed."""
        connection, sending.connection = sending.connection, None
        if connection is not None:
            connection.call = None
            self._busy.discard(connection)
            connection.abort()
        elif sending in self._waiting:
            self._waiting.remove(sending)

    def drop(self, reason: str) -> None:
        """End every connection; what they carry has failed, and so has what waits."""
        self.forget()
        for connection in list(self._busy):
            self._fail(connection, Failure(reason))
        self.refuse(reason)

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

    def _keep(self, connection: ClientConnection, now_s: float) -> None:
        super()._keep(connection, now_s)
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP_S, self._look)

    def _fail(self, connection: ClientConnection, failure: Failure, certain: bool = False) -> None:
        sending: Sending = connection.call
        connection.call = sending.connection = None
        self._busy.discard(connection)
        connection.abort()
        self._failed(sending, failure, certain)

    def _look_after(self, wait_s: float) -> None:
        if self._guard is None and not self._closed:
            self._guard = self._loop.call_later(wait_s, self._guarded)

    def _guarded(self) -> None:
        # Nothing is done for each request: what is out is looked through now and then.
        self._guard = None
        now_s, overdue_s = monotonic(), math.inf
        begun: dict[Sending, tuple[int, float]] = {}
        stalled: list[tuple[ClientConnection, int]] = []
        late: list[ClientConnection] = []
        for connection in self._busy:
            sending: Sending = connection.call
            if now_s - connection.since_s > min(self.patience_s, sending.patience_s):
                late.append(connection)
                continue
            if connection.begun:
                came, since_s = self._begun.get(sending, (-STALL_BYTES, now_s))
                if connection.came - came >= STALL_BYTES:
                    came, since_s = connection.came, now_s
                elif now_s - since_s >= STALL_S:
                    stalled.append((connection, connection.came - came))
                begun[sending] = came, since_s
            overdue_s = min(overdue_s, connection.since_s + suspect_after_s(sending.predicted_s))
        for sending in self._waiting:
            overdue_s = min(overdue_s, sending.since_s + LEAST_S)
        self._begun = begun
        # The last one first: where nothing was answered since, all that is out is settled with it.
        for connection in sorted(late, key=lambda one: one.since_s, reverse=True):
            if connection.call is not None:
                self._take_back(connection)
        for connection, came in stalled:
            if connection.call is None:
                continue
            said = f"only {came} bytes of its answer came within {1e3 * STALL_S:g} ms"
            self._fail(connection, Failure(f"node {self.name} does not get on: {said}"))
        self._waited(now_s, overdue_s)
        if self._busy or self._waiting:
            wait_s = TICK_S if begun else min(LEAST_S, max(TICK_S, overdue_s - now_s))
            self._look_after(wait_s)

    def _take_back(self, connection: ClientConnection) -> None:
        limit_s = min(self.patience_s, connection.call.patience_s)
        did_not = "did not end its answer" if connection.begun else "did not answer"
        failure = Failure(f"node {self.name} {did_not} within {limit_s:.3g} s", late=True)
        self._fail(connection, failure, connection.since_s > self.heard_s)

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
