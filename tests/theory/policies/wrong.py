"""A policy that names servers that there are not."""

from typing import NamedTuple


class Wrong(NamedTuple):
    """Always the same number."""

    number: int

    @classmethod
    def build(cls, fleet, *, target, rate_per_s, number=99):
        return cls(number)

    def choose(self, site, request, draw):
        return self.number
