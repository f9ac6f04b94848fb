"""R-JSQ: a class by the LP's probabilities, its shortest queue (paper 002, variants of R-JIQ)."""

from __future__ import annotations

import math
from typing import NamedTuple

from inferway.dispatch.routing import class_by, routing
from inferway.site import REJECT, Fleet, Request, Site, shortest_in, uniform
from inferway.site.view import Floats


class RJsq(NamedTuple):
    """Randomized join-the-shortest-queue."""

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
    ) -> RJsq:
        """Solve the LP; ValueError without a rate or with a target out of reach."""
        return cls(routing(fleet, target=target, rate_per_s=rate_per_s, beta=beta), beta)

    def retune(self, fleet: Fleet, *, target: float | None, rate_per_s: float) -> None:
        """Solve the LP again for another arrival rate."""
        self.probabilities[:] = routing(fleet, target=target, rate_per_s=rate_per_s, beta=self.beta)

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest queue of the class drawn."""
        k = class_by(self.probabilities, site, request, uniform(draw, 0))
        return REJECT if k < 0 else shortest_in(site, request, k, uniform(draw, 1))
