"""Priced idle queue: accuracy has a price in seconds, and the price follows the target.

Not in the papers. Paper 002's LP has a dual price for accuracy: at the optimum a request goes
where 1/mu_k - price * a_k is least. Here the price is learned by dual ascent, one small step per
request, and idle servers come first, as in join-the-idle-queue. Since

    price_end - price_start = step * (target - mean accuracy) * N,

a run of N requests misses the target by no more than the price has moved over (step * N): the
price starts above the LP's, so that it falls while it learns and the accuracy stays above.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.dispatch.bound import max_rate, relaxed, solve
from inferway.site import COMPLETED, WITHDRAWN, Event, Fleet, Request, Site, idle_in
from inferway.site.view import Floats

STEP = 0.05
"""Of the price's scale, for a request that misses the target by the whole span of accuracies."""
WAIT = 3.0
"""How many service times a place in a queue counts; above 1 since queues form in bursts."""
HEADROOM = 1.25
"""The start over the LP's price."""


class Priced(NamedTuple):
    """To the idle server with the least service time less the price of its accuracy."""

    price: Floats
    """(1,) s per unit of accuracy, at least 0: the policy's memory."""
    step: float
    """The price moves by step * (target - accuracy) with each answer; s per unit squared."""
    wait: float
    classes: int

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        price: float | None = None,
        step: float = STEP,
        wait: float = WAIT,
    ) -> Priced:
        """Scale the steps to the fleet.

        Parameters
        ----------
        price
            Where the price starts, s per unit of accuracy; by default 1.25 times the LP's dual
            price at the rate, or at low load where no rate is known.
        step
            Without a dimension: the part of the price's scale by which it moves when an answer
            misses the target by the whole span of the fleet's accuracies.
        wait
            How many service times a place in a queue counts.

        Raises
        ------
        ValueError
            Without a target, or with a target out of reach.
        """
        if target is None:
            raise ValueError("policy priced tracks an accuracy target: give the task accuracy_target")
        span = float(np.ptp(fleet.accuracy)) or 1.0
        scale = _scale(fleet, target)
        if price is None:
            dual = relaxed(fleet, target).price_s
            if rate_per_s is not None and rate_per_s < max_rate(fleet, target):
                dual = max(dual, solve(fleet, target, rate_per_s).price_s)
            price = HEADROOM * dual
        return cls(np.array([price]), step * scale / span, wait, len(fleet.rate))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The cheapest idle server; where none is idle, the cheapest by its queue."""
        best, least = -1, np.inf
        for k in range(self.classes):
            cost = 1.0 / site.rate[k] - self.price[0] * site.accuracy[k]
            if cost < least:
                server = idle_in(site, request, k)
                if server >= 0:
                    best, least = server, cost
        if best >= 0:
            return best
        for server in range(site.queue.size):
            k = site.server_class[server]
            places = 1.0 + self.wait * site.queue[server]
            cost = places / site.rate[k] - self.price[0] * site.accuracy[k]
            if cost < least and request.allowed[server]:
                best, least = server, cost
        return best

    def learn(self, site: Site, event: Event) -> None:
        """Dual ascent on the price, taken back where no answer is sent."""
        if event.kind == COMPLETED or not event.counted:
            return
        miss = event.rows * (site.target[0] - site.accuracy[site.server_class[event.server]])
        if event.kind == WITHDRAWN:
            miss = -miss
        self.price[0] = max(0.0, self.price[0] + self.step * miss)


def _scale(fleet: Fleet, target: float) -> float:
    """The price's natural size, s per unit of accuracy: the LP's at low load, else the fleet's."""
    price_s = relaxed(fleet, target).price_s
    if price_s > 0:
        return price_s
    span = float(np.ptp(fleet.accuracy)) or 1.0
    spread = float(np.ptp(1.0 / fleet.rate)) or 1.0 / float(fleet.rate.max())
    return spread / span
