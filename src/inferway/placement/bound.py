"""The constant of INFIDA's regret bound ([SiSalem23], Theorem V.1 and Appendix G)."""

from __future__ import annotations

import math

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.layout import layout_of

PSI = 1.0 - 1.0 / math.e
"""The share of the best static gain that INFIDA is held to."""


def regret_constant(network: DeliveryNetwork) -> float:
    """A of ``(1 - 1/e)-regret <= A sqrt(T)``, in the unit of the options' costs times requests.

    After Lemmas F.2, F.3 and F.5: with R request types, the greatest capacity L, the greatest cost
    difference D to a repository, sizes s between their least and greatest, and budgets b,

        A = PSI R L D / s_min sqrt(s_max V M) sqrt(2 sum_v b_v log(S_v / b_v)),

    where S_v is what all models take together and b_v at most that. Nodes whose allocation is fixed
    are left out of the sum, and all models are counted, useful or not. The bound is for the worst
    adversary and loose by orders of magnitude; it is shown for its shape.

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
    spread = float(spent @ np.log(layout.total[budget > 0] / spent))
    models = len(network.nodes) * len(network.models.task)
    lipschitz = len(last) * float(capacity.max()) * difference / float(size.min())
    return PSI * lipschitz * math.sqrt(float(size.max()) * models) * math.sqrt(2.0 * spread)
