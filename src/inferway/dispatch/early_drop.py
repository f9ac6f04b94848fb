"""Early drop (HW-E): all to the most accurate class, dropping what is doomed ([Tan24], 5.1.7).

Requests are routed evenly and at random, as by `hw`; a server that falls free drops from the head
of its queue what cannot be answered in time, as Clockwork does, and so serves only what can.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.site import (
    REJECT,
    Fleet,
    Request,
    Site,
    any_in,
    has_class,
    predicted_service,
    uniform,
)
from inferway.site.view import Ints


class EarlyDrop(NamedTuple):
    """The most accurate class, and no service for nothing."""

    order: Ints  # (K,) classes, most accurate first
    deadline_s: float  # From arrival; inf where there is none

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        deadline_s: float | None = None,
    ) -> EarlyDrop:
        """By the fleet's accuracies."""
        order = np.argsort(-fleet.accuracy, kind="stable").astype(np.int64)
        return cls(order, np.inf if deadline_s is None else float(deadline_s))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Any server of the class; REJECT where the one drawn is full."""
        for k in self.order:
            if not has_class(request.classes, k):
                continue
            first, u = site.first[k], uniform(draw, 0)
            server = first + int(u * (site.first[k + 1] - first))
            if not request.narrowed and site.healthy[server] and not site.open[server]:
                return REJECT
            return any_in(site, request, k, u)
        return REJECT

    def pull(self, site: Site, server: int, draw: int) -> tuple[int, int]:
        """Drop those at the head that would be late if they were served now; then take one."""
        now_s, places = site.clock_s[0], site.arrived_s.shape[1]
        latest_s = self.deadline_s - predicted_service(site, server, 1)
        dropped = 0
        while dropped < site.queue[server]:
            place = (site.head[server] + dropped) % places
            if now_s - site.arrived_s[server, place] <= latest_s:
                break
            dropped += 1
        return dropped, 1
