"""The constants of INFIDA's regret bound, and the learning rate that they give.

[SiSalem23], App. F and G. Mirror ascent with a constant rate eta over T slots loses to the best
fractional allocation at most (eq. 161)

    D / eta + eta sigma^2 T / (2 theta),

and eta = sqrt(2 theta D / T) / sigma makes this least: sigma sqrt(2 D T / theta), eq. 162. Rounding
keeps the share `PSI` of the fractional gain, so INFIDA's regret against that share of the best
static allocation is at most A sqrt(T) with A = PSI sigma sqrt(2 D / theta), Theorem V.1. The bound
is for the worst adversary and loose by orders of magnitude; so is the rate too small.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.layout import layout_of

PSI: Final = 1.0 - 1.0 / math.e  # The share of the best static gain that INFIDA is held to


class RegretBound(NamedTuple):
    """Constants of the bound; costs are in the unit of the options' costs."""

    convexity: float  # theta of the mirror map, Lemma F.2, 1/bytes
    steepness: float  # sigma of the subgradients, Lemma F.3, cost times requests per byte
    divergence: float  # D of any allocation from the first, Lemma F.5, bytes

    @property
    def constant(self) -> float:
        """A of ``(1 - 1/e)-regret <= A sqrt(T)``, in cost times requests."""
        flat = math.sqrt(1.0 / self.convexity)
        return PSI * self.steepness * flat * math.sqrt(2.0 * self.divergence)

    def fractional(self, slots: int) -> float:
        """Greatest regret of the fractional allocation after T slots with their `rate`, eq. 162."""
        return self.steepness * math.sqrt(2.0 * self.divergence * slots / self.convexity)

    def rate(self, slots: int) -> float:
        """Learning rate for T slots (App. G), in bytes per cost and request."""
        return math.sqrt(2.0 * self.convexity * self.divergence / slots) / self.steepness


def regret_bound(network: DeliveryNetwork) -> RegretBound:
    """Compute the constants of a network.

    With R request types, V nodes, M models, the greatest capacity L, the greatest cost difference
    to a repository, sizes s between their least and greatest, and budgets b,

        theta = 1 / (s_max V M),   sigma = R L (greatest difference) / s_min,
        D = sum_v b_v log(S_v / b_v),

    where S_v is what all models take together and b_v at most that. Nodes whose allocation is fixed
    are left out of the sum, and all models are counted, useful or not.

    Raises
    ------
    ValueError
        Where placement has nothing to decide.
    """
    layout, options = layout_of(network), network.options
    free = layout.free
    if not free.any():
        raise ValueError("no pair is left to placement, so there is no regret to bound")
    last = options.cost[options.first[1:] - 1]
    difference = float((last - options.cost[options.first[:-1]]).max())
    size, capacity = layout.size[free], layout.capacity[free]
    budget = np.minimum(layout.budget, layout.total)
    spent = budget[budget > 0]
    return RegretBound(
        convexity=1.0 / (float(size.max()) * len(network.nodes) * len(network.models.task)),
        steepness=len(last) * float(capacity.max()) * difference / float(size.min()),
        divergence=float(spent @ np.log(layout.total[budget > 0] / spent)),
    )
