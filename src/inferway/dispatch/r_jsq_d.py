"""R-JSQ-d: a class by the LP's probabilities, the shortest of d queues in it (paper 002, 3.2)."""

from __future__ import annotations

import math
from typing import NamedTuple

from inferway.dispatch.routing import class_by, routing
from inferway.site import REJECT, Fleet, Request, Site, any_in, uniform
from inferway.site.view import Floats


class RJsqD(NamedTuple):
    """Randomized join-the-shortest-of-d-queues."""

    probabilities: Floats
    """(K,) routing probabilities of eq. 4."""
    beta: float
    """Of eq. 4's weight; nan where it follows from the load."""
    d: int
    """Servers looked at, drawn with replacement."""

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        beta: float = math.nan,
        d: int = 2,
    ) -> RJsqD:
        """Solve the LP; ValueError without a rate, with a target out of reach, or with d < 1."""
        if d < 1:
            raise ValueError(f"r-jsq-d looks at d >= 1 servers, not {d}")
        return cls(routing(fleet, target=target, rate_per_s=rate_per_s, beta=beta), beta, d)

    def retune(self, fleet: Fleet, *, target: float | None, rate_per_s: float) -> None:
        """Solve the LP again for another arrival rate."""
        self.probabilities[:] = routing(fleet, target=target, rate_per_s=rate_per_s, beta=self.beta)

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest of d servers of the class drawn; the first drawn where they are equal."""
        k = class_by(self.probabilities, site, request, uniform(draw, 0))
        if k < 0:
            return REJECT
        best = any_in(site, request, k, uniform(draw, 1))
        for i in range(1, self.d):
            other = any_in(site, request, k, uniform(draw, 1 + i))
            if best >= 0 and site.queue[other] < site.queue[best]:
                best = other
        return best
