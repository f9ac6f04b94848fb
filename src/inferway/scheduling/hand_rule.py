"""The hand rule: a scheduler for what learned ones observe, in one sentence.

Not in the paper: where any server of the least accurate class is busy, or three requests or more
wait at the most accurate one, 12 % of the requests go to the latter and the rest to the former;
else all go to the most accurate. It shows how much of a learned policy one comparison would do.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from inferway.deployment.units import Count, Ratio
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
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

    @classmethod
    def build(
        cls,
        conditions: Conditions,
        *,
        slot: Slot = 1.0,
        event: Event = None,
        share: Annotated[
            Ratio, Field(description="Share of the most accurate variant while load is high.")
        ] = 0.12,
        waiting: Annotated[
            Count, Field(description="Requests waiting there from which on load is high.")
        ] = 3,
    ) -> HandRule:
        """Make the rule for a fleet."""
        return cls(
            conditions.fleet,
            slot_s=slot,
            share=share,
            waiting=waiting,
            on_rejection=event == "rejection",
        )

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
