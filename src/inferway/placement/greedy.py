"""The conference's greedy heuristic ([SiSalem21], Sec. VI).

The rule is OLAG's; the text differs in its counters alone, which "keep track of the number of times
a request is forwarded upstream": taken literally, as here, a node credits no model that it has.
"""

from __future__ import annotations

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Float
from inferway.placement.counters import Counting


class Greedy(Counting):
    """Greedy by counters of what was forwarded."""

    @classmethod
    def build(
        cls, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> Greedy:
        """Make the policy, which draws nothing and needs no `batches`."""
        del seed, batches
        return cls(network, counters="forwarded", carry=True, equal=False)
