"""A policy that asks a second variant by one threshold, as a user's file has it."""

CASCADE = '''
from typing import NamedTuple

from inferway.site import ACCEPT, has_class


class Cascade(NamedTuple):
    """Asks the second class where the first one is less sure than half."""

    least: float

    @classmethod
    def build(cls, fleet, *, target, rate_per_s):
        return cls(0.5)

    def choose(self, site, request, draw):
        return site.first[0 if has_class(request.classes, 0) else 1]

    def settle(self, site, request, answer, draw):
        return site.first[1] if answer.expected[0] < self.least else ACCEPT
'''
