"""Join the idle queue, most accurate first ([Anonymous], Fig. 1: higher accuracies first)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.site import Fleet, Request, Site, any_between, idle_in, uniform
from inferway.site.view import Ints


class JiqAccurate(NamedTuple):
    """To an idle server of the most accurate class that has one, else to any server."""

    order: Ints
    """(K,) classes, most accurate first."""

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> JiqAccurate:
        """By the fleet's accuracies; equal ones by speed."""
        return cls(np.argsort(-fleet.accuracy, kind="stable"))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server, the most accurate; where none is idle, one uniformly at random."""
        for k in self.order:
            server = idle_in(site, request, k)
            if server >= 0:
                return server
        return any_between(site, request, 0, site.queue.size, uniform(draw, 0))
