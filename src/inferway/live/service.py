"""How requests that wait at servers come to be run."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from inferway.live.desk import Desk
from inferway.live.instance import Instance
from inferway.live.request import Request


class Service(Protocol):
    """Between the queues at the servers and their instances."""

    def hand(self, request: Request) -> bool:
        """Take a request that has just come to its server; whether it is left waiting there."""

    def recall(self, request: Request) -> bool:
        """Take a request from its server and undo its decision; False when its run has begun."""

    def abandon(self, request: Request) -> None:
        """Nobody waits for this request, whose run has begun: it is stopped where it can be."""

    def begun(self, server: int) -> int:
        """How many requests of a server are in service; they stand before the others."""

    def flush(self) -> None:
        """Let nobody wait for requests that will not come, from now on."""

    async def end(self, limit_s: float) -> list[Request]:
        """Run what waits, as far as the limit allows; what was left, which stands nowhere now."""


class OneByOne:
    """Each instance has its queue and runs one request after the other, without being asked.

    Parameters
    ----------
    instances
        One per server.
    queues
        What each server holds.
    desk
        Undoes decisions.
    """

    def __init__(
        self, instances: Sequence[Instance], queues: Sequence[deque[Request]], desk: Desk
    ) -> None:
        self._instances, self._queues, self._desk = instances, queues, desk

    def hand(self, request: Request) -> bool:
        """As `Service.hand`."""
        self._instances[request.server].put(request)
        return len(self._queues[request.server]) > 1

    def recall(self, request: Request) -> bool:
        """As `Service.recall`."""
        if not self._instances[request.server].cancel(request):
            return False
        self._desk.take_back(request)
        return True

    def abandon(self, request: Request) -> None:
        """As `Service.abandon`."""
        request.abandoned = True
        if request.call is not None:
            request.call.terminate = True

    def begun(self, server: int) -> int:
        """As `Service.begun`; the first in the queue counts."""
        return min(1, len(self._queues[server]))

    def flush(self) -> None:
        """As `Service.flush`; nobody does."""

    async def end(self, limit_s: float) -> list[Request]:
        """As `Service.end`; whoever joins the instances waits for what they have."""
        return []
