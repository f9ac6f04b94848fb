"""Policies that ask two classes whatever they hold, for sites whose times are known."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.site import DISPATCHED, REJECT, any_in, uniform


class Turns(NamedTuple):
    """So many requests for the first class, then so many for the second, and again."""

    sent: NDArray[np.int64]
    first: int
    second: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, first=1, second=1):
        return cls(np.zeros(1, np.int64), first, second)

    def choose(self, site, request, draw):
        k = 0 if self.sent[0] % (self.first + self.second) < self.first else 1
        for server in range(site.first[k], site.first[k + 1]):
            if site.queue[server] == 0:
                return server
        return REJECT

    def learn(self, site, event):
        if event.kind == DISPATCHED:
            self.sent[0] += 1


class Timely(NamedTuple):
    """A class by lot, and of it a server that may be asked, if any."""

    share: float

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, share=0.5):
        return cls(share)

    def choose(self, site, request, draw):
        k = 0 if uniform(draw, 0) < self.share else 1
        return any_in(site, request, k, uniform(draw, 1))
