"""A dispatch policy of one's own: the cheapest variant first, as long as its queue is short.

Name it in a deployment file as ``dispatch: {policy: ./cheapest.py:Cheapest}``.
"""

from typing import NamedTuple

import numpy as np

from inferway.site import REJECT


class Cheapest(NamedTuple):
    """To the server with the least price, counted once more for each request in its queue."""

    price: np.ndarray  # (K,) by class: the file's `price` of each variant

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(fleet.price + 1.0)

    def choose(self, site, request, draw):
        best, least = REJECT, np.inf
        for server in range(site.queue.size):
            cost = self.price[site.server_class[server]] * (1 + site.queue[server])
            if request.allowed[server] and cost < least:
                best, least = server, cost
        return best
