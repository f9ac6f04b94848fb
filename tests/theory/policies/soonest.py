"""A policy that sees devices by `predicted_wait` alone, and not at each decision."""

from typing import NamedTuple

import numpy as np

from inferway.site import REJECT, predicted_wait, uniform

# Equal waits are sums in any order.
_SLACK = 1e-7


class Soonest(NamedTuple):
    """Where a request waits least; else where fewest requests are."""

    looks: float
    """Share of the requests that look at waits."""

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, looks=1.0):
        return cls(looks)

    def choose(self, site, request, draw):
        looks = uniform(draw, 0) < self.looks
        best, least = REJECT, np.inf
        for server in range(site.queue.size):
            if not request.allowed[server]:
                continue
            cost = predicted_wait(site, server) if looks else float(site.queue[server])
            if cost < least - _SLACK:
                best, least = server, cost
        return best
