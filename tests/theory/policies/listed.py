"""A policy whose decisions are written beforehand, with the batch rule of [Tan24]."""

from typing import NamedTuple

import numpy as np


class Listed(NamedTuple):
    """Servers in the order of arrivals."""

    at: np.ndarray
    """(1,) the next request."""
    server: np.ndarray
    """(N,)"""
    smallest: np.ndarray
    """(K,)"""
    largest: np.ndarray
    """(K,)"""

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, requests=4000):
        ones = np.ones(len(fleet.rate), np.int64)
        return cls(np.zeros(1, np.int64), np.zeros(requests, np.int64), ones, ones.copy())

    def choose(self, site, request, draw):
        self.at[0] += 1
        return self.server[self.at[0] - 1]

    def learn(self, site, event):  # reads a time, so that the engine keeps all of the view up
        if site.started_s[event.server] > np.inf:
            self.at[0] = 0

    def pull(self, site, server, draw):
        k, waiting = site.server_class[server], site.queue[server]
        return 0, 0 if waiting < self.smallest[k] else min(waiting, self.largest[k])
