"""OLAG, the online load-aware greedy heuristic of [SiSalem23], Sec. VI."""

from __future__ import annotations

from typing import Literal

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Float
from inferway.placement.counters import Counting

__all__ = ["Olag"]


class Olag(Counting):
    """Greedy by counters, chosen anew at the end of each slot.

    Its counters count the requests that reach the node; see `inferway.placement.counters` for the
    other readings.
    """

    @classmethod
    def build(
        cls,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        counters: Literal["reaching", "forwarded"] = "reaching",
        carry: bool = True,
    ) -> Olag:
        """Make the policy, which draws nothing and needs no `batches`."""
        del seed, batches
        return cls(network, counters=counters, carry=carry)
