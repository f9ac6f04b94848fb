"""Repository only: nothing but the minimal allocation omega, the zero of every gain (eq. 13)."""

from __future__ import annotations

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Float, Static


class RepositoryOnly(Static):
    """The minimal allocation, always."""

    def __init__(
        self, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> None:
        self.allocation = (network.pairs.pinned > 0).astype(np.uint8)
