"""Fixed routing (LW and HW): all to one class, evenly over its servers ([Tan24], Sec. 5.1.7).

The paper gives these baselines four instances of their variant; here they use those of that class
that the site has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inferway.scheduling.contract import Conditions, Routing, Signal
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Site


@dataclass(frozen=True)
class FixedRouting:
    """The same routing for ever."""

    routing: Routing
    slot_s = math.inf
    sees_phase = False
    on_rejection = False

    @classmethod
    def build(cls, conditions: Conditions) -> FixedRouting:
        """Send all to the least accurate class for `lw`, to the most accurate one else."""
        fleet = conditions.fleet
        k = lightest(fleet) if conditions.policy == "lw" else heaviest(fleet)
        return cls(even(fleet, only(fleet, k)))

    def observe(self, site: Site, signal: Signal) -> None:
        """Nothing."""

    def act(self, observation: None) -> Routing:
        """Decide as it was made to."""
        return self.routing


def even(fleet: Fleet, share: Floats) -> Routing:
    """Routing with (K,) probabilities by class, each split evenly over its servers, no batches."""
    ones = np.ones(len(fleet.rate), np.int64)
    return Routing(np.repeat(np.asarray(share) / fleet.count, fleet.count), ones, ones)


def only(fleet: Fleet, k: int) -> Floats:
    """(K,) all to class k."""
    return np.asarray(np.eye(len(fleet.rate))[k])


def lightest(fleet: Fleet) -> int:
    """The least accurate class; of equal ones the fastest."""
    return int(np.argmin(fleet.accuracy))


def heaviest(fleet: Fleet) -> int:
    """The most accurate class; of equal ones the fastest."""
    return int(np.argmax(fleet.accuracy))
