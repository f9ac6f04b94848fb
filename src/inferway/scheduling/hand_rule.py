"""The hand rule: a scheduler for what learned ones observe, in one sentence.

Not in the paper: where any server of the least accurate class is busy, or three requests or more
wait at the most accurate one, 12 % of the requests go to the latter and the rest to the former;
else all go to the most accurate. It shows how much of a learned policy one comparison would do.
"""

from __future__ import annotations

import numpy as np

from inferway.scheduling.contract import Routing, Signal
from inferway.scheduling.fixed import even, heaviest, lightest, only
from inferway.site.fleet import Fleet
from inferway.site.view import Site


class HandRule:
    """Two routings, and when which holds.

    Parameters
    ----------
    slot_s
        Time between two decisions, s.
    share
        Of the most accurate class while load is high.
    waiting
        Requests waiting at it from which on load is high.
    """

    sees_phase = False

    def __init__(
        self, fleet: Fleet, *, slot_s: float, share: float, waiting: int, on_rejection: bool
    ) -> None:
        self.slot_s = slot_s
        self.on_rejection = on_rejection
        light, heavy = lightest(fleet), heaviest(fleet)
        first = fleet.first
        self._light = slice(int(first[light]), int(first[light + 1]))
        self._heavy = slice(int(first[heavy]), int(first[heavy + 1]))
        self._waiting = waiting
        self._calm = even(fleet, only(fleet, heavy))
        self._busy = even(fleet, share * only(fleet, heavy) + (1 - share) * only(fleet, light))

    def observe(self, site: Site, signal: Signal) -> bool:
        """Whether load is high."""
        waiting = int(np.maximum(site.queue[self._heavy] - 1, 0).sum())
        return bool(site.queue[self._light].any()) or waiting >= self._waiting

    def act(self, observation: bool) -> Routing:
        """The routing for a high or a low load."""
        return self._busy if observation else self._calm
