"""Waterfilling: the LP solved by routing tuples in order of cost ([Anonymous], Algorithm 1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.dispatch.bound import UnreachableError
from inferway.dispatch.tuples import RoutingTuple, routing_tuples
from inferway.site.fleet import Fleet
from inferway.site.view import Floats


class Filling(NamedTuple):
    """Result of waterfilling."""

    shares: Floats
    """(K,) fraction of requests per class."""
    weights: Floats
    """Traffic that each routing tuple carries, 1/s, in the tuples' order."""
    tuples: list[RoutingTuple]
    response_time_s: float
    """Mean service time of the shares, s."""


def waterfill(fleet: Fleet, target: float | None, rate_per_s: float) -> Filling:
    """Fill the classes by routing tuples, cheapest first, until all traffic is placed.

    Equals the LP on fleets ordered as in Sec. 2.1 (Theorem 1). With dominated classes it can be
    wrong or fail where the LP is feasible: `inferway.dispatch.bound` never relies on it.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Accuracy target in 0..1, or None.
    rate_per_s
        Arrival rate of the whole site, 1/s, above 0.

    Raises
    ------
    ValueError
        Where traffic is left that no tuple can carry.
    """
    capacity = fleet.capacity.astype(float)
    tuples = routing_tuples(fleet, target)
    weights = np.zeros(len(tuples))
    traffic = np.zeros(len(capacity))
    left = rate_per_s
    # Capacities are used up to rounding; what is within it counts as full or empty.
    slack = 1e-12 * max(capacity.max(), rate_per_s)
    for index, (_, routing, _) in enumerate(tuples):
        grows, shrinks = routing > 0, routing < 0
        room = np.concatenate(
            [
                (capacity[grows] - traffic[grows]) / routing[grows],
                traffic[shrinks] / -routing[shrinks],
            ]
        )
        weight = max(0.0, min(float(room.min()), left))
        traffic = np.clip(traffic + weight * routing, 0.0, capacity)
        weights[index] = weight
        left -= weight
        if left <= slack:
            break
    if left > max(slack, 1e-9 * rate_per_s):
        raise UnreachableError(
            f"no routing tuple carries the last {left:g} of {rate_per_s:g} requests per second"
        )
    shares = traffic / traffic.sum()
    return Filling(shares, weights, tuples, float(shares @ (1.0 / fleet.rate)))
