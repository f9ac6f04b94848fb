"""The way to one neighbor: requests out over kept connections, answers back, and its breaker."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic
from typing import Final

from inferway.live.upstream.breaker import (
    SUSPECT_LEAST_S,
    TRIAL,
    CircuitBreaker,
    Suspicion,
    suspect_after_s,
    why_dead,
)
from inferway.live.upstream.headers import ConnectError, Response, encoded, live_head
from inferway.live.upstream.rtt import SEGMENTS_BYTES, OnChange, RoundTrips
from inferway.protocol.address import joined
from inferway.protocol.http1 import ClientConnection, ConnectionPool, connect_failure

# Of one neighbor; what would need more waits for one of them.
CONNECTIONS: Final = 512
# A neighbor that takes no connection for so long is given up.
CONNECT_S: Final = 1.0
# Shortest time between two looks at what is out.
TICK_S: Final = 0.1
# An answer that has begun and of which in this time came less than so many bytes is given up,
# whatever its neighbor says of itself.
STALL_S: Final = 0.5
STALL_BYTES: Final = 4096
# Longest wait for any answer.
LONGEST_S: Final = 30.0
# Shortest and longest time between two looks at which ways are to be asked.
LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 1.0
# Failures of its own in a row, answered as such, after which a neighbor is left out: its HTTP
# works, and requests that no model can answer are not its fault.
ERRORS: Final = 5

# Told whether the neighbor takes requests from now on, and why not.
Watcher = Callable[[bool, str], None]


class UpstreamCall:
    """One request on its way to a neighbor and back.

    `done` is called once with the answer or the failure, unless it is canceled; never before the
    call that made it has returned. The answer to one that `asks` for health says nothing of how
    requests fare.
    """

    connection: ClientConnection | None = None
    # What goes on with it, where it waits for an emulated latency.
    timer: asyncio.TimerHandle | None = None
    ended = False
    late = False  # Whether its answer is to be late by half of an emulated latency, as it was
    since_s = 0.0  # Since when it waits for a connection, on the monotonic clock, where it had to
    asks = False

    def __init__(
        self,
        pool: ConnectionPool,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Response | ConnectError], None],
        predicted_s: float = 0.0,
        limit_s: float = inf,
    ) -> None:
        self._pool, self.head, self.body, self.done = pool, head, body, done
        self.predicted_s, self.limit_s = predicted_s, limit_s

    def cancel(self) -> None:
        """Nobody waits for the answer: the connection that carries the request is closed."""
        if not self.ended:
            self.ended = True
            if self.timer is not None:
                self.timer.cancel()
            self._pool.withdraw(self)

    def hand_on(self, result: Response | ConnectError) -> None:
        """Tell whoever waits for it what came of it."""
        if not self.ended:
            self.ended, self.timer = True, None
            self.done(result)


class Upstream(ConnectionPool):
    """Sends requests to one neighbor; all methods belong to the event loop.

    A neighbor that refuses connections, or fails several times in a row, is asked nothing but
    whether it is alive, at growing intervals, until it says so. One to which a request is out for
    too long is asked as well, and left out where it does not say so, or where it answers nothing
    all the same until the request is taken back; what it has been sent has failed then. Whoever
    was left out for what it did with requests is given one first, to show that it does otherwise.
    Where somebody follows how long ways through it take, it is asked along those that no request
    has gone for a while.

    Parameters
    ----------
    name
        Of the neighbor.
    host, port
        Where it listens for other nodes.
    tls
        Context of encrypted connections, with this node's certificate; None for plain ones.
    server_name
        Name that the neighbor's certificate must hold; None for the host.
    rtt_s
        Round-trip time to be emulated, s: a half passes before a request is written, the other
        before its answer is handed on.

    Attributes
    ----------
    reason
        Why nothing is sent; empty while requests are.
    """

    # Less than the neighbor's `Limits`: a request that meets a closing connection is lost.
    idle_s = 60.0

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
        rtt_s: float = 0.0,
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
        self.name, self.rtt_s, self.reason = name, rtt_s, ""
        self.breaker, self.trips, self._suspicion = CircuitBreaker(), RoundTrips(), Suspicion()
        self.at = joined(host, port).encode()  # As Host lines have it
        self._own, self._me = encoded(name), b""
        self._looks: set[tuple[str, ...]] = set()
        self._sent_before = 0
        self._watchers: list[Watcher] = []
        # What is to be done later, each once at a time.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        # Asks whether it lives: because of a request that is out, or as a probe.
        self._inquiry: asyncio.Task[None] | None = None
        # Whether its health is not enough to show that it works.
        self._doubtful = False
        # The request that shows it, while the breaker is on trial.
        self._tried: UpstreamCall | None = None
        # When a request was answered last, and failures of its own in a row since.
        self._heard_s, self._errors = 0.0, 0
        # Of answers that have begun, how many bytes of theirs had come when enough last had.
        self._begun: dict[UpstreamCall, tuple[int, float]] = {}
        # Requests that were sent, those that got no answer, answers that its HTTP, or itself, had
        # failed, and how often it did not say that it lives while requests were out, or answered
        # none of them; and how often it was asked whether it lives as one was out for too long.
        self.sent = self.failures = self.errors = self.hung = self.asked = 0

    def send(
        self,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Response | ConnectError], None],
        predicted_s: float = 0.0,
        limit_s: float = inf,
        *,
        asks: bool = False,
    ) -> UpstreamCall:
        """Send a request, which can be canceled; `head` is of `headers.forward_head`.

        `done` is called once with what came of it, after this has returned, unless it is canceled.
        That is predicted to take so long, 0 where nothing is known, and the neighbor may have it
        for so long. One that `asks` is a question about health, for somebody else; it shows nothing
        of requests.
        """
        call = UpstreamCall(self, head, body, done, predicted_s, limit_s)
        call.asks = asks
        if not self.breaker.closed and (asks or not self._tries(call)):
            self._loop.call_soon(call.hand_on, ConnectError(self.reason, unserved=True))
        elif self.rtt_s == 0.0:
            self.sent += not asks
            self.submit(call)
        else:
            call.late = True
            call.timer = self._loop.call_later(self.rtt_s / 2, self._send_late, call)
        return call

    def watch(self, watcher: Watcher) -> None:
        """Have somebody told when the breaker opens or closes; at once where it is open."""
        self._watchers.append(watcher)
        if not self.works:
            watcher(False, self.reason)

    def unwatch(self, watcher: Watcher) -> None:
        """Tell somebody no more."""
        self._watchers.remove(watcher)

    def follow(self, path: tuple[str, ...], changed: OnChange, *, me: str = "") -> None:
        """Have somebody told when a way takes longer, or less, as `RoundTrips.follow` does it.

        No question comes back to this node, `me`.
        """
        self._me = encoded(me)
        self.trips.follow(path, changed)
        if "_look_at_ways" not in self._timers:
            self._look_at_ways_later()

    def lose(self, reason: str) -> None:
        """The neighbor is known to be gone: what waits for it fails now, and nothing is sent to it.

        Probes go on: it is used again when it answers one.
        """
        if self.works:
            self._leave_out(reason, doubtful=self._doubtful)
        self.drop(reason)

    def hasten(self) -> None:
        """The neighbor is said to be back: where it is not used, it is asked now and not later."""
        if self.works or self._closed:
            return
        self._stop_asking()
        # What was tried before, the kernel may try again long after it would succeed.
        self.anew()
        self.breaker.due_s = self.breaker.now()
        self._probe()

    @property
    def works(self) -> bool:
        """Tell whether requests may go, or at least one."""
        return self.breaker.closed or self.breaker.trial

    def drop(self, reason: str) -> None:
        """End every connection; what they carry has failed, and so has what waits."""
        self.forget()
        for connection in list(self._busy):
            self._fail(connection, ConnectError(reason))
        self._refuse(reason)

    def close(self) -> None:
        """End every connection, for good."""
        self._closed = True
        self._stop_asking()
        sweep = () if self._sweep is None else (self._sweep,)
        for later in (*self._timers.values(), *sweep, *self._opening):
            later.cancel()
        self.drop(f"the connections to node {self.name} have been closed")

    def _later(self, act: Callable[[], None], wait_s: float) -> None:
        name = act.__name__
        if name in self._timers or self._closed:
            return

        def now() -> None:
            del self._timers[name]
            act()

        self._timers[name] = self._loop.call_later(wait_s, now)

    # Requests on their way.

    def _send_late(self, call: UpstreamCall) -> None:
        call.timer = None
        if self.breaker.closed or call is self._tried:
            self.sent += not call.asks
            self.submit(call)
        else:
            call.hand_on(ConnectError(self.reason, unserved=True))

    def _tries(self, call: UpstreamCall) -> bool:
        """Tell whether a request may go all the same, to show whether the neighbor works."""
        if not self.breaker.trial or not (self._tried is None or self._tried.ended):
            return False
        self._tried = call
        call.limit_s = TRIAL * min(LONGEST_S, call.limit_s)
        return True

    def write(self, connection: ClientConnection, call: UpstreamCall) -> None:
        """Write a request."""
        call.connection = connection
        if "_look" not in self._timers:
            self._later(self._look, SUSPECT_LEAST_S)
        connection.send(call.head, call.body)

    def queued(self, call: UpstreamCall) -> None:
        """Note since when a request waits for a connection."""
        call.since_s = monotonic()
        self._later(self._look, SUSPECT_LEAST_S)

    def broken(self, connection: ClientConnection, call: UpstreamCall, wrong: str) -> None:
        """Fail a request whose connection has ended."""
        when = "in the middle of its answer" if connection.begun else "before it answered"
        how = f"is not understood: {wrong}" if wrong else f"closed the connection {when}"
        # What was written may have been read and run, so it is never written again.
        call.connection = None
        self._failed(call, ConnectError(f"node {self.name} {how}"), False)

    def unreachable(self, call: UpstreamCall | None, error: Exception) -> None:
        """Fail a request for which there is no connection."""
        if call is not None:
            reason = f"node {self.name} cannot be reached: {connect_failure(error)}"
            self._failed(call, ConnectError(reason, unserved=True), True)

    def answered(self, call: UpstreamCall, answer: Response, sent_s: float, now_s: float) -> None:
        """Learn from an answer, and hand it on."""
        call.connection = None
        # Most is answered well, and each request pays for what stands before this.
        if answer.status != 200 and self._erred(call, answer):
            call.hand_on(answer)
            return
        if not call.asks:
            self._errors, self._heard_s = 0, now_s
            # What is wrong behind it is not the neighbor's fault.
            if self.breaker.succeeded():
                self._use_again()
        if self.trips.followed:
            body = call.body
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
            if size + len(answer.body) <= SEGMENTS_BYTES:
                self.trips.learn(answer, sent_s, now_s, self.rtt_s)
        if call.late:
            call.timer = self._loop.call_later(self.rtt_s / 2, call.hand_on, answer)
        elif not call.ended:
            call.ended = True
            call.done(answer)

    def _erred(self, call: UpstreamCall, answer: Response) -> bool:
        strange = answer.is_strange_failure
        if call.asks or not (strange or (answer.status == 500 and answer.node == self._own)):
            return False
        self.errors += 1
        self._errors += 1
        reason = f"node {self.name} answered {answer.status}"
        if call is self._tried and self.breaker.trial:
            self._leave_out(reason)
        elif self.breaker.closed and not self._closed:
            # Where no node has written the answer, its HTTP as a whole is at fault.
            opens = strange and self.breaker.failed()
            if not opens and self._errors >= ERRORS:
                opens, reason = True, f"{reason} {self._errors} times in a row"
            if opens:
                self._leave_out(reason)
                self._refuse(reason)
        return True

    def _fail(
        self, connection: ClientConnection, failure: ConnectError, certain: bool = False
    ) -> None:
        call: UpstreamCall = connection.call
        connection.call = call.connection = None
        self._busy.discard(connection)
        connection.abort()
        self._failed(call, failure, certain)

    def _refuse(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            self._failed(call, ConnectError(reason, unserved=True), False)

    def _failed(self, call: UpstreamCall, failure: ConnectError, certain: bool) -> None:
        """Learn from a failure, and hand it on.

        `certain` says whether the neighbor is certainly of no use; of a call that was out for too
        long, whether nothing has been answered since it was sent.
        """
        # Where a question is lost, no request is: those find out by themselves.
        self.failures += not call.asks
        # Watchers hear of it first: whoever gives the request to another must know where not to.
        if call is self._tried and self.breaker.trial:
            self._leave_out(failure.reason)
        elif not (call.asks or self._closed) and self.breaker.closed:
            if failure.late:
                # One that has answered others meanwhile is slow, and keeps what it has.
                if certain:
                    reason = f"{failure.reason}, nor any other request since"
                    self.hung += 1
                    self._leave_out(reason)
                    self.drop(reason)
            elif self.breaker.failed(certain=certain):
                self._leave_out(failure.reason, doubtful=not certain)
                self._refuse(failure.reason)
        self._loop.call_soon(call.hand_on, failure)

    # What is out is looked through now and then; nothing is done for each request.

    def _look(self) -> None:
        now_s, overdue_s = monotonic(), inf
        begun: dict[UpstreamCall, tuple[int, float]] = {}
        ending: list[tuple[float, ClientConnection, ConnectError]] = []
        for connection in self._busy:
            call: UpstreamCall = connection.call
            limit_s = min(LONGEST_S, call.limit_s)
            if now_s - connection.since_s > limit_s:
                did_not = "did not end its answer" if connection.begun else "did not answer"
                reason = f"node {self.name} {did_not} within {limit_s:.3g} s"
                ending.append((connection.since_s, connection, ConnectError(reason, late=True)))
                continue
            if connection.begun:
                came, since_s = self._begun.get(call, (-STALL_BYTES, now_s))
                if connection.came - came >= STALL_BYTES:
                    came, since_s = connection.came, now_s
                elif now_s - since_s >= STALL_S:
                    amount = f"only {connection.came - came} bytes of its answer came within"
                    reason = f"node {self.name} does not get on: {amount} {1e3 * STALL_S:g} ms"
                    ending.append((-inf, connection, ConnectError(reason)))
                begun[call] = came, since_s
            overdue_s = min(overdue_s, connection.since_s + suspect_after_s(call.predicted_s))
        for call in self._waiting:
            overdue_s = min(overdue_s, call.since_s + SUSPECT_LEAST_S)
        self._begun = begun
        # The last one first: where nothing was answered since, all that is out is settled with it.
        for since_s, connection, failure in sorted(ending, key=lambda one: one[0], reverse=True):
            if connection.call is not None:
                self._fail(connection, failure, since_s > self._heard_s)
        idle = self._inquiry is None and not self._closed and self.works
        if idle and self._suspicion.asks(now_s, overdue_s):
            self.asked += 1
            self._inquiry = self._loop.create_task(self._inquire())
        if self._busy or self._waiting:
            wait_s = TICK_S if begun else min(SUSPECT_LEAST_S, max(TICK_S, overdue_s - now_s))
            self._later(self._look, wait_s)

    # The breaker, and who is told of it.

    def _leave_out(self, reason: str, *, doubtful: bool = True) -> None:
        """Open the breaker, where no count of failures has."""
        if self.works:
            self.breaker.failed(certain=True)
        self.reason, self._doubtful = reason, doubtful
        self._errors, self._tried = 0, None
        self._stop_asking()
        self.forget()
        self._probe_later()
        self._tell(False)

    def _use_again(self) -> None:
        self.reason, self._doubtful, self._tried = "", False, None
        self._stop_asking()
        self._tell(True)

    def _tell(self, works: bool) -> None:
        for watcher in tuple(self._watchers):
            watcher(works, "" if works else self.reason)

    # Questions whether it lives.

    def _probe_later(self) -> None:
        self._later(self._probe, max(0.0, self.breaker.due_s - self.breaker.now()))

    def _probe(self) -> None:
        if self.works or self._closed:
            return
        if self.breaker.allows():
            self._inquiry = self._loop.create_task(self._inquire())
        else:
            self._probe_later()

    def _stop_asking(self) -> None:
        for waiting in (self._timers.pop("_probe", None), self._inquiry):
            if waiting is not None:
                waiting.cancel()
        self._inquiry = None

    async def _inquire(self) -> None:
        begun_s, rtt_s = monotonic(), self.trips.round_trip_s((self.name,)) or 0.0
        reason, refused = await why_dead(self, self.name, live_head(self.at), rtt_s)
        self._inquiry = None
        # Who has answered meanwhile did live: it is asked once more.
        if self._closed or (reason and self.works and self._heard_s > begun_s):
            return
        if not reason:
            if self.works:
                self._suspicion.cleared(monotonic())
            elif self._doubtful:
                self.breaker.probed()
                self._tell(True)
            else:
                self.breaker.succeeded()
                self._use_again()
            return
        if self.works:
            self.hung += 1
            self._leave_out(reason, doubtful=not refused)
        else:
            self.breaker.failed()
            self.reason = reason
            self._probe_later()
        # One that takes no more connections may be about to go, and answer those that it has.
        if refused:
            self._refuse(reason)
        else:
            self.drop(reason)

    # Questions along ways that somebody follows and that no request has gone for a while.

    def _look_at_ways_later(self) -> None:
        due_s = self.trips.due_s - monotonic() if self.breaker.closed else LONGEST_LOOK_S
        self._later(self._look_at_ways, min(LONGEST_LOOK_S, max(LOOK_S, due_s)))

    def _look_at_ways(self) -> None:
        if not self.trips.followed:
            return
        now_s, used = monotonic(), self.sent != self._sent_before
        for path in self.trips.due(now_s) if self.breaker.closed else ():
            self._sent_before = self.sent
            self.trips.asked(path, now_s, used)
            if path not in self._looks:
                self._looks.add(path)
                head = live_head(self.at, path[-1] if len(path) > 1 else "", self._me)
                look = UpstreamCall(self, head, b"", partial(self._looked, path))
                look.asks = True
                self.submit(look)
        self._look_at_ways_later()

    def _looked(self, path: tuple[str, ...], _: Response | ConnectError) -> None:
        self._looks.remove(path)
        if (timer := self._timers.pop("_look_at_ways", None)) is not None:
            timer.cancel()
            self._look_at_ways_later()
