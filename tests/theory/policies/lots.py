"""Policies that draw a class by lot, for sites whose closed forms are known."""

from typing import NamedTuple

from inferway.site import REJECT, idle_in, uniform


class Lots(NamedTuple):
    """The first server of the class that has no request, whatever its device does."""

    share: float
    """Of requests for the first class."""

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, share=0.5):
        return cls(share)

    def choose(self, site, request, draw):
        k = 0 if uniform(draw, 0) < self.share else 1
        for server in range(site.first[k], site.first[k + 1]):
            if site.queue[server] == 0:
                return server
        return REJECT


class Lossy(NamedTuple):
    """An idle server of the class, or none at all."""

    share: float

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, share=0.5):
        return cls(share)

    def choose(self, site, request, draw):
        k = 0 if uniform(draw, 0) < self.share else 1
        return idle_in(site, request, k)
