"""Stationary approximation (SA): by phase, the most that the accurate class takes ([Tan24], 5.1.7).

Each server is taken to be an M/D/1 queue in its stationary state, with the arrival rate that the
phase would have for ever. Of the requests in a phase, the share that would then be late, wait and
service together longer than the deadline, is at most `violations`; the accurate class gets the
greatest share of the requests for which this holds. The paper's Appendix F is not in the text at
hand: the bound on the mean over both classes is how its Sec. 5.1.7 reads ("with respect to the tail
latency requirement"). Buffers are taken to be unlimited.

The waiting time in the M/D/1 queue is exact: Erlang's distribution in the form of Franx
(doi 10.1016/S0167-6377(01)00108-0), whose terms are all positive. Erlang's own alternate in sign
and lose every digit in the tail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from inferway.deployment.units import Ratio
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
from inferway.scheduling.fixed import even, heaviest, lightest, only
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Site

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
            Ratio, Field(gt=0, lt=1, description="Largest share of requests that may be late.")
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


_NEGLIGIBLE = 1e-17


def later_than(wait_s: float, rate_per_s: float, service_s: float) -> float:
    """Probability of waiting for longer than `wait_s` in an M/D/1 queue.

    Parameters
    ----------
    wait_s
        Time, s; below 0 the probability is 1.
    rate_per_s
        Arrival rate, 1/s.
    service_s
        Service time, s.

    Returns
    -------
    float
        1 where the queue is not stable. Its error is below 1e-12, also relative to 1 - P.

    Notes
    -----
    For (k - 1) D <= x < k D, with Q_j the probability that at most j requests wait:

        P(W <= x) = sum over j = 0 .. k - 1 of Q_{k-1-j} Poisson(lambda (k D - x), j)

    At the time x after an arrival, that is k D - x before the k-th service time from it is over, it
    is in service if those that waited or have come since then are few enough.
    """
    if wait_s < 0.0:
        return 1.0
    if rate_per_s <= 0.0:
        return 0.0
    load = rate_per_s * service_s
    if load >= 1.0:
        return 1.0
    k = math.floor(wait_s / service_s) + 1
    below = np.cumsum(at_departures(load, k + 1))[1:]  # Q_j: at most j + 1 in the system
    weights = _poisson(rate_per_s * max(0.0, k * service_s - wait_s), k)
    return min(1.0, max(0.0, 1.0 - float(below[::-1] @ weights)))


def at_departures(load: float, count: int) -> Floats:
    """(count,) probabilities of 0, 1, ... requests in an M/D/1 queue of a load below 1.

    By the recursion on tails (Ramaswami, doi 10.1080/15326348808807077), which only adds: what is
    there after a departure is what was there before, less one, and what came during a service.
    """
    arrivals = _poisson(load, count + 1)
    tail = _upper(load, arrivals)
    found = np.zeros(count)
    found[0] = 1.0 - load
    for j in range(1, count):
        above = found[0] * tail[j - 1] + found[1:j] @ tail[j - 1 : 0 : -1]
        found[j] = above / arrivals[0]
    return found


def _poisson(mean: float, count: int) -> Floats:
    """(count,) probabilities of 0, 1, ... under Poisson's law."""
    return math.exp(-mean) * np.cumprod(np.append(1.0, mean / np.arange(1, count)))


def _upper(mean: float, probabilities: Floats) -> Floats:
    """(count,) probabilities of more than 0, 1, ..., summed from the small end."""
    term, number = float(probabilities[-1]), len(probabilities)
    beyond = 0.0
    while term > _NEGLIGIBLE * max(beyond, 1e-300):
        term *= mean / number
        number += 1
        beyond += term
    return np.cumsum(np.append(probabilities[1:], beyond)[::-1])[::-1]
