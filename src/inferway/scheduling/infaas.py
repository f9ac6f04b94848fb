"""InFaaS: load balancing over the servers that are not overloaded (paper 003, Sec. 5.1.7).

INFaaS (Romero et al., USENIX ATC 2021) balances load over the instances of a variant and keeps
requests from those that it finds overloaded. The paper says no more of its version than that slots
last 0.1 s and that "any model instance being continuously overloaded" is avoided. Read here: at
each slot, every server with fewer than `overloaded` requests gets the same probability, the others
none; where all are overloaded, all get the same. The threshold is ours, as the paper prints none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.scheduling.contract import Routing, Signal
from inferway.site.fleet import Fleet
from inferway.site.view import Flags, Site


class Infaas:
    """Evenly over those that are not overloaded.

    Parameters
    ----------
    slot_s
        Time between two decisions, s.
    overloaded
        Requests at a server, the one in service included, from which on it is overloaded.
    """

    sees_phase = False

    def __init__(self, fleet: Fleet, *, slot_s: float, overloaded: int, on_rejection: bool) -> None:
        self.slot_s = slot_s
        self.on_rejection = on_rejection
        self._overloaded = overloaded
        self._ones = np.ones(len(fleet.rate), np.int64)

    def observe(self, site: Site, signal: Signal) -> Flags:
        """(n,) which servers are not overloaded."""
        return np.asarray((site.queue < self._overloaded) & site.healthy)

    def act(self, observation: Flags) -> Routing:
        """Evenly over these."""
        chosen: Any = observation if observation.any() else np.ones(len(observation))
        return Routing(chosen / chosen.sum(), self._ones, self._ones)
