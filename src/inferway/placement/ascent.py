"""Mirror ascent with the weighted negative entropy, node by node ([SiSalem23], Algorithm 1).

With the map ``sum_m s_m y_m log y_m`` a step of rate eta along a subgradient g multiplies y_m by
``exp(eta g_m / s_m)``; the projection (Algorithm 2) scales and caps. Two departures:

* Models that no request type can use start equal and never get a gradient, so they stay equal: they
  share one number per node, and memory and time follow the useful pairs only. This is exact.
* No y falls below `FLOOR`. A model that was of no use for hours would otherwise need hours to come
  back, or underflow and never come back at all. (The paper, too, drops what is nearly 0.)

The learning rate needs no tuning: AdaGrad-norm at each node,

    eta_v(t) = RATE / sqrt(sum over slots up to t of max_m (g_m / s_m)^2),

has no unit of its own, follows the scale of costs, request rates and sizes, and shrinks as
1/sqrt(t) where gradients stay as large, as the regret bound asks (M. Streeter and H. B. McMahan,
arXiv:1002.4862). The norm is the dual one of Lemma F.4.
"""

from __future__ import annotations

import numpy as np

from inferway.placement.contract import Float, Mask
from inferway.placement.layout import Layout
from inferway.site.compiled import entry, jit

FLOOR = 1e-6
"""Least fractional allocation."""
RATE = 32.0
"""Numerator of the tuning-free rate: the largest change of any log y in the first step."""
_STEEPEST = 600.0  # largest exponent that stays finite with room for the projection


@entry
def initial(layout: Layout, y: Float, spread: Float) -> None:
    """Write the first state: the least of the mirror map, equal shares of every node's budget."""
    for v in range(len(spread)):
        total = layout.total[v]
        share = 1.0 if total <= layout.budget[v] else layout.budget[v] / total
        spread[v] = share
        for p in range(layout.first[v], layout.first[v + 1]):
            y[p] = share if layout.free[p] else 1.0


@jit
def steepness(start: int, end: int, size: Float, free: Mask, g: Float) -> float:
    """The largest g / s of a node's pairs, the dual norm of its subgradient."""
    top = 0.0
    for p in range(start, end):
        if free[p]:
            top = max(top, g[p] / size[p])
    return top


@jit
def ascend(layout: Layout, v: int, g: Float, rate: float, y: Float, spread: float) -> float:
    """Step and project one node's pairs in place; return the new `spread`.

    The budget must be less than what all models take together.
    """
    start, end = layout.first[v], layout.first[v + 1]
    size, free, budget, rest = layout.size, layout.free, layout.budget[v], layout.rest[v]
    # Gradients are never negative, so before capping the budget is overspent at scale 1. Most often
    # what is above 1 there is above 1 at the end, and Newton's method starts close to its root.
    above = rest if spread >= 1.0 else 0.0
    below = 0.0 if spread >= 1.0 else rest * spread
    for p in range(start, end):
        if free[p]:
            if g[p] > 0.0:
                y[p] *= np.exp(min(_STEEPEST, rate * g[p] / size[p]))
            if y[p] >= 1.0:
                above += size[p]
            else:
                below += size[p] * y[p]
    if above < budget and below > 0.0:
        scale = (budget - above) / below
    else:
        spent = rest * spread
        for p in range(start, end):
            if free[p]:
                spent += size[p] * y[p]
        scale = budget / spent
    capped = -1.0
    while True:
        above = rest if scale * spread >= 1.0 else 0.0
        below = 0.0 if scale * spread >= 1.0 else rest * spread
        for p in range(start, end):
            if free[p]:
                if scale * y[p] >= 1.0:
                    above += size[p]
                else:
                    below += size[p] * y[p]
        if above <= capped or below <= 0.0:
            break
        capped = above
        scale = max(scale, (budget - above) / below)
    for p in range(start, end):
        if free[p]:
            y[p] = max(FLOOR, min(1.0, scale * y[p]))
    return max(FLOOR, min(1.0, scale * spread))
