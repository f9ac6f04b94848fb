"""Routing tuples for several means at once: pairs become triplets ([Anonymous], Sec. 8.1).

With one mean to keep, a routing tuple has one class, or two that keep the mean together. With C
means a tuple has up to C + 1 classes: k + 1 classes hold k of the means at their limits, each unit
of traffic exactly, and the others may use up what slack there is. Filling takes at every step the
cheapest tuple that can carry anything from here, with the capacities, no class below 0 and every
mean kept, and as much of it as goes. That is the LP as its rate grows (`bounds.solve`): each step
is an edge of its parametric solution, whose direction has no more classes than one and one for
each mean that binds. It needs no order of the classes, unlike waterfilling.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from inferway.dispatch.bounds import UnreachableError
from inferway.site.fleet import Fleet
from inferway.site.view import Floats

_TINY = 1e-11  # below this part of the capacities traffic is none, and a slack is used up


class HeldTuple(NamedTuple):
    """A routing tuple that holds some means."""

    classes: tuple[int, ...]
    routing: Floats  # (K,) sums to 1; may have negative entries
    cost_s: float  # Mean service time that it adds per request, s
    held: tuple[int, ...]  # Which means: 0 the accuracy, 1 the energy


class Filled(NamedTuple):
    """Result of filling."""

    shares: Floats  # (K,) fraction of requests per class
    steps: tuple[tuple[HeldTuple, float], ...]  # What carried how much, 1/s, in order
    response_time_s: float  # Mean service time of the shares, s


def held_tuples(
    fleet: Fleet, target: float | None, energy_budget: float | None = None
) -> list[HeldTuple]:
    """All tuples of a fleet, by rising cost; parameters as for `fill`."""
    lead, service_s = _lead(fleet, target, energy_budget), 1.0 / fleet.rate
    found = []
    for count in range(len(lead) + 1):
        for held in combinations(range(len(lead)), count):
            for classes in combinations(range(len(service_s)), count + 1):
                # One row for the sum, and one for each mean that is held.
                rows = np.vstack([np.ones(count + 1), lead[np.ix_(held, classes)]])
                if np.linalg.cond(rows) > 1e12:
                    continue
                routing = np.zeros(len(service_s))
                routing[list(classes)] = np.linalg.solve(rows, np.eye(count + 1)[0])
                found.append(HeldTuple(classes, routing, float(routing @ service_s), held))
    return sorted(found, key=lambda one: one.cost_s)


def fill(
    fleet: Fleet, target: float | None, rate_per_s: float, energy_budget: float | None = None
) -> Filled:
    """Fill the classes by tuples, cheapest first, until all traffic is placed.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Least mean accuracy in 0..1, or None.
    rate_per_s
        Arrival rate of the whole site, 1/s, above 0.
    energy_budget
        Greatest mean energy of a request, J, or None.

    Raises
    ------
    UnreachableError
        Where traffic is left that no tuple can carry.
    """
    lead, capacity = _lead(fleet, target, energy_budget), fleet.capacity.astype(float)
    tuples, least = held_tuples(fleet, target, energy_budget), _TINY * float(capacity.max())
    traffic, left, steps = np.zeros(len(capacity)), rate_per_s, []
    while left > _TINY * rate_per_s:
        for one in tuples:
            weight = min(left, _room(one.routing, traffic, capacity, lead, least))
            if weight > least:
                break
        else:
            raise UnreachableError(
                f"no routing tuple carries the last {left:g} of {rate_per_s:g} requests per second"
            )
        traffic = np.clip(traffic + weight * one.routing, 0.0, capacity)
        left -= weight
        steps.append((one, weight))
    shares = traffic / traffic.sum()
    return Filled(shares, tuple(steps), float(shares @ (1.0 / fleet.rate)))


def _lead(fleet: Fleet, target: float | None, energy_budget: float | None) -> Floats:
    """What each class is ahead of each mean's limit, (C, K), in parts of the greatest."""
    rows = [fleet.accuracy - (target or 0.0)]
    if energy_budget is not None:
        rows.append(energy_budget - fleet.energy)
    return np.array([row / max(float(np.abs(row).max()), 1e-300) for row in rows])


def _room(routing: Floats, traffic: Floats, capacity: Floats, lead: Floats, least: float) -> float:
    """The most traffic that a routing can carry from here."""
    room = np.inf
    for grows, limit in (
        (routing, capacity - traffic),
        (-routing, traffic),
        (-(lead @ routing), lead @ traffic),
    ):
        up = grows > 1e-10
        if up.any():
            room = min(room, float((np.where(limit > least, limit, 0.0)[up] / grows[up]).min()))
    return room
