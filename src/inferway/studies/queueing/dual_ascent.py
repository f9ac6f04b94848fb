"""Dual ascent on the price of accuracy: a rule whose running mean moves around its target.

    least (1 + wait * queue) / mu_k - price * a_k,   price += step * (target - a_k) per answer.

A run of N answers misses the target by what the price has moved over step * N. A policy for studies
only, loaded as a user's policy is, from its file; `inferway.dispatch.priced` counts what it owes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from inferway.dispatch.bounds import max_rate, relaxed, solve
from inferway.site import COMPLETED, WITHDRAWN, Event, Fleet, Request, Site, idle_in
from inferway.site.view import Floats

NAME = f"{Path(__file__).resolve()}:DualAscent"  # as a scenario names the policy

STEP = 0.5  # Of the price's scale, for an answer that misses the target by the whole span
WAIT = 3.0  # Service times that a place in a queue counts
HEADROOM = 1.25  # The start over the LP's price


class DualAscent(NamedTuple):
    """To the server with the least expected response time less the price of its accuracy."""

    price: Floats  # (1,) s per unit of accuracy, at least 0
    step: float  # s per unit of accuracy squared
    classes: int

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> DualAscent:
        """Scale the step to the fleet; ValueError without a target, or with one out of reach."""
        if target is None:
            raise ValueError("dual ascent tracks an accuracy target")
        low = relaxed(fleet, target, None)
        span = float(np.ptp(fleet.accuracy)) or 1.0
        spread_s = float(np.ptp(1.0 / fleet.rate)) or 1.0 / float(fleet.rate.max())
        scale, start = low.price_s if low.price_s > 0 else spread_s / span, low.price_s
        if rate_per_s is not None:
            greatest = max_rate(fleet, target, None)
            between = min(0.99 * greatest, (rate_per_s + greatest) / 2)
            start = max(start, solve(fleet, target, between, None).price_s)
        return cls(np.array([HEADROOM * start]), STEP * scale / span, len(fleet.rate))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The cheapest server, the idle ones looked at first."""
        best, least = -1, np.inf
        for k in range(self.classes):
            cost = 1.0 / site.rate[k] - self.price[0] * site.accuracy[k]
            if cost < least:
                server = idle_in(site, request, k)
                if server >= 0:
                    best, least = server, cost
        for k in range(self.classes):
            worth = self.price[0] * site.accuracy[k]
            if (1.0 + WAIT) / site.rate[k] - worth >= least:
                continue  # no queue of this class can be the cheapest
            for server in range(site.first[k], site.first[k + 1]):
                cost = (1.0 + WAIT * site.queue[server]) / site.rate[k] - worth
                if cost < least and request.allowed[server]:
                    best, least = server, cost
                    if site.queue[server] == 1:
                        break  # among the busy, no queue is shorter
        return best

    def learn(self, site: Site, event: Event) -> None:
        """Dual ascent on the price, taken back where no answer is sent."""
        if event.kind == COMPLETED or not event.counted:
            return
        rows = -event.rows if event.kind == WITHDRAWN else event.rows
        miss = rows * (site.target[0] - site.accuracy[site.server_class[event.server]])
        self.price[0] = max(0.0, self.price[0] + self.step * miss)
