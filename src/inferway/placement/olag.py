"""OLAG, the online load-aware greedy heuristic of [SiSalem23], Sec. VI, in two readings.

`Olag` is the strong one. Departures from the text's letter: once a model is chosen, what it serves
is subtracted from the counters of models of equal gain too, which its replicas are (the text says
lower gain: then a model that serves all is bought again, as often as it fits); counters start at 0
in each slot; and they count the requests that reach a node, not those that it forwards.
`OlagLiteral` keeps the text's ``<`` and carries counters over. It counts what reaches a node, too:
the counters of what is forwarded, word by word, are `inferway.placement.greedy`'s.
"""

from __future__ import annotations

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Float
from inferway.placement.counters import Counting


class Olag(Counting):
    """Greedy by the counters of one slot, chosen anew at its end."""

    @classmethod
    def build(
        cls, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> Olag:
        """Make the policy, which draws nothing and needs no `batches`."""
        del seed, batches
        return cls(network, counters="reaching", carry=False, equal=True)


class OlagLiteral(Counting):
    """Greedy by counters that carry over, and that replicas of the chosen model keep."""

    @classmethod
    def build(
        cls, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> OlagLiteral:
        """Make the policy, which draws nothing and needs no `batches`."""
        del seed, batches
        return cls(network, counters="reaching", carry=True, equal=False)
