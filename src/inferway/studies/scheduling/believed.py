"""The policy `deadline` with set beliefs about service times: what a wrong one costs.

A dispatch policy as a user's file has them (`./believed.py:Believed`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.site import REJECT, Fleet, Request, Site
from inferway.site.view import Floats, Ints


class Believed(NamedTuple):
    """Accuracy first, among those in time if every service took its believed time."""

    order: Ints
    """(K,) classes, the most accurate first."""
    each_s: Floats
    """(K,) believed service times, s."""

    @classmethod
    def build(
        cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None, factor: float
    ) -> Believed:
        """Believe the mean service times times a factor, and learn nothing."""
        del target, rate_per_s
        order = np.lexsort((-fleet.rate, -fleet.accuracy)).astype(np.int64)
        return cls(order, float(factor) / fleet.rate)

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """As `inferway.dispatch.deadline`."""
        now_s = site.clock_s[0]
        for k in self.order:
            each_s = self.each_s[k]
            best, least = REJECT, np.inf
            for server in range(site.first[k], site.first[k + 1]):
                if not request.allowed[server]:
                    continue
                ahead = float(site.queue[server])
                served_s = now_s - site.started_s[server]  # nan where nothing is in service
                if served_s > 0.0:
                    ahead -= min(1.0, served_s / each_s)
                shorter = best != REJECT and site.queue[server] < site.queue[best]
                if ahead < least or (ahead == least and shorter):
                    best, least = server, ahead
            if best != REJECT and now_s + (least + 1.0) * each_s <= request.deadline_s:
                return best
        return REJECT
