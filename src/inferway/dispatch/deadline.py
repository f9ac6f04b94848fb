"""Deadline: the most accurate server that is predicted to finish in time, or none at once.

Not in the papers: a rule that needs no training where a request has a deadline and the task no
accuracy target. A request is predicted to end with the batch that it would join, once all that
waits before it has run. Predictions are on the safe side, since a request that is late costs its
whole accuracy and one that is sent to a less accurate server costs a difference: to the predicted
time is added a margin times its spread. The spread of one run is its learned high quantile less its
mean; that of several runs, one after the other, grows as the square root of their number.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from inferway.deployment.units import Number
from inferway.site import COMPLETED, REJECT, Event, Fleet, Request, Site, predicted_join
from inferway.site.selection import predicted_run
from inferway.site.sharing import led
from inferway.site.view import Floats, Ints

LEVEL = 0.95  # Of the running quantile
MARGIN = 1.0
_LEAST_STEP = 0.02
# Factors of the quantile at that step, which most runs come to.
_UP, _DOWN = np.exp(_LEAST_STEP * LEVEL), np.exp(_LEAST_STEP * (LEVEL - 1.0))
# Times that differ by less are equal: they are sums, and their rounding must not decide.
_TIE_S = 1e-9


class Deadline(NamedTuple):
    """Accuracy first, among those in time."""

    order: Ints  # (K,) classes, the most accurate first
    # (K,) running mean and quantile of runs' times, of what the site predicts: the policy's memory.
    mean: Floats
    high: Floats
    seen: Ints  # (K,) runs that it has learned from
    margin: float

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        margin: Annotated[
            Number,
            Field(
                description="A predicted time is believed to be longer by this many times its "
                "spread: the learned 0.95 quantile of service times less their mean."
            ),
        ] = MARGIN,
    ) -> Self:
        """Begin with the site's predictions, and no spread."""
        order = np.lexsort((-fleet.rate, -fleet.accuracy)).astype(np.int64)
        classes = len(order)
        return cls(
            order, np.ones(classes), np.ones(classes), np.zeros(classes, np.int64), float(margin)
        )

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Of the most accurate class with a server in time, the server that finishes first."""
        left_s = request.deadline_s - site.clock_s[0]
        for k in self.order:
            best, least_s, run_s = REJECT, np.inf, 0.0
            for server in range(site.first[k], site.first[k + 1]):
                if not request.allowed[server]:
                    continue
                wait_s, service_s = predicted_join(site, server, request.rows)
                end_s = wait_s + service_s
                # A server overdue with its last is predicted to be level with an idle one.
                shorter = best != REJECT and site.queue[server] < site.queue[best]
                if end_s < least_s - _TIE_S or (shorter and end_s <= least_s + _TIE_S):
                    best, least_s, run_s = server, end_s, service_s
            if best == REJECT:
                continue
            spread_s = max(0.0, self.high[k] - self.mean[k]) * np.sqrt(run_s * least_s)
            if self.mean[k] * least_s + self.margin * spread_s <= left_s:
                return best
        return REJECT

    def learn(self, site: Site, event: Event) -> None:
        """Move mean and quantile, less and less (Robbins, Monro), to what was seen at most."""
        if event.kind != COMPLETED or event.run_rows == 0 or not event.service_s > 0.0:
            return
        k = site.server_class[event.server]
        step = max(_LEAST_STEP, 1.0 / (2.0 + self.seen[k]))
        k = site.server_class[event.server]
        took_s = led(site.devices, k, event.run_rows, event.service_s)
        ratio = took_s / predicted_run(site, event.server, event.run_rows)
        self.mean[k] += step * (ratio - self.mean[k])
        above = ratio > self.high[k]
        if step > _LEAST_STEP:
            moved = self.high[k] * np.exp(step * (LEVEL if above else LEVEL - 1.0))
        else:
            moved = self.high[k] * (_UP if above else _DOWN)
        self.high[k] = min(moved, ratio) if above else max(moved, ratio)
        self.seen[k] += 1
