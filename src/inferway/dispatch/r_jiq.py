"""R-JIQ: a class by the LP's probabilities, an idle server in it ([Anonymous], Sec. 3.2)."""

from __future__ import annotations

from inferway.dispatch.routing import RandomRouting, class_by
from inferway.site import REJECT, Request, Site, any_in, idle_in, uniform


class RJiq(RandomRouting):
    """Randomized join-the-idle-queue."""

    __slots__ = ()

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server of the class drawn; where none is idle, one of it uniformly at random."""
        k = class_by(self.probabilities, site, request, uniform(draw, 0))
        if k < 0:
            return REJECT
        server = idle_in(site, request, k)
        return server if server >= 0 else any_in(site, request, k, uniform(draw, 1))
