"""Stationary approximation (SA): by phase, the most that the accurate class takes ([Tan24], 5.1.7).

Each server is taken to be an M/D/1 queue in its stationary state, with the arrival rate that the
phase would have for ever. Of the requests in a phase, the share that would then be late, wait and
service together longer than the deadline, is at most `violations`; the accurate class gets the
greatest share of the requests for which this holds. The paper's Appendix F is not in the text at
hand: the bound on the mean over both classes is how its Sec. 5.1.7 reads ("with respect to the tail
latency requirement"). Buffers are taken to be unlimited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from inferway.deployment.units import Ratio
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
from inferway.scheduling.fixed import even, heaviest, lightest, only
from inferway.scheduling.waiting_time import later_than
from inferway.site.fleet import Fleet
from inferway.site.view import Site

_STEPS = 2000
_HALVINGS = 40


@dataclass(frozen=True)
class StationaryApproximation:
    """One routing per phase of the workload, between the least and the most accurate class."""

    slot_s: float
    on_rejection: bool
    routings: tuple[Routing, ...]
    sees_phase = True

    @classmethod
    def build(
        cls,
        conditions: Conditions,
        *,
        slot: Slot = 1.0,
        event: Event = None,
        violations: Annotated[
            Ratio,
            Field(gt=0, lt=1, description="Largest share of requests that may be late."),
        ] = 0.02,
    ) -> StationaryApproximation:
        """Make it for a workload whose phases and rates are known, and a deadline.

        Raises
        ------
        ValueError
            Where one of these is not known, or the fleet is of one class.
        """
        if not conditions.phases:
            raise ValueError("sa goes by the workload's state, which a live server cannot see")
        rates = [span.rate_per_s for span in conditions.phases if span.rate_per_s is not None]
        if len(rates) < len(conditions.phases):
            raise ValueError("sa needs the arrival rate, and a trace does not say it")
        fleet, deadline_s = conditions.fleet, conditions.deadline()
        if len(fleet.rate) < 2:
            raise ValueError("sa splits requests over two variants, and only one has instances")
        light, heavy = only(fleet, lightest(fleet)), only(fleet, heaviest(fleet))
        shares = (greatest_share(fleet, rate, deadline_s, violations) for rate in rates)
        routings = tuple(even(fleet, share * heavy + (1 - share) * light) for share in shares)
        return cls(slot, event == "rejection", routings)

    def observe(self, site: Site, signal: Signal) -> int:
        """The phase."""
        return signal.phase

    def act(self, observation: int) -> Routing:
        """Its routing."""
        return self.routings[observation]


def greatest_share(fleet: Fleet, rate_per_s: float, deadline_s: float, violations: float) -> float:
    """The greatest share of the most accurate class that keeps the bound on late requests.

    Too much for either class makes requests late, so that the feasible shares lie in the middle.
    Where there are none, the share with the fewest late requests.
    """
    grid = np.linspace(0.0, 1.0, _STEPS + 1)
    late = [late_share(fleet, rate_per_s, deadline_s, share) for share in grid]
    feasible = np.flatnonzero(np.array(late) <= violations)
    if len(feasible) == 0:
        return float(grid[int(np.argmin(late))])
    last = int(feasible[-1])
    if last == _STEPS:
        return 1.0
    low, high = float(grid[last]), float(grid[last + 1])
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if late_share(fleet, rate_per_s, deadline_s, middle) <= violations:
            low = middle
        else:
            high = middle
    return low


def late_share(fleet: Fleet, rate_per_s: float, deadline_s: float, share: float) -> float:
    """Share of requests that are late where this share goes to the most accurate class."""
    late = 0.0
    for k, part in ((heaviest(fleet), share), (lightest(fleet), 1.0 - share)):
        if part > 0.0:
            service_s = 1.0 / float(fleet.rate[k])
            each_per_s = part * rate_per_s / float(fleet.count[k])
            late += part * later_than(deadline_s - service_s, each_per_s, service_s)
    return late
