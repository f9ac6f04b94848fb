"""Join the idle queue ([Anonymous], Fig. 1): higher accuracies first, or faster servers."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from inferway.site import Fleet, Request, Site, any_between, idle_in, uniform
from inferway.site.view import Ints


class JiqAccurate(NamedTuple):
    """To an idle server of the most accurate class that has one, else to any server."""

    order: Ints  # (K,) classes, as they are preferred; equal accuracies by speed

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's accuracies."""
        return cls(np.argsort(-fleet.accuracy, kind="stable"))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """An idle server of the first class; where none is idle, one uniformly at random."""
        for k in self.order:
            server = idle_in(site, request, k)
            if server >= 0:
                return server
        return any_between(site, request, 0, site.queue.size, uniform(draw, 0))


class JiqFast(JiqAccurate):
    """To an idle server of the fastest class that has one, else to any server."""

    __slots__ = ()

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's rates, in whose order it is."""
        return cls(np.arange(len(fleet.rate)))
