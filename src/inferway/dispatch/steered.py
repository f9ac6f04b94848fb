"""Steered: `alias` while a scheduler sets its routing, `deadline` while none can.

[Tan24], Sec. 6.3, trains a policy for each set of instances that faults may leave. Where a set
has none, each request goes to the most accurate server predicted to be in time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inferway.dispatch.alias import Alias
from inferway.dispatch.deadline import Deadline
from inferway.site import Event, Fleet, Request, Site
from inferway.site.compiled import jit
from inferway.site.view import Floats, Ints

# Their functions find by name the fields that they know.
_by_alias: Any = jit(Alias.choose)
_batch: Any = jit(Alias.pull)
_by_deadline: Any = jit(Deadline.choose)
_learn: Any = jit(Deadline.learn)


class Steered(NamedTuple):
    """The memories of both, and which of them decides."""

    threshold: Floats
    other: Ints
    probabilities: Floats
    smallest: Ints
    largest: Ints
    order: Ints
    slow_s: Floats
    seen: Ints
    margin: float
    steered: Ints  # (1,) 1 while a scheduler sets the routing

    @classmethod
    def build(cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None) -> Steered:
        """Begin with `deadline`."""
        alias = Alias.build(fleet, target=target, rate_per_s=rate_per_s)
        deadline = Deadline.build(fleet, target=target, rate_per_s=rate_per_s)
        return cls(*alias, *deadline, np.zeros(1, np.int64))

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """As the one that decides now."""
        if self.steered[0] != 0:
            return _by_alias(self, site, request, draw)
        return _by_deadline(self, site, request, draw)

    def pull(self, site: Site, server: int, draw: int) -> tuple[int, int]:
        """Batches as the scheduler says; one by one where there is none."""
        return _batch(self, site, server, draw) if self.steered[0] != 0 else (0, 1)

    def learn(self, site: Site, event: Event) -> None:
        """Service times are learned all the time, so that `deadline` is ready."""
        _learn(self, site, event)
