"""Bregman projection onto the weighted capped simplex ([SiSalem23], Algorithm 2 and Theorem D.1).

The point of ``{y in [0, 1]^M: s'y = b}`` that is nearest in the divergence of the weighted negative
entropy is ``min(1, c y')`` for the one scale c that spends the budget. `project_sorted` finds c as
Algorithm 2 does, which sorts. `project` finds it by Newton's method on the spent budget,

    f(c) = sum_m s_m min(1, c y'_m),

which is increasing, concave and piecewise linear: from the scale that would be right without caps,
the steps go up to the root without passing it and end there exactly. A step costs one pass over
what is not capped yet; few are needed, because a pass caps all that the next scale lifts above 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from inferway.placement.contract import Float
from inferway.site.compiled import entry


def project(y: ArrayLike, size: ArrayLike, budget: float) -> Float:
    """Project onto the allocations that spend the budget, without sorting.

    Parameters
    ----------
    y
        (M,) positive numbers, the state after a gradient step (the paper's h).
    size
        (M,) sizes s, positive.
    budget
        The budget b, at least 0, in the same unit. Where all models fit, all become 1.

    Returns
    -------
    (M,) numbers in 0..1 with ``size @ y == min(budget, sum(size))``.

    Raises
    ------
    ValueError
        For arrays of unequal length, a number that is not positive, or a negative budget.
    """
    y, size = checked(y, size, budget)
    found = y.copy()
    _project(found, size, float(budget))
    return found


def project_sorted(y: ArrayLike, size: ArrayLike, budget: float) -> Float:
    """Project as Algorithm 2 does; parameters, result and errors as for `project`."""
    y, size = checked(y, size, budget)
    found = y.copy()
    _project_sorted(found, size, float(budget))
    return found


def checked(y: ArrayLike, size: ArrayLike, budget: float) -> tuple[Float, Float]:
    """Check numbers, sizes and budget; ValueError says what is wrong."""
    state, sizes = np.asarray(y, np.float64), np.asarray(size, np.float64)
    if state.ndim != 1 or state.shape != sizes.shape:
        raise ValueError(f"{state.shape} numbers cannot be projected with {sizes.shape} sizes")
    if not (np.all(state > 0) and np.all(np.isfinite(state))):
        raise ValueError("the negative entropy is for positive numbers; one to project is not")
    if not (np.all(sizes > 0) and np.all(np.isfinite(sizes))):
        raise ValueError("every size must be positive")
    if not budget >= 0:
        raise ValueError(f"the budget is {budget}, which is not at least 0")
    return state, sizes


@entry
def _project(y: Float, size: Float, budget: float) -> None:
    n = len(y)
    spent = 0.0
    total = 0.0
    for m in range(n):
        spent += size[m] * y[m]
        total += size[m]
    if budget >= total:
        y[:] = 1.0
        return
    scale = budget / spent
    # The models that are not capped, moved to the front as others fall away.
    open_ = np.arange(n)
    count = n
    left = budget
    while True:
        before = count
        count = 0
        spent = 0.0
        for i in range(before):
            m = open_[i]
            if scale * y[m] >= 1.0:
                left -= size[m]
                y[m] = 1.0
            else:
                spent += size[m] * y[m]
                open_[count] = m
                count += 1
        if count == before or count == 0:
            break
        scale = max(scale, left / spent)
    for i in range(count):
        y[open_[i]] *= scale


@entry
def _project_sorted(y: Float, size: Float, budget: float) -> None:
    n = len(y)
    order = np.argsort(y)
    open_ = np.empty(n)  # sum of s y' over the k + 1 smallest; summed upwards, for accuracy
    total = 0.0
    below = 0.0
    for k in range(n):
        m = order[k]
        below += size[m] * y[m]
        open_[k] = below
        total += size[m]
    if budget >= total:
        y[:] = 1.0
        return
    filled = 0.0  # sum of s over the others
    above = np.inf
    for k in range(n - 1, -1, -1):
        m = order[k]
        scale = (budget - filled) / open_[k]
        if scale * y[m] < 1.0 <= scale * above:
            for j in range(k + 1):
                y[order[j]] *= scale
            for j in range(k + 1, n):
                y[order[j]] = 1.0
            return
        above = y[m]
        filled += size[m]
    y[:] = 1.0
