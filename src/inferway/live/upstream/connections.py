"""A request to a neighbor, and the question, on a connection of its own, whether that one lives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

from inferway.live.upstream.headers import ConnectError, Response
from inferway.protocol.http1 import ClientConnection, ConnectionPool, connect_failure

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
    predicted_s, limit_s
        How long it was predicted to take, 0 where nothing was, and the neighbor may have it, s.
    asks
        Whether it is a question about health: its answer says nothing of how requests fare.
    timer
        What goes on with it, where it waits for an emulated latency.
    late
        Whether its answer is to be late by half of an emulated latency, as it was.
    ended
        Whether it has been answered, has failed or has been canceled.
    since_s
        Since when it waits for a connection, on the monotonic clock, where it had to.
    """

    connection: ClientConnection | None = None
    timer: asyncio.TimerHandle | None = None
    ended = late = False
    since_s = 0.0

    def __init__(
        self,
        pool: ConnectionPool,
        head: bytes,
        body: bytes | Sequence[bytes],
        done: Callable[[Response | ConnectError], None],
        predicted_s: float = 0.0,
        limit_s: float = math.inf,
        *,
        asks: bool = False,
    ) -> None:
        self._pool, self.head, self.body, self.done = pool, head, body, done
        self.predicted_s, self.limit_s, self.asks = predicted_s, limit_s, asks

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
    ended: asyncio.Future[tuple[Any, bool]] = asyncio.get_running_loop().create_future()

    def end(_: ClientConnection, answer: Response | str, keep: bool = False) -> None:
        if not ended.done():
            ended.set_result((answer, keep))

    def lost(connection: ClientConnection, wrong: str) -> None:
        failing = f"is not understood: {wrong}" if wrong else "closed the connection"
        end(connection, f"{failing} when it was asked whether it lives")

    connection = ClientConnection(Response, end, lost)
    reason, refused, kept = "", False, False
    try:
        answer, keep = await _asked(pool, connection, question, rtt_s, ended)
        if isinstance(answer, str):
            reason = answer
        elif answer.status != 200:
            reason = f"answered {answer.status} when it was asked whether it lives"
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


async def _asked(
    pool: ConnectionPool,
    connection: ClientConnection,
    question: bytes,
    rtt_s: float,
    ended: Awaitable[T],
) -> T:
    loop, begun_s = asyncio.get_running_loop(), monotonic()
    connecting = loop.create_connection(lambda: connection, pool.host, pool.port)
    await within(ALIVE_S + rtt_s, connecting)
    trip_s = monotonic() - begun_s

    async def exchange() -> T:
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

    trips = _TRIPS if pool.tls is None else _TLS_TRIPS
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
