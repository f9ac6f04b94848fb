"""Who gives way to a newcomer of higher priority where there is no room."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice

from inferway.live.departures import Departures
from inferway.live.desk import Desk
from inferway.live.predict import Forecast
from inferway.live.queues import Queues
from inferway.live.rejection import GAVE_WAY
from inferway.live.request import Outcome, Request
from inferway.live.service import Service

UNSAID = 1 << 15
"""How low a request stands that states no priority: below all that do."""


def rank(request: Request) -> int:
    """Where a request stands: 1 is the highest."""
    return request.priority or UNSAID


class Shedding:
    """Makes room by ending others.

    Parameters
    ----------
    queues
        What each server holds, and the central queue.
    service
        Gives back those whose service has not begun.
    desk
        Decides on the newcomer.
    departures
        Ends who gives way.
    forecast
        Of the servers.
    class_of
        Class of each server.
    places
        At each server.
    left_s
        Time until a request's deadline.
    """

    def __init__(
        self,
        queues: Queues,
        service: Service,
        desk: Desk,
        departures: Departures,
        forecast: Forecast,
        class_of: Sequence[int],
        places: int,
        left_s: Callable[[Request], float],
    ) -> None:
        self._queues, self._service, self._desk = queues, service, desk
        self._departures, self._forecast = departures, forecast
        self._class_of, self._places, self._left_s = class_of, places, left_s

    def at_servers(self, newcomer: Request) -> bool:
        """Make room at a full server for a request that the policy refused; whether it is there."""
        victim = self._victim(newcomer)
        if victim is None or not self._service.recall(victim):
            return False
        placed = self._desk.decide(newcomer, newcomer.classes, newcomer.deadline_s) >= 0
        # The policy may refuse the newcomer all the same; then the place is the victim's again,
        # whose class and deadline have been decided on.
        if not placed:
            k = self._class_of[victim.server]
            victim.server = -1
            if self._desk.decide(victim, 1 << k, math.inf) >= 0:
                return False
        victim.server = -1
        self._give_way(victim)
        return placed

    def in_line(self, newcomer: Request) -> bool:
        """Make room in the full central queue; the lowest there goes, of these the last."""
        victim = max(reversed([*self._queues.central.requests]), key=rank, default=newcomer)
        if not 0 < newcomer.priority < rank(victim):
            return False
        self._queues.release(victim)
        self._give_way(victim)
        return True

    def _victim(self, newcomer: Request) -> Request | None:
        """Of the requests queued at full servers that may answer the newcomer, the one to go.

        It is the lowest in priority, of these the last to have come, where the newcomer would be in
        time behind the others. None where none is lower, or where it is not for want of room that
        the newcomer was refused.
        """
        victim, lowest = None, newcomer.priority
        forecast, left_s = self._forecast, self._left_s(newcomer)
        mask = forecast.mask(newcomer)
        for server, k in enumerate(self._class_of):
            if not mask >> k & 1:
                continue
            queue = self._queues.at[server]
            if len(queue) < self._places:
                return None
            behind_s = forecast.wait_s(server) + forecast.service_s(server, newcomer.rows)
            # Nobody gives up a service.
            for queued in islice(queue, self._service.begun(server), None):
                stands = rank(queued)
                lower = stands > lowest or (
                    stands == lowest
                    and victim is not None
                    and queued.received_s > victim.received_s
                )
                if lower and behind_s - forecast.service_s(server, queued.rows) <= left_s:
                    victim, lowest = queued, stands
        return victim

    def _give_way(self, victim: Request) -> None:
        victim.retry_after_s = self._forecast.idle_s(self._forecast.mask(victim))
        self._departures.end(victim, Outcome.REJECTED, GAVE_WAY)
