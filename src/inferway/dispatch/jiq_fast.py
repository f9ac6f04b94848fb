"""Join the idle queue, fastest first ([Anonymous], Fig. 1: prioritizing faster servers)."""

from __future__ import annotations

from typing import NamedTuple

from inferway.site import Fleet, Request, Site, any_between, idle_in, uniform


class JiqFast(NamedTuple):
    """To an idle server of the fastest class that has one, else to any server."""

    classes: int

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> JiqFast:
        """For K classes, whatever the target and the rate."""
        return cls(len(fleet.rate))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server, the fastest; where none is idle, one uniformly at random."""
        for k in range(self.classes):
            server = idle_in(site, request, k)
            if server >= 0:
                return server
        return any_between(site, request, 0, site.queue.size, uniform(draw, 0))
