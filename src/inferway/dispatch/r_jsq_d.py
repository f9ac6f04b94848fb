"""R-JSQ-d: a class by the LP's probabilities, the shortest of d queues in it ([Anonymous], 3.2)."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from inferway.deployment.units import Count
from inferway.dispatch.routing import Beta, Planned, RandomRouting, Window, class_by
from inferway.site import REJECT, Fleet, Request, Site, any_in, uniform


class RJsqD(RandomRouting):
    """Randomized join-the-shortest-of-d-queues, drawn with replacement."""

    __slots__ = ()

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        rate: Planned = None,
        window: Window = None,
        beta: Beta = None,
        d: Annotated[Count, Field(description="How many servers to compare.")] = 2,
        energy_budget: float | None = None,
    ) -> Self:
        """As for the others of its kind; ValueError also with d < 1."""
        if d < 1:
            raise ValueError(f"r-jsq-d looks at d >= 1 servers, not {d}")
        made = super().build(
            fleet,
            target=target,
            rate_per_s=rate_per_s,
            rate=rate,
            window=window,
            beta=beta,
            energy_budget=energy_budget,
        )
        return made._replace(d=d)

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
