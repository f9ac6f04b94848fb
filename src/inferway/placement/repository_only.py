"""Repository only: nothing but the minimal allocation omega, the zero of every gain (eq. 13)."""

from __future__ import annotations

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Allocation, Float
from inferway.placement.contract import Observation


class RepositoryOnly:
    """The minimal allocation, always."""

    def __init__(self, network: DeliveryNetwork) -> None:
        self._allocation = (network.pairs.pinned > 0).astype(np.uint8)

    @classmethod
    def build(
        cls, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> RepositoryOnly:
        """Make the policy, which needs neither."""
        del seed, batches
        return cls(network)

    @property
    def allocation(self) -> Allocation:
        """(P,) the minimal allocation."""
        return self._allocation

    @property
    def fractional(self) -> None:
        """None: there is no fractional state."""
        return

    def step(self, observation: Observation) -> Allocation:
        """Return the same allocation, whatever happened."""
        del observation
        return self._allocation
