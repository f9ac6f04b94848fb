"""Random routing: a class by the LP's probabilities ([Anonymous], eq. 4), then a server in it.

R-JIQ takes an idle one (Sec. 3.2), its variants R-JSQ and R-JSQ-d the shortest queue of all or d.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from inferway.deployment.units import Count, Number, PositiveRate, PositiveSeconds
from inferway.dispatch.bounds import max_rate, solve
from inferway.site import REJECT, Fleet, Request, Site, any_in, idle_in, shortest_in, uniform
from inferway.site.compiled import jit
from inferway.site.view import Floats

Planned = Annotated[
    PositiveRate | None,
    Field(
        description="Arrival rate to plan for; if not given, the workload's, or an estimate over "
        "`window`."
    ),
]
Window = Annotated[
    PositiveSeconds | None,
    Field(description="Estimate the arrival rate over the last such stretch of time."),
]
Beta = Annotated[
    Annotated[Number, Field(gt=0, lt=0.5)] | None,
    Field(
        description="Load is kept below 1 - n^-beta of the greatest, in (0, 0.5); if not given, "
        "from the rate."
    ),
]


class RandomRouting(NamedTuple):
    """Probabilities by class; each policy adds how it chooses among the servers of one."""

    probabilities: Floats  # (K,) routing probabilities of eq. 4.
    beta: float  # Of eq. 4's weight; nan where it follows from the load.
    energy_budget: float  # Greatest mean energy of a request, J; nan where there is none
    d: int  # Servers of the class that r-jsq-d compares; 0 for the others

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
        energy_budget: float | None = None,
    ) -> Self:
        """Solve the LP; ValueError without a rate or with a target out of reach.

        The world estimates over `window`, and calls `retune`.
        """
        weight = math.nan if beta is None else beta
        found = routing(
            fleet,
            target=target,
            rate_per_s=rate_per_s if rate is None else rate,
            beta=weight,
            energy_budget=energy_budget,
        )
        return cls(found, weight, math.nan if energy_budget is None else energy_budget, 0)

    def retune(self, fleet: Fleet, *, target: float | None, rate_per_s: float) -> None:
        """Solve the LP again for another arrival rate."""
        self.probabilities[:] = routing(
            fleet,
            target=target,
            rate_per_s=rate_per_s,
            beta=self.beta,
            energy_budget=None if math.isnan(self.energy_budget) else self.energy_budget,
        )


def routing(
    fleet: Fleet,
    *,
    target: float | None,
    rate_per_s: float | None,
    beta: float = math.nan,
    energy_budget: float | None = None,
) -> Floats:
    """Routing probabilities of R-JIQ, (K,), [Anonymous] eq. 4.

    `beta` says how close to the greatest rate the site runs, load = 1 - n**-beta; nan takes it from
    the load. gamma = (1/2 - beta)/2 as in Lemma 2, and the weight n**-gamma is at most 1. Beyond
    the greatest feasible rate, they are those of it. ValueError where no rate is given or the
    target is out of reach.
    """
    if rate_per_s is None:
        raise ValueError(
            "this policy needs the arrival rate: give the task a workload, or the policy `rate:`"
        )
    greatest = max_rate(fleet, target, energy_budget)
    at_greatest = solve(fleet, target, greatest, energy_budget).shares
    load = rate_per_s / greatest
    if load >= 1:
        return at_greatest
    if math.isnan(beta):
        beta = -math.log1p(-load) / math.log(fleet.servers) if fleet.servers > 1 else 0.5
    gamma = 0.5 * (0.5 - beta)
    weight = min(1.0, fleet.servers**-gamma)
    shares = solve(fleet, target, rate_per_s, energy_budget).shares
    mixed = (1 - weight) * shares + weight * at_greatest
    return mixed / mixed.sum()


@jit
def class_by(probabilities: np.ndarray, site: Site, request: Request, u: float) -> int:
    """A class by these probabilities, among those with a server for the request; -1 for none.

    An ordinary request is drawn among all classes, full ones too, as in the paper. A narrowed one
    is drawn among the classes that are left; where those have probability 0 together, it goes to
    the first of them.
    """
    total, first = 0.0, -1
    for k in range(probabilities.size):
        if _may(site, request, k):
            total += probabilities[k]
            if first < 0:
                first = k
    left, chosen = u * total, first
    for k in range(probabilities.size):
        if probabilities[k] > 0 and _may(site, request, k):
            chosen = k
            left -= probabilities[k]
            if left < 0:
                break
    return chosen


@jit
def _may(site: Site, request: Request, k: int) -> bool:
    return not request.narrowed or any_in(site, request, k, 0.0) >= 0


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


class RJsq(RandomRouting):
    """Randomized join-the-shortest-queue."""

    __slots__ = ()

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest queue of the class drawn."""
        k = class_by(self.probabilities, site, request, uniform(draw, 0))
        return REJECT if k < 0 else shortest_in(site, request, k, uniform(draw, 1))


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
