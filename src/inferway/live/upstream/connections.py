"""A request to a neighbor, and the question, on a connection of its own, whether that one lives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Final, TypeVar

from inferway.live.upstream.headers import ConnectError, Response
from inferway.protocol.http1 import ClientConnection, ConnectionPool, connect_failure

# For the connection of a question, and then for its answer beside the round trips that the
# connection showed.
ALIVE_S: Final = 0.5
# A limit that this process itself kept by so much too late goes on for as long as that.
SLACK_S: Final = 0.05
# Round trips between the connection and the answer, with TLS, and one to spare.
_TRIPS: Final = {False: 2.0, True: 3.0}

T = TypeVar("T")


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
