"""R-JIQ: a class by the LP's probabilities, an idle server in it (paper 002, Sec. 3.2)."""

from __future__ import annotations

import math
from typing import NamedTuple

from inferway.dispatch.routing import class_by, routing
from inferway.site import REJECT, Fleet, Request, Site, any_in, idle_in, uniform
from inferway.site.view import Floats


class RJiq(NamedTuple):
    """Randomized join-the-idle-queue."""

    probabilities: Floats
    """(K,) routing probabilities of eq. 4."""
    beta: float
    """Of eq. 4's weight; nan where it follows from the load."""

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        beta: float = math.nan,
    ) -> RJiq:
        """Solve the LP; ValueError without a rate or with a target out of reach."""
        return cls(routing(fleet, target=target, rate_per_s=rate_per_s, beta=beta), beta)

    def retune(self, fleet: Fleet, *, target: float | None, rate_per_s: float) -> None:
        """Solve the LP again for another arrival rate."""
        self.probabilities[:] = routing(fleet, target=target, rate_per_s=rate_per_s, beta=self.beta)

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server of the class drawn; where none is idle, one of it uniformly at random."""
        k = class_by(self.probabilities, site, request, uniform(draw, 0))
        if k < 0:
            return REJECT
        server = idle_in(site, request, k)
        return server if server >= 0 else any_in(site, request, k, uniform(draw, 1))
