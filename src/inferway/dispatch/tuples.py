"""Routing tuples: one or two classes, a split of traffic over them, its cost ([Anonymous], 5.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.site.fleet import Fleet
from inferway.site.view import Floats


class RoutingTuple(NamedTuple):
    """[Anonymous], Definition 2."""

    classes: tuple[int, ...]
    """One class or two, faster first."""
    routing: Floats
    """(K,) sums to 1; a pair that shuffles traffic between its classes has a negative entry."""
    cost_s: float
    """Mean service time that it adds per request, s."""

    @property
    def proper(self) -> bool:
        """Whether no entry is negative: a singleton, or a pair on both sides of the target."""
        return bool((self.routing >= 0).all())


def routing_tuples(fleet: Fleet, target: float | None) -> list[RoutingTuple]:
    """The optimal set of routing tuples, by rising cost ([Anonymous], eq. 11).

    Pairs of equal accuracy have no routing vector and are left out; pairs whose cost is not above
    0 are left out as in the paper. Equal costs keep the order singletons, then pairs.

    Parameters
    ----------
    fleet
        K server classes.
    target
        Accuracy target in 0..1; None counts as 0.
    """
    goal = target or 0.0
    service_s, accuracy = 1.0 / fleet.rate, fleet.accuracy
    found = [
        RoutingTuple((k,), unit, float(service_s[k]))
        for k, unit in enumerate(np.eye(len(accuracy)))
        if accuracy[k] >= goal
    ]
    for i in range(len(accuracy)):
        for j in range(i + 1, len(accuracy)):
            gap = accuracy[j] - accuracy[i]
            if gap == 0:
                continue
            routing = np.zeros(len(accuracy))
            routing[i] = (accuracy[j] - goal) / gap
            routing[j] = (goal - accuracy[i]) / gap
            cost_s = float(routing @ service_s)
            if cost_s > 0:
                found.append(RoutingTuple((i, j), routing, cost_s))
    return sorted(found, key=lambda found: found.cost_s)
