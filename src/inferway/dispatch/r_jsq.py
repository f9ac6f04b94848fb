"""R-JSQ: a class by the LP's probabilities, its shortest queue ([Anonymous], variants of R-JIQ)."""

from __future__ import annotations

from inferway.dispatch.routing import RandomRouting, class_by
from inferway.site import REJECT, Request, Site, shortest_in, uniform


class RJsq(RandomRouting):
    """Randomized join-the-shortest-queue."""

    __slots__ = ()

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest queue of the class drawn."""
        k = class_by(self.probabilities, site, request, uniform(draw, 0))
        return REJECT if k < 0 else shortest_in(site, request, k, uniform(draw, 1))
