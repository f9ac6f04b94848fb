"""One question to a neighbor, whether it lives, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

from inferway.live.hops.answer import Answer
from inferway.live.hops.pool import NeighborPool, said
from inferway.protocol.http1 import ClientConnection

LIMIT_S: Final = 0.5
"""For the connection, and then for the answer beside the round trips that the connection showed."""
SLACK_S: Final = 0.05
"""A limit that this process itself kept by so much too late goes on for as long as that."""
_TRIPS: Final = 2.0
_TLS_TRIPS: Final = 3.0
"""Round trips between the connection and the answer, and one to spare."""

T = TypeVar("T")


class Inquiry:
    """Asks a neighbor whether it lives, and tells what came of it.

    The connections that are there may be what is wrong, or carry what is being waited for. A slow
    link is no fault of the neighbor: the connection, which the kernel at the other end makes, shows
    how slow it is.

    Parameters
    ----------
    pool
        Of the neighbor; it gets the connection afterwards, where that is of use.
    question
        The request.
    rtt_s
        Round trip of the link as far as it is known, s; else 0.
    told
        Called once, unless it is canceled, with why the neighbor does not live, or an empty string,
        and with whether it has refused the connection, which says nothing of others that it has.
    """

    def __init__(
        self, pool: NeighborPool, question: bytes, rtt_s: float, told: Callable[[str, bool], None]
    ) -> None:
        self._pool, self._question, self._rtt_s, self._told = pool, question, rtt_s, told
        self.begun_s = monotonic()
        """When it was asked, s."""
        self._connection: ClientConnection | None = None
        """Its connection, while it is to be ended."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """Ask no more."""
        self._task.cancel()

    async def _run(self) -> None:
        reason, refused = "", False
        try:
            reason = await self._ask()
        except TimeoutError:
            reason = f"node {self._pool.name} did not say within {1e3 * LIMIT_S:g} ms that it lives"
        except OSError as error:
            reason = f"node {self._pool.name} cannot be reached: {said(error)}"
            refused = isinstance(error, ConnectionRefusedError)
        except Exception as error:  # whoever waits for this is to hear of it whatever happens
            reason = f"node {self._pool.name} could not be asked whether it lives: {error}"
        finally:
            if self._connection is not None and self._connection.connected:
                self._connection.abort()
        self._told(reason, refused)

    async def _ask(self) -> str:
        loop, name = asyncio.get_running_loop(), self._pool.name
        ended: asyncio.Future[tuple[Answer, bool] | str] = loop.create_future()

        def answered(_: ClientConnection, answer: Answer, keep: bool) -> None:
            if not ended.done():
                ended.set_result((answer, keep))

        def lost(_: ClientConnection, wrong: str) -> None:
            if not ended.done():
                why = f"is not understood: {wrong}" if wrong else "closed the connection"
                ended.set_result(f"node {name} {why} when it was asked whether it lives")

        connection = self._connection = ClientConnection(Answer, answered, lost)
        begun_s = monotonic()
        await within(LIMIT_S + self._rtt_s, self._pool.reach(connection))
        trip_s = monotonic() - begun_s
        trips = _TRIPS
        if self._pool.tls is not None:
            trips = _TLS_TRIPS

        async def exchange() -> tuple[Answer, bool] | str:
            await self._pool.encrypt(connection)
            connection.call = self
            connection.send(self._question)
            return await ended

        found = await within(LIMIT_S + trips * trip_s, exchange())
        if isinstance(found, str):
            return found
        answer, keep = found
        if answer.status != 200:
            return f"node {name} answered {answer.status} when it was asked whether it lives"
        connection.call = None
        if keep:
            self._connection = None
            self._pool.adopt(connection)
        return ""


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """Wait for something so long, as far as this process has had the time to see to it.

    Raises
    ------
    TimeoutError
        When it has not ended.
    """
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
