"""Dispatch policies for studies alone, as a user's file has them (`./rules.py:Tied`).

`Tied` is the single queue with other ways to choose among idle servers than `inferway.dispatch`
has; `Believed` is `deadline` with set beliefs about service times: what a wrong one costs;
`Joining` is `deadline` without its rules for batches: what these bring.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from inferway.dispatch.deadline import Deadline
from inferway.site import HOLD, REJECT, Event, Fleet, Request, Site, predicted_join, uniform

RULES = ("light", "coin", "pair")


class Tied(NamedTuple):
    """One queue; light servers have the lower numbers."""

    # Place in `RULES`: a light one first; a class by a fair coin, where both have idle servers;
    # any, but the heavy one where exactly one of each is idle, as the paper's sentence can be read.
    rule: int

    @classmethod
    def build(
        cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None, rule: str
    ) -> Tied:
        """ValueError for a rule that is none of `RULES`."""
        del fleet, target, rate_per_s
        if rule not in RULES:
            raise ValueError(f"a rule is one of {', '.join(RULES)}, not {rule}")
        return cls(RULES.index(rule))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server; HOLD where there is none."""
        idle = np.flatnonzero(site.queue == 0)
        light = np.searchsorted(idle, site.first[1])
        heavy = idle.size - light
        if idle.size == 0:
            return HOLD
        low, high = 0, idle.size
        if self.rule == 0 and light > 0:
            high = light
        elif self.rule == 1 and light > 0 and heavy > 0:
            if uniform(draw, 1) < 0.5:
                high = light
            else:
                low = light
        elif self.rule == 2 and light == 1 and heavy == 1:
            low = light
        return int(idle[low + int(uniform(draw, 0) * (high - low))])


class Believed(Deadline):
    """`deadline` that keeps believing its margin times the fleet's mean service times."""

    __slots__ = ()

    @classmethod
    def build(
        cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None, margin: float = 1.0
    ) -> Self:
        """Believe in times longer by this factor, and in no spread."""
        policy = super().build(fleet, target=target, rate_per_s=rate_per_s, margin=0.0)
        policy.mean[:] = margin
        return policy

    def learn(self, site: Site, event: Event) -> None:
        """Nothing."""


class Joining(Deadline):
    """`deadline` that heeds neither those who wait for a batch nor those who will come."""

    __slots__ = ()

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """Of the most accurate class with a server in time, the server that finishes first."""
        left_s = request.deadline_s - site.clock_s[0]
        for k in self.order:
            best, least_s, run_s = REJECT, np.inf, 0.0
            for server in range(site.first[k], site.first[k + 1]):
                wait_s, service_s = predicted_join(site, server, request.rows)
                if request.allowed[server] and wait_s + service_s < least_s - 1e-9:
                    best, least_s, run_s = server, wait_s + service_s, service_s
            spread_s = max(0.0, self.high[k] - self.mean[k]) * np.sqrt(run_s * least_s)
            if best != REJECT and self.mean[k] * least_s + self.margin * spread_s <= left_s:
                return best
        return REJECT
