"""The hand rule: a scheduler for what learned ones observe, in one sentence.

Not in the paper: where any server of the least accurate class is busy, or three requests or more
wait at the most accurate one, 12 % of the requests go to the latter and the rest to the former;
else all go to the most accurate. It shows how much of a learned policy one comparison would do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from inferway.deployment.units import Count, Ratio
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
from inferway.scheduling.fixed import even, heaviest, lightest, only
from inferway.site.view import Site


@dataclass(frozen=True)
class HandRule:
    """Two routings, and when which holds."""

    slot_s: float
    on_rejection: bool
    waiting: int  # Requests waiting at the most accurate class from which on load is high
    light: slice  # Servers of the least accurate class,
    heavy: slice  # and of the most accurate one
    calm: Routing
    busy: Routing  # While load is high
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
        fleet = conditions.fleet
        least, most = lightest(fleet), heaviest(fleet)
        light, heavy = only(fleet, least), only(fleet, most)
        return cls(
            slot_s=slot,
            on_rejection=event == "rejection",
            waiting=waiting,
            light=slice(int(fleet.first[least]), int(fleet.first[least + 1])),
            heavy=slice(int(fleet.first[most]), int(fleet.first[most + 1])),
            calm=even(fleet, heavy),
            busy=even(fleet, share * heavy + (1 - share) * light),
        )

    def observe(self, site: Site, signal: Signal) -> bool:
        """Tell whether load is high."""
        waiting = int(np.maximum(site.queue[self.heavy] - 1, 0).sum())
        return bool(site.queue[self.light].any()) or waiting >= self.waiting

    def act(self, observation: bool) -> Routing:
        """The routing for a high or a low load."""
        return self.busy if observation else self.calm
