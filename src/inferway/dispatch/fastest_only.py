"""Every request to the fastest class: the least latency, whatever the accuracy."""

from __future__ import annotations

from typing import NamedTuple

from inferway.site import REJECT, Fleet, Request, Site, has_class, shortest_in, uniform


class FastestOnly(NamedTuple):
    """To the shortest queue of the fastest class that the request may use."""

    classes: int

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> FastestOnly:
        """For K classes, whatever the target and the rate."""
        return cls(len(fleet.rate))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest queue of the class; REJECT where none of it takes the request."""
        for k in range(self.classes):
            if has_class(request.classes, k):
                return shortest_in(site, request, k, uniform(draw, 0))
        return REJECT
