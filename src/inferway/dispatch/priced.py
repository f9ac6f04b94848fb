"""Priced idle queue: accuracy has a price in seconds, and the price follows the target.

Not in the papers. [Anonymous]'s LP has a dual price for accuracy: at the optimum a request goes
where 1/mu_k - price * a_k is least. Here the same rule runs on the queues as they are,

    least (1 + wait * queue) / mu_k - price * a_k,

and the price is learned by dual ascent, one small step per answer. Idle servers (queue 0) come
first as long as the price is moderate; a fleet too small to find an accurate server idle often
enough pays a higher price, and waits for one. (Taking idle servers always before busy ones is the
same on large fleets and cannot hold the target on small ones.) Since

    price_end - price_start = step * (target - mean accuracy) * N,

a run of N answers misses the target by what the price has moved over step * N: the price starts
above the LP's, and the step is sized for runs of a few thousand.

Where the task has an energy budget, a joule has a price too, learned in the same way: [Anonymous]'s
Sec. 8.1 asks how several constraints might be kept at once, and prices simply add up.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from inferway.deployment.units import Number, PositiveNumber
from inferway.dispatch.bounds import Optimum, max_rate, relaxed, solve
from inferway.site import COMPLETED, WITHDRAWN, Event, Fleet, Request, Site, idle_in
from inferway.site.view import Floats

# Of the price's scale, for an answer that misses the target by the whole span of accuracies.
STEP = 0.5
# Service times that a place in a queue counts; above 1, since who waits makes others wait too.
WAIT = 3.0
HEADROOM = 1.25  # The start over the LP's price


class Priced(NamedTuple):
    """To the server with the least expected response time less the price of its accuracy."""

    price: Floats  # (2,) s per unit of accuracy and s per J, at least 0: the policy's memory
    # The price moves by step * (target - accuracy) with each answer; s per unit squared.
    step: float
    wait: float
    classes: int
    energy: Floats  # (K,) mean energy of a request, J; zeros where the task has no energy budget
    energy_budget: float  # Greatest mean energy of a request, J
    # The energy's price moves by energy_step * (energy - budget); s per J squared, 0 for none.
    energy_step: float

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        price: Annotated[
            Number | None,
            Field(
                description="Starting price, in seconds per unit of accuracy; if not given, from "
                "the bound."
            ),
        ] = None,
        step: Annotated[
            PositiveNumber | None,
            Field(
                description="How fast the price moves, relative to its scale; if not given, set "
                "for the fleet."
            ),
        ] = None,
        wait: Annotated[
            Number, Field(description="Service times that each request at a server counts.")
        ] = WAIT,
        energy_budget: float | None = None,
    ) -> Priced:
        """Scale the steps to the fleet.

        ValueError without a target, or with a target out of reach, by itself or within the budget.
        """
        if target is None:
            raise ValueError(
                "policy priced tracks an accuracy target: give the task accuracy_target"
            )
        step = STEP if step is None else step
        low = relaxed(fleet, target, energy_budget)
        start = HEADROOM * _duals(fleet, target, rate_per_s, energy_budget, low)
        if price is not None:
            start[0] = price
        energy, energy_step = np.zeros(len(fleet.rate)), 0.0
        if energy_budget is not None:
            energy = fleet.energy.copy()
            energy_step = step * _scale(low.energy_price_s, fleet.energy, fleet) / _span(energy)
        return cls(
            start,
            step * _scale(low.price_s, fleet.accuracy, fleet) / _span(fleet.accuracy),
            wait,
            len(fleet.rate),
            energy,
            energy_budget or 0.0,
            energy_step,
        )

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The cheapest server, the idle ones looked at first."""
        best, least = -1, np.inf
        for k in range(self.classes):
            worth = self.price[0] * site.accuracy[k] - self.price[1] * self.energy[k]
            cost = 1.0 / site.rate[k] - worth
            if cost < least:
                server = idle_in(site, request, k)
                if server >= 0:
                    best, least = server, cost
        for k in range(self.classes):
            worth = self.price[0] * site.accuracy[k] - self.price[1] * self.energy[k]
            if (1.0 + self.wait) / site.rate[k] - worth >= least:
                continue  # no queue of this class can be the cheapest
            for server in range(site.first[k], site.first[k + 1]):
                cost = (1.0 + self.wait * site.queue[server]) / site.rate[k] - worth
                if cost < least and request.allowed[server]:
                    best, least = server, cost
                    if site.queue[server] == 1:
                        break  # among the busy, no queue is shorter
        return best

    def learn(self, site: Site, event: Event) -> None:
        """Dual ascent on the prices, taken back where no answer is sent."""
        if event.kind == COMPLETED or not event.counted:
            return
        k = site.server_class[event.server]
        rows = -event.rows if event.kind == WITHDRAWN else event.rows
        miss = rows * (site.target[0] - site.accuracy[k])
        self.price[0] = max(0.0, self.price[0] + self.step * miss)
        if self.energy_step > 0.0:
            excess = rows * (self.energy[k] - self.energy_budget)
            self.price[1] = max(0.0, self.price[1] + self.energy_step * excess)


def _duals(
    fleet: Fleet,
    target: float,
    rate_per_s: float | None,
    energy_budget: float | None,
    low: Optimum,
) -> Floats:
    """The LP's prices of accuracy and energy, at low load where no rate is known."""
    found = np.array([low.price_s, low.energy_price_s])
    if rate_per_s is None:
        return found
    greatest = max_rate(fleet, target, energy_budget)
    between = min(0.99 * greatest, (rate_per_s + greatest) / 2)
    fuller = solve(fleet, target, between, energy_budget)
    return np.maximum(found, [fuller.price_s, fuller.energy_price_s])


def _scale(price_s: float, values: Floats, fleet: Fleet) -> float:
    """A price's natural size, s per unit: the LP's at low load, else the fleet's."""
    if price_s > 0:
        return price_s
    spread = float(np.ptp(1.0 / fleet.rate)) or 1.0 / float(fleet.rate.max())
    return spread / _span(values)


def _span(values: Floats) -> float:
    return float(np.ptp(values)) or 1.0
