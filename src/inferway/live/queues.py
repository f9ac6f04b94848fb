"""Which request waits where, and what becomes of it at its deadline."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from inferway.live.central import CentralQueue
from inferway.live.request import Request

if TYPE_CHECKING:
    from inferway.live.service import Service


class Queues:
    """The requests at each server, in the dispatcher's order, and those in the central queue.

    Parameters
    ----------
    servers
        How many there are.
    central
        The central queue.
    expired
        Called with each queued request whose deadline passes, on the event loop: whoever asked
        should know at once, not when a server comes to it. None lets them wait on.
    """

    def __init__(
        self,
        servers: int,
        central: CentralQueue,
        expired: Callable[[Request], None] | None,
    ) -> None:
        self.at: list[deque[Request]] = [deque() for _ in range(servers)]
        """What each server holds; those in service come first."""
        self.central = central
        self.service: Service
        """Who runs what is at the servers."""
        self._expired = expired

    def __len__(self) -> int:
        return sum(map(len, self.at)) + len(self.central.requests)

    def join(self, request: Request, server: int, now_s: float) -> None:
        """Put a request at the end of a server's queue."""
        request.server = server
        self.at[server].append(request)
        if self.service.hand(request) and request.deadline_s < math.inf:
            self._time(request, now_s)

    def leave(self, request: Request) -> int:
        """Take a request from its server's queue; returns where it stood, 0 for the first."""
        queue = self.at[request.server]
        position = queue.index(request)
        del queue[position]
        self.untime(request)
        return position

    def hold(self, request: Request, now_s: float) -> None:
        """Put a request at the end of the central queue."""
        self.central.add(request)
        self._time(request, now_s)

    def release(self, request: Request) -> None:
        """Take a request from the central queue."""
        self.central.remove(request)
        self.untime(request)

    def untime(self, request: Request) -> None:
        """Let a request's deadline pass unnoticed."""
        if request.timer is not None:
            request.timer.cancel()
            request.timer = None

    def _time(self, request: Request, now_s: float) -> None:
        if request.deadline_s < math.inf and self._expired is not None:
            left_s = max(0.0, request.deadline_s - now_s)
            loop = asyncio.get_running_loop()
            request.timer = loop.call_later(left_s, self._pass, request)

    def _pass(self, request: Request) -> None:
        request.timer = None
        assert self._expired is not None
        self._expired(request)
