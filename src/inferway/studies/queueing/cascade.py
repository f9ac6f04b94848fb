"""The usual cascade: a first variant, a threshold of its confidence, and a second variant below it.

A policy for studies only, loaded as a user's policy is, from its file. It is what `escalate` is to
be held against: chosen from the same tables, and fixed from then on.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from inferway.dispatch.bounds import UnreachableError
from inferway.dispatch.priced import WAIT, least_busy
from inferway.site import ACCEPT, Answer, Fleet, Request, Site, idle_in, uniform
from inferway.site.compiled import jit

NAME = f"{Path(__file__).resolve()}:Cascade"  # as a scenario names the policy

_NONE = -1.0  # A level that no accuracy is below
_ROUNDING = 1e-12


class Cascade(NamedTuple):
    """Ask the second class where the first one's answer is expected to be right too seldom."""

    first: int
    second: int
    level: float  # Expected accuracy below which the second class is asked
    share: float  # Of the answers of just this expected accuracy that are asked again

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Cascade:
        """Choose the pair and the threshold that take least service and keep the target.

        The bin at the threshold is asked again in part, at random, so that the target is kept
        exactly. A class alone is a pair whose second is never asked.

        Raises
        ------
        UnreachableError
            Where no pair keeps the target.
        ValueError
            Without a target or confidence.
        """
        tables = fleet.confidence
        if target is None or tables is None:
            raise ValueError("a cascade needs a target, and confidence of some class")
        service_s, plain = 1.0 / fleet.rate, tables.expected_accuracy()
        best, least_s = None, np.inf
        for i in range(len(service_s)):
            if plain[i] >= target - _ROUNDING and service_s[i] < least_s:
                best, least_s = cls(i, i, _NONE, 0.0), service_s[i]
            own = tables.expected[i, :, i]
            order = np.argsort(own, kind="stable")
            order = order[tables.mass[i, order] > 0.0]
            mass = tables.mass[i, order]
            for j in range(len(service_s)):
                gain = mass * (tables.expected[i, order, j] - own[order])
                reached = plain[i] + np.concatenate([[0.0], np.cumsum(gain)])
                enough = np.flatnonzero(reached >= target - _ROUNDING)
                if j == i or not len(enough) or enough[0] == 0:
                    continue
                last = int(enough[0]) - 1
                share = min(1.0, float((target - reached[last]) / gain[last]))
                asked = float(mass[:last].sum() + share * mass[last])
                if service_s[i] + asked * service_s[j] < least_s:
                    least_s = service_s[i] + asked * service_s[j]
                    best = cls(i, j, float(own[order[last]]), share)
        if best is None:
            raise UnreachableError(f"no cascade of two classes keeps the target {target:g}")
        return best

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The first class, always."""
        return _server(site, request, self.first)

    def settle(self, site: Site, request: Request, answer: Answer, draw: int) -> int:
        """The second class below the threshold, however long its queues are."""
        if answer.answers > 1:
            return ACCEPT
        own = answer.expected[self.first]
        if own < self.level - _ROUNDING:
            return _server(site, request, self.second)
        if own <= self.level + _ROUNDING and uniform(draw, 0) < self.share:
            return _server(site, request, self.second)
        return ACCEPT


@jit
def _server(site: Site, request: Request, k: int) -> int:
    """A free server of class k, or else the least busy one."""
    server = idle_in(site, request, k)
    if server < 0:
        server, _ = least_busy(site, request, k, WAIT)
    return server
