"""Every request to one class: the most accurate, whatever the latency, or the fastest."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from inferway.site import REJECT, Fleet, Request, Site, has_class, shortest_in, uniform
from inferway.site.view import Ints


class MostAccurateOnly(NamedTuple):
    """To the shortest queue of the most accurate class that the request may use."""

    order: Ints  # (K,) classes, as they are preferred; equal accuracies by speed

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's accuracies."""
        return cls(np.argsort(-fleet.accuracy, kind="stable"))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """The shortest queue of the class; REJECT where none of it takes the request."""
        for k in self.order:
            if has_class(request.classes, k):
                return shortest_in(site, request, k, uniform(draw, 0))
        return REJECT


class FastestOnly(MostAccurateOnly):
    """To the shortest queue of the fastest class: the least latency, whatever the accuracy."""

    __slots__ = ()

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Self:
        """By the fleet's rates, in whose order it is."""
        return cls(np.arange(len(fleet.rate)))
