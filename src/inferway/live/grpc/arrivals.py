"""Messages on their way in: what they hold together, and how long they may take.

gRPC says nothing of a message before it has come whole, and until a message is asked for keeps no
more of it than 64 KiB. From then on it may hold all of it. So while messages that have been asked
for take their time, the kernel is asked how much has come on their connections, and that is what
they count in the account of all bodies.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc.aio

from inferway.live.bodies import Bodies
from inferway.live.grpc.wires import Peer, peer_of, received
from inferway.live.http.limits import Limits
from inferway.live.http.refusal import RefusalError

__all__ = ["FULL", "Arrivals"]

LOOK_S: Final = 0.02
"""How often it is looked what has come of messages that take their time."""
SETTLE_S: Final = 1.0
"""How old the counts may be from which a connection's are taken."""
FULL: Final = "the messages of all calls have no room for this one now"
OPEN_BYTES: Final = 16 * 1024
"""Most that a call may bring which needs no key: the name of a service."""


class Arrivals:
    """Receives messages within the caps on one and on all.

    Parameters
    ----------
    bodies
        The account of all that is on its way in or waits for its answer.
    limits
        Caps on one.
    """

    def __init__(self, bodies: Bodies, limits: Limits) -> None:
        self.port = 0
        """Own port of the connections."""
        self._bodies, self._limits = bodies, limits
        self._arriving: set[_Arrival] = set()
        self._wires: dict[Peer, _Wire] = {}
        self._totals: dict[Peer, int] = {}
        self._settled_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, context: Any, *, keyless: bool = False) -> bytes:
        """Wait for the message of a call.

        Parameters
        ----------
        context
            The call.
        keyless
            Whether it needed no key; its message must be short then.

        Raises
        ------
        RefusalError
            When it takes too long, or there is no room for it.
        """
        arrival = _Arrival(context, asyncio.current_task(), keyless)
        self._arriving.add(arrival)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        size = 0
        try:
            message = await context.read()
            if message is grpc.aio.EOF:
                # It was too large, which gRPC has said, or there was none.
                raise asyncio.CancelledError
            size = len(message)
        except asyncio.CancelledError:
            if arrival.refusal is None:
                raise
            arrival.task.uncancel()
            raise arrival.refusal from None
        finally:
            self._arriving.discard(arrival)
            if arrival.wire is not None:
                self._leave(arrival.wire, arrival, size)
        if keyless and size > OPEN_BYTES:
            raise RefusalError(413, f"the message is larger than the limit of {OPEN_BYTES} bytes")
        return message  # type: ignore[no-any-return]

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        slow = [arrival for arrival in self._arriving if arrival.looked_s]
        if slow or now_s - self._settled_s > SETTLE_S:
            totals = received(self.port)
            for arrival in slow:
                if arrival.wire is None:
                    self._join(arrival)
                if now_s - arrival.looked_s > self._limits.receive_s:
                    limit_s = self._limits.receive_s
                    arrival.refuse(RefusalError(504, f"the message took more than {limit_s} s"))
            for wire in self._wires.values():
                self._weigh(wire, totals.get(wire.peer, wire.before))
            self._totals, self._settled_s = totals, now_s
        for arrival in self._arriving:
            arrival.looked_s = arrival.looked_s or now_s
        self._timer = loop.call_later(LOOK_S, self._look) if self._arriving else None

    def _join(self, arrival: _Arrival) -> None:
        peer = peer_of(arrival.context.peer())
        wire = self._wires.get(peer)
        if wire is None:
            wire = self._wires[peer] = _Wire(peer, self._totals.get(peer, 0))
        wire.arrivals.add(arrival)
        arrival.wire = wire

    def _leave(self, wire: _Wire, arrival: _Arrival, size: int) -> None:
        wire.arrivals.discard(arrival)
        wire.before += size
        given = wire.held if not wire.arrivals else min(wire.held, size)
        wire.held -= given
        self._bodies.release(given)
        if not wire.arrivals:
            del self._wires[wire.peer]

    def _weigh(self, wire: _Wire, total: int) -> None:
        come = max(0, total - wire.before)
        if all(arrival.keyless for arrival in wire.arrivals):
            if come > len(wire.arrivals) * OPEN_BYTES + 2 * self._limits.head_bytes:
                reason = f"the message is larger than the limit of {OPEN_BYTES} bytes"
                wire.refuse(RefusalError(413, reason))
            return
        come = min(come, len(wire.arrivals) * self._limits.body_bytes)
        if come <= wire.held:
            self._bodies.release(wire.held - come)
        elif not self._bodies.reserve(come - wire.held):
            wire.refuse(RefusalError(503, FULL))
            return
        wire.held = come


class _Arrival:
    """A message that has been asked for."""

    __slots__ = ("context", "keyless", "looked_s", "refusal", "task", "wire")

    def __init__(self, context: Any, task: Any, keyless: bool) -> None:
        self.context, self.task, self.keyless = context, task, keyless
        self.looked_s = 0.0
        """When it was first seen to take its time."""
        self.wire: _Wire | None = None
        self.refusal: RefusalError | None = None

    def refuse(self, refusal: RefusalError) -> None:
        """Wait for it no more."""
        if self.refusal is None:
            self.refusal = refusal
            self.task.cancel()


class _Wire:
    """A connection on which messages take their time.

    Attributes
    ----------
    before
        Bytes of it that belong to none of these messages.
    held
        What it counts in the account.
    """

    __slots__ = ("arrivals", "before", "held", "peer")

    def __init__(self, peer: Peer, before: int) -> None:
        self.peer, self.before = peer, before
        self.held = 0
        self.arrivals: set[_Arrival] = set()

    def refuse(self, refusal: RefusalError) -> None:
        """Wait for none of its messages any more."""
        for arrival in self.arrivals:
            arrival.refuse(refusal)
