"""When a neighbor is asked less, or nothing: pure rules, and the question whether it lives.

A circuit breaker opens after failures and closes again after a probe. A neighbor that hangs as a
whole is found out by questions on a connection of their own (`Suspicion`, `why_dead`). One whose
health is well and whose answers do not come, or never end, has its requests taken back
(`time_limit_s`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final, TypeVar

from inferway.live.upstream.headers import Response
from inferway.protocol.http1 import ClientConnection, ConnectionPool, connect_failure

# Failures in a row that open a breaker.
FAILURES: Final = 3
# Waits before a half-open probe: these two and doublings in between. A neighbor that is back must
# not stay unused for long.
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0

# A request that is out for longer than both, so many times what was predicted and this time, makes
# its neighbor suspect.
SUSPECT_FACTOR: Final = 4.0
SUSPECT_LEAST_S: Final = 0.25
# However long was predicted, a request that is out for longer does: asking is cheap, and within
# 2 s it is to be known whether a neighbor hangs.
SUSPECT_MOST_S: Final = 1.25
# Between two questions to a neighbor that lives and stays slow: these two and doublings between.
ASK_FIRST_WAIT_S: Final = 0.25
ASK_LONGEST_WAIT_S: Final = 1.0

# A neighbor has a request for so many times what was predicted, and at least this time: what was
# to take less than 250 ms has 3 s in all, in which it is taken back, looked for once in 0.1 s, and
# answered by another.
LIMIT_FACTOR: Final = 8.0
LIMIT_LEAST_S: Final = 2.0
# And for so long per byte of the request (2 Mbit/s): what a slow link takes to carry it is in no
# prediction before it has been learned. An answer has none, for one that drips quickly and never
# ends cannot be told from a long one.
BYTE_S: Final = 4e-6
# Of what the entry waits, each node on the way waits for this share of the one before it, down to
# the second: the one before whoever does not answer finds it out first, and nobody else is blamed.
SHARE: Final = 0.8
LEAST_SHARE: Final = 0.4
# Share of it for the one request that shows whether a neighbor works: until then it did not.
TRIAL: Final = 0.25

# For the connection of a question, and then for its answer beside the round trips that the
# connection showed.
ALIVE_S: Final = 0.5
# A limit that this process itself kept by so much too late goes on for as long as that.
SLACK_S: Final = 0.05
# Round trips between the connection and the answer, with TLS, and one to spare.
_TRIPS: Final = {False: 2.0, True: 3.0}

T = TypeVar("T")


class CircuitBreaker:
    """Closed while a neighbor answers, open after failures, half open for one probe at a time.

    One that answers its probes and fails at requests would be asked again and again: where that
    may be, a probe's answer puts it on trial, and one request shows whether it works. `now` is the
    clock, seconds; `closed` says whether requests may go, `trial` whether one may where it is not
    closed, and `due_s` when the next probe may, inf while closed.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.now = now
        self._strikes, self._wait_s = 0, FIRST_WAIT_S
        self.closed, self.trial, self.due_s = True, False, math.inf

    def allows(self) -> bool:
        """Tell whether a request may go now; where it is open, a probe that is due may."""
        if self.closed:
            return True
        if self.now() < self.due_s:
            return False
        # Whoever asked has the probe: nobody else has it before this one could have failed.
        self.due_s = self.now() + self._wait_s
        return True

    def succeeded(self) -> bool:
        """Take an answer into account; whether that has closed it."""
        self._strikes = 0
        if self.closed:
            return False
        self.closed, self.trial = True, False
        self.due_s, self._wait_s = math.inf, FIRST_WAIT_S
        return True

    def probed(self) -> None:
        """Put it on trial, as its probe has been answered: the next request decides."""
        self.trial, self.due_s = True, math.inf

    def failed(self, *, certain: bool = False) -> bool:
        """Take a failure into account; whether that has opened it, as a `certain` one does."""
        if not self.closed:
            self.trial, self._wait_s = False, min(LONGEST_WAIT_S, 2.0 * self._wait_s)
            self.due_s = self.now() + self._wait_s
            return False
        self._strikes += 1
        if self._strikes < FAILURES and not certain:
            return False
        self.closed, self._strikes = False, 0
        self.due_s = self.now() + self._wait_s
        return True


class Suspicion:
    """Decides when to ask one neighbor whether it lives because a request is out for too long.

    One that lives is slow, and is asked again after growing waits.
    """

    _due_s, _wait_s = 0.0, ASK_FIRST_WAIT_S

    def asks(self, now_s: float, overdue_s: float) -> bool:
        """Tell whether to ask now.

        At `overdue_s` the first of the requests that are out should have been answered at the
        latest; inf where none is out.
        """
        if overdue_s > now_s:
            # Nothing is late: the next that is finds a neighbor that was asked of nothing.
            self._wait_s = ASK_FIRST_WAIT_S
            return False
        return now_s >= self._due_s

    def cleared(self, now_s: float) -> None:
        """Take into account that it lives: it is slow, and asked again a little later."""
        self._due_s = now_s + self._wait_s
        self._wait_s = min(ASK_LONGEST_WAIT_S, 2.0 * self._wait_s)


def suspect_after_s(predicted_s: float) -> float:
    """Tell how long a request may be out before its neighbor is suspect.

    It is predicted to take so long, the queue there included; 0 where nothing is known.
    """
    return min(max(SUSPECT_FACTOR * predicted_s, SUSPECT_LEAST_S), SUSPECT_MOST_S)


def time_limit_s(predicted_s: float, size: int, nodes: int = 0) -> float:
    """Tell how long a neighbor may have a request of so many bytes before it is taken back.

    The entry node predicted so long, the queue and the way included; 0 where nothing is known. The
    request has come through so many nodes before this one.
    """
    if predicted_s <= 0.0:
        return math.inf
    share = max(SHARE**nodes, LEAST_SHARE) if nodes else 1.0
    return share * max(LIMIT_FACTOR * predicted_s, LIMIT_LEAST_S) + BYTE_S * size


async def why_dead(
    pool: ConnectionPool, name: str, question: bytes, rtt_s: float
) -> tuple[str, bool]:
    """Ask a pool's server, on a connection of its own, why it does not live; empty where it does.

    The connections that there are may be what is wrong, or carry what is being waited for. A slow
    link is no fault of the server: the connection, which the kernel at the other end makes, shows
    how slow it is; `rtt_s` is what is known of it before, else 0. Where it is of use afterwards,
    the pool keeps the connection. The second value says whether the server has refused it, which
    says nothing of others that it has.
    """
    loop, begun_s = asyncio.get_running_loop(), monotonic()
    ended: asyncio.Future[tuple[Any, bool]] = loop.create_future()

    def end(_: ClientConnection, answer: Response | str, keep: bool = False) -> None:
        if not ended.done():
            ended.set_result((answer, keep))

    def lost(connection: ClientConnection, wrong: str) -> None:
        end(connection, f"is not understood: {wrong}" if wrong else "closed the connection")

    connection = ClientConnection(Response, end, lost)

    async def exchange() -> tuple[Any, bool]:
        if pool.tls is not None:
            transport = await loop.start_tls(
                connection.transport, connection, pool.tls, server_hostname=pool.server_name
            )
            if transport is None:
                raise ConnectionResetError("the connection ended")
            connection.connection_made(transport)
        connection.call = question
        connection.send(question)
        return await ended

    reason, refused, kept = "", False, False
    try:
        connecting = loop.create_connection(lambda: connection, pool.host, pool.port)
        await within(ALIVE_S + rtt_s, connecting)
        trips_s = _TRIPS[pool.tls is not None] * (monotonic() - begun_s)
        answer, keep = await within(ALIVE_S + trips_s, exchange())
        if isinstance(answer, str) or answer.status != 200:
            said = answer if isinstance(answer, str) else f"answered {answer.status}"
            reason = f"{said} when it was asked whether it lives"
        elif keep:
            connection.call, kept = None, True
            pool.adopt(connection)
    except TimeoutError:
        reason = f"did not say within {1e3 * ALIVE_S:g} ms that it lives"
    except OSError as error:
        refused = isinstance(error, ConnectionRefusedError)
        reason = f"cannot be reached: {connect_failure(error)}"
    except Exception as error:  # whoever waits for this is to hear of it whatever happens
        reason = f"could not be asked whether it lives: {error}"
    finally:
        if connection.transport is not None and not kept:
            connection.abort()
    return reason and f"node {name} {reason}", refused


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
