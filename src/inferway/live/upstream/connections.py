"""The kept connections to one neighbor, what is out on them, and a question on one of its own."""

from __future__ import annotations

import asyncio
import math
import ssl
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import ClassVar, Final, TypeVar

from inferway.live.upstream.breaker import SUSPECT_LEAST_S, suspect_after_s
from inferway.live.upstream.headers import ConnectError, Response
from inferway.protocol.http1 import ClientConnection, ConnectionPool, connect_failure

CONNECTIONS: Final = 512
"""Of one pool; what would need more waits for one of them."""
CONNECT_S: Final = 1.0
"""A neighbor that takes no connection for so long is given up."""
TICK_S: Final = 0.1
"""Shortest time between two looks at what is out."""
STALL_S: Final = 0.5
STALL_BYTES: Final = 4096
"""An answer that has begun and of which in this time came less than so many bytes is given up,
whatever its neighbor says of itself."""
LONGEST_S: Final = 30.0
"""Longest wait for any answer."""
ALIVE_S: Final = 0.5
"""For the connection of a question, and then for its answer beside the round trips that the
connection showed."""
SLACK_S: Final = 0.05
"""A limit that this process itself kept by so much too late goes on for as long as that."""
_TRIPS: Final = 2.0
_TLS_TRIPS: Final = 3.0
"""Round trips between the connection and the answer, and one to spare."""

T = TypeVar("T")


class UpstreamCall:
    """One request on its way to a neighbor and back.

    Attributes
    ----------
    done
        Called once with the answer or the failure, unless it is canceled; never before the call
        that made it has returned.
    timer
        What goes on with it, where it waits for an emulated latency.
    late
        Whether its answer is to be late by half of an emulated latency, as it was.
    ended
        Whether it has been answered, has failed or has been canceled.
    predicted_s, limit_s
        How long it was predicted to take, 0 where nothing was, and the neighbor may have it, s.
    since_s
        Since when it waits for a connection, on the monotonic clock, where it had to.
    """

    asks: ClassVar[bool] = False
    """Whether it is a question about health: its answer says nothing of how requests fare."""
    connection: ClientConnection | None = None
    timer: asyncio.TimerHandle | None = None
    ended = late = False
    since_s = 0.0

    def __init__(
        self,
        pool: NeighborPool,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Response | ConnectError], None],
        predicted_s: float = 0.0,
        limit_s: float = math.inf,
    ) -> None:
        self._pool, self.head, self.body, self.done = pool, head, body, done
        self.predicted_s, self.limit_s = predicted_s, limit_s

    def cancel(self) -> None:
        """Nobody waits for the answer: the connection that carries the request is closed."""
        if self.ended:
            return
        self.ended = True
        if self.timer is not None:
            self.timer.cancel()
        self._pool.withdraw(self)


class Question(UpstreamCall):
    """One question about health on its way."""

    asks = True


class NeighborPool(ConnectionPool):
    """Connections that are opened when requests need them, and kept; see `ConnectionPool`."""

    idle_s = 60.0
    """Less than the neighbor's (`http.limits`): a request that meets a closing connection is
    lost."""

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        super().__init__(
            host,
            port,
            form=Response,
            most=CONNECTIONS,
            connect_s=CONNECT_S,
            tls=tls,
            server_name=server_name,
        )
        self.name = name
        self.heard_s = 0.0
        """When a request was answered last; kept by whoever knows which count."""
        self._guard: asyncio.TimerHandle | None = None
        self._begun: dict[UpstreamCall, tuple[int, float]] = {}
        """Of answers that have begun, how many bytes of theirs had come when enough last had."""

    # What a neighbor of one's own says.

    @abstractmethod
    def failed(self, call: UpstreamCall, failure: ConnectError, certain: bool) -> None:
        """See to a call that has failed.

        `certain` says whether the neighbor is certainly of no use; of a call that was out for too
        long, whether nothing has been answered since it was sent.
        """

    @abstractmethod
    def waited(self, now_s: float, overdue_s: float) -> None:
        """Look at what is out, again and again while anything is.

        Both times are on the monotonic clock: now, and when the first request should have been
        answered at the latest.
        """

    @property
    def in_flight(self) -> int:
        """Requests that have not been answered."""
        return len(self._busy) + len(self._waiting)

    def write(self, connection: ClientConnection, call: UpstreamCall) -> None:
        """Write a request."""
        call.connection = connection
        if self._guard is None:
            self._look_after(SUSPECT_LEAST_S)
        connection.send(call.head, call.body)

    def queued(self, call: UpstreamCall) -> None:
        """Note since when a request waits for a connection."""
        call.since_s = monotonic()
        self._look_after(SUSPECT_LEAST_S)

    def broken(self, connection: ClientConnection, call: UpstreamCall, wrong: str) -> None:
        """Fail a request whose connection has ended."""
        when = "in the middle of its answer" if connection.begun else "before it answered"
        reason = f"node {self.name} closed the connection {when}"
        if wrong:
            reason = f"node {self.name} is not understood: {wrong}"
        # What was written may have been read and run, so it is never written again.
        call.connection = None
        self.failed(call, ConnectError(reason), False)

    def unreachable(self, call: UpstreamCall | None, error: Exception) -> None:
        """Fail a request for which there is no connection."""
        if call is not None:
            reason = f"node {self.name} cannot be reached: {connect_failure(error)}"
            self.failed(call, ConnectError(reason, unserved=True), True)

    def drop(self, reason: str) -> None:
        """End every connection; what they carry has failed, and so has what waits."""
        self.forget()
        for connection in list(self._busy):
            self._fail(connection, ConnectError(reason))
        self.refuse(reason)

    def refuse(self, reason: str) -> None:
        """Fail what waits for a connection."""
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self.failed(call, ConnectError(reason, unserved=True), False)

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

    # What is out is looked through now and then; nothing is done for each request.

    def _look_after(self, wait_s: float) -> None:
        if self._guard is None and not self._closed:
            self._guard = self._loop.call_later(wait_s, self._look)

    def _look(self) -> None:
        self._guard = None
        now_s, overdue_s = monotonic(), math.inf
        begun: dict[UpstreamCall, tuple[int, float]] = {}
        stalled: list[tuple[ClientConnection, int]] = []
        late: list[ClientConnection] = []
        for connection in self._busy:
            call: UpstreamCall = connection.call
            if now_s - connection.since_s > min(LONGEST_S, call.limit_s):
                late.append(connection)
                continue
            if connection.begun:
                came, since_s = self._begun.get(call, (-STALL_BYTES, now_s))
                if connection.came - came >= STALL_BYTES:
                    came, since_s = connection.came, now_s
                elif now_s - since_s >= STALL_S:
                    stalled.append((connection, connection.came - came))
                begun[call] = came, since_s
            overdue_s = min(overdue_s, connection.since_s + suspect_after_s(call.predicted_s))
        for call in self._waiting:
            overdue_s = min(overdue_s, call.since_s + SUSPECT_LEAST_S)
        self._begun = begun
        # The last one first: where nothing was answered since, all that is out is settled with it.
        for connection in sorted(late, key=lambda one: one.since_s, reverse=True):
            if connection.call is not None:
                self._take_back(connection)
        for connection, came in stalled:
            if connection.call is not None:
                amount = f"only {came} bytes of its answer came within {1e3 * STALL_S:g} ms"
                reason = f"node {self.name} does not get on: {amount}"
                self._fail(connection, ConnectError(reason))
        self.waited(now_s, overdue_s)
        if self._busy or self._waiting:
            wait_s = TICK_S if begun else min(SUSPECT_LEAST_S, max(TICK_S, overdue_s - now_s))
            self._look_after(wait_s)

    def _take_back(self, connection: ClientConnection) -> None:
        limit_s = min(LONGEST_S, connection.call.limit_s)
        did_not = "did not end its answer" if connection.begun else "did not answer"
        failure = ConnectError(f"node {self.name} {did_not} within {limit_s:.3g} s", late=True)
        self._fail(connection, failure, connection.since_s > self.heard_s)

    def _fail(
        self, connection: ClientConnection, failure: ConnectError, certain: bool = False
    ) -> None:
        call: UpstreamCall = connection.call
        connection.call = call.connection = None
        self._busy.discard(connection)
        connection.abort()
        self.failed(call, failure, certain)

    # The connections that are there may be what is wrong, or carry what is being waited for.

    async def why_dead(self, question: bytes, rtt_s: float) -> tuple[str, bool]:
        """Ask the neighbor on a connection of its own why it does not live; empty where it does.

        A slow link is no fault of the neighbor: the connection, which the kernel at the other end
        makes, shows how slow it is; `rtt_s` is what is known of it before, else 0. Where it is of
        use afterwards, the connection is kept. The second value says whether the neighbor has
        refused it, which says nothing of others that it has.
        """
        ended: asyncio.Future[tuple[Response, bool] | str] = self._loop.create_future()

        def answered(_: ClientConnection, answer: Response, keep: bool) -> None:
            if not ended.done():
                ended.set_result((answer, keep))

        def lost(_: ClientConnection, wrong: str) -> None:
            if not ended.done():
                failing = f"is not understood: {wrong}" if wrong else "closed the connection"
                ended.set_result(f"node {self.name} {failing} when it was asked whether it lives")

        connection = ClientConnection(Response, answered, lost)
        kept = False
        try:
            result = await self._asked_alive(connection, question, rtt_s, ended)
            if isinstance(result, str):
                return result, False
            answer, keep = result
            if answer.status != 200:
                status = f"answered {answer.status} when it was asked whether it lives"
                return f"node {self.name} {status}", False
            connection.call, kept = None, keep
            if keep:
                connection.belong(self._take, self._lost)
                self.adopt(connection)
        except TimeoutError:
            limit = f"within {1e3 * ALIVE_S:g} ms"
            return f"node {self.name} did not say {limit} that it lives", False
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            return f"node {self.name} cannot be reached: {connect_failure(error)}", refused
        except Exception as error:  # whoever waits for this is to hear of it whatever happens
            return f"node {self.name} could not be asked whether it lives: {error}", False
        finally:
            if connection.transport is not None and not kept:
                connection.abort()
        return "", False

    async def _asked_alive(
        self, connection: ClientConnection, question: bytes, rtt_s: float, ended: Awaitable[T]
    ) -> T:
        begun_s = monotonic()
        connecting = self._loop.create_connection(lambda: connection, self.host, self.port)
        await within(ALIVE_S + rtt_s, connecting)
        trip_s = monotonic() - begun_s

        async def exchange() -> T:
            if self.tls is not None:
                transport = await self._loop.start_tls(
                    connection.transport, connection, self.tls, server_hostname=self._server_name
                )
                if transport is None:
                    raise ConnectionResetError("the connection ended")
                connection.connection_made(transport)
            connection.call = question
            connection.send(question)
            return await ended

        trips = _TRIPS if self.tls is None else _TLS_TRIPS
        return await within(ALIVE_S + trips * trip_s, exchange())


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """Wait for something so long, as far as this process has had the time; else TimeoutError."""
    task = asyncio.ensure_future(work)
    try:
        while True:
            due_s = monotonic() + limit_s
            await asyncio.wait((task,), timeout=limit_s)
            if task.done():
                return task.result()
            limit_s = monotonic() - due_s
            if limit_s < SLACK_S:
                raise TimeoutError
    finally:
        task.cancel()
