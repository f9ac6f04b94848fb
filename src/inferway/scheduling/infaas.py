"""InFaaS: load balancing over the servers that are not overloaded ([Tan24], Sec. 5.1.7).

INFaaS (Romero et al., USENIX ATC 2021) balances load over the instances of a variant and keeps
requests from those that it finds overloaded. The paper says no more of its version than that slots
last 0.1 s and that "any model instance being continuously overloaded" is avoided. Read here: a
server is overloaded where serving what it has takes half of the deadline or longer; at each slot,
the others get the same probability each, and where all are overloaded, all get the same. The half
is ours, as the paper prints no threshold. Counting requests instead of their time was tried: light
servers then count as overloaded too, and whatever the threshold, late requests double.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from inferway.deployment.units import Ratio
from inferway.scheduling.contract import Conditions, Event, Routing, Signal, Slot
from inferway.site.view import Flags, Ints, Site


@dataclass(frozen=True)
class Infaas:
    """Evenly over those that are not overloaded."""

    slot_s: float
    on_rejection: bool
    most_s: float  # For how long a server has work from which on it is overloaded, s
    ones: Ints  # (K,) batch sizes
    sees_phase = False

    @classmethod
    def build(
        cls,
        conditions: Conditions,
        *,
        slot: Slot = 0.1,
        event: Event = None,
        overloaded: Annotated[
            Ratio,
            Field(
                gt=0,
                description="Share of the deadline that serving what waits takes where an instance "
                "is overloaded.",
            ),
        ] = 0.5,
    ) -> Infaas:
        """Make it for a fleet; ValueError without a deadline."""
        ones = np.ones(len(conditions.fleet.rate), np.int64)
        return cls(slot, event == "rejection", overloaded * conditions.deadline(), ones)

    def observe(self, site: Site, signal: Signal) -> Flags:
        """(n,) which servers are not overloaded."""
        work_s = site.queue / site.rate[site.server_class]
        return np.asarray((work_s < self.most_s) & site.healthy)

    def act(self, observation: Flags) -> Routing:
        """Evenly over these."""
        chosen: Any = observation if observation.any() else np.ones(len(observation))
        return Routing(chosen / chosen.sum(), self.ones, self.ones)
