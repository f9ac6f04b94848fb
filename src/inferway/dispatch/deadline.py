"""Deadline: the most accurate server that is predicted to finish in time, or none at once.

Not in the papers: a rule that needs no training where a request has a deadline and the task no
accuracy target. Predictions are on the safe side, since a request that is late costs its whole
accuracy and one that is sent to a less accurate server costs a difference: each request at a
server is taken to last a margin longer than a high quantile of the service times seen there.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from inferway.deployment.units import PositiveNumber
from inferway.site import COMPLETED, REJECT, Event, Fleet, Request, Site
from inferway.site.view import Floats, Ints

LEVEL = 0.95  # Of the running quantile
MARGIN = 1.5
_LEAST_STEP = 0.02


class Deadline(NamedTuple):
    """Accuracy first, among those in time."""

    order: Ints  # (K,) classes, the most accurate first
    slow_s: Floats  # (K,) running quantile of service times, s: the policy's memory
    seen: Ints  # (K,) service times that it has learned from
    margin: float

    @classmethod
    def build(
        cls,
        fleet: Fleet,
        *,
        target: float | None,
        rate_per_s: float | None,
        margin: Annotated[
            PositiveNumber,
            Field(
                ge=1,
                description="Service times are believed to be this much longer than their learned "
                "quantile.",
            ),
        ] = MARGIN,
    ) -> Self:
        """Begin with the fleet's mean service times."""
        order = np.lexsort((-fleet.rate, -fleet.accuracy)).astype(np.int64)
        return cls(order, 1.0 / fleet.rate, np.zeros(len(order), np.int64), float(margin))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Of the most accurate class with a server in time, the server that finishes first."""
        now_s = site.clock_s[0]
        for k in self.order:
            each_s = self.margin * self.slow_s[k]
            best, least = REJECT, np.inf
            for server in range(site.first[k], site.first[k + 1]):
                if not request.allowed[server]:
                    continue
                # In services, not seconds: a server overdue with its last is level with an idle one
                # but for rounding, which must not decide.
                ahead = float(site.queue[server])
                served_s = now_s - site.started_s[server]  # nan where nothing is in service
                if served_s > 0.0:
                    ahead -= min(1.0, served_s / each_s)
                shorter = best != REJECT and site.queue[server] < site.queue[best]
                if ahead < least or (ahead == least and shorter):
                    best, least = server, ahead
            if best != REJECT and now_s + (least + 1.0) * each_s <= request.deadline_s:
                return best
        return REJECT

    def learn(self, site: Site, event: Event) -> None:
        """Move the quantile: up by its level, down by the rest, less and less (Robbins, Monro)."""
        if event.kind != COMPLETED or not event.service_s > 0.0:
            return
        k = site.server_class[event.server]
        step = max(_LEAST_STEP, 1.0 / (2.0 + self.seen[k]))
        longer = event.service_s > self.slow_s[k] * event.rows
        self.slow_s[k] *= np.exp(step * (LEVEL if longer else LEVEL - 1.0))
        self.seen[k] += 1
