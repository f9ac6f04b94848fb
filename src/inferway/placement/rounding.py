"""DepRound: an integral allocation with the fractional one as its mean ([SiSalem23], Sec. IV-C).

Two fractional models at a time trade mass, at equal total size, until one of them is 0 or 1; at
most one *residual* model stays fractional. `elastic` budgets draw it, so that E[x] = y for all and
the budget is exceeded by less than its size at times. `strict` ones leave it out and fill what
remains with the models of the best marginal gain that still fit. (R. Gandhi et al.,
doi:10.1145/1147954.1147956; with sizes as in the paper.)
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.placement.contract import Allocation, Float, Mask
from inferway.placement.projection import checked
from inferway.site.compiled import entry, jit
from inferway.site.draw import uniform

# A fraction nearer to 0 or 1 than this is one.
_EXACT: Final = 1e-9
_WORD: Final = 2.0**53


def dep_round(
    y: ArrayLike,
    size: ArrayLike,
    draw: int,
    *,
    budget: float | None = None,
    value: ArrayLike | None = None,
) -> NDArray[np.uint8]:
    """Round one node's fractional allocation.

    Parameters
    ----------
    y
        (M,) numbers in 0..1.
    size
        (M,) sizes, positive.
    draw
        A 64-bit word; the same word gives the same result.
    budget
        Makes the budget strict; elastic if not given.
    value
        (M,) marginal gains that fill the rest of a strict budget; none if not given.

    Returns
    -------
    (M,) 0 or 1.

    Raises
    ------
    ValueError
        For arrays of unequal length, numbers outside 0..1, sizes that are not positive.
    """
    state, sizes = checked(np.maximum(y, np.finfo(float).tiny), size, 0.0)
    if state.size and state.max() > 1 + 1e-9:
        raise ValueError(f"fractions lie between 0 and 1, but one is {state.max():.6g}")
    x = np.zeros(len(state), np.uint8)
    values = np.zeros(len(state)) if value is None else np.asarray(value, np.float64)
    limit = np.inf if budget is None else float(budget)
    _round(state, sizes, draw, limit, budget is not None, values, x)
    return x


@jit
def word(draw: int, i: int) -> int:
    """Make an independent word from another: the i-th of its slots, the i-th of its nodes."""
    return int(uniform(draw, i) * _WORD)


@jit
def round_node(
    start: int, end: int, y: Float, size: Float, free: Mask, draw: int, strict: bool, x: Allocation
) -> float:
    """Round one node's pairs; return the size of what was chosen, pinned ones left out."""
    held = -1
    fraction = 0.0
    used = 0.0
    drawn = 0
    for p in range(start, end):
        if not free[p]:
            x[p] = 1
            continue
        other = y[p]
        if other < _EXACT or other > 1.0 - _EXACT:
            x[p] = other > 0.5
            used += size[p] * x[p]
            continue
        if held < 0:
            held, fraction = p, other
            continue
        ratio = size[p] / size[held]
        up = min(1.0 - fraction, ratio * other)
        down = min(fraction, ratio * (1.0 - other))
        if uniform(draw, drawn) * (up + down) < down:
            fraction += up
            other -= up / ratio
        else:
            fraction -= down
            other += down / ratio
        drawn += 1
        if _EXACT < fraction < 1.0 - _EXACT:
            x[p] = other > 0.5
            used += size[p] * x[p]
        else:
            x[held] = fraction > 0.5
            used += size[held] * x[held]
            held, fraction = p, other
            if other < _EXACT or other > 1.0 - _EXACT:
                x[p] = other > 0.5
                used += size[p] * x[p]
                held = -1
    if held >= 0:
        x[held] = not strict and uniform(draw, drawn) < fraction
        used += size[held] * x[held]
    return used


@jit
def fill_node(
    start: int, end: int, size: Float, free: Mask, value: Float, left: float, x: Allocation
) -> None:
    """Add the pairs of the best marginal gain that still fit into what is `left`."""
    while True:
        best = -1
        for p in range(start, end):
            fits = free[p] and x[p] == 0 and size[p] <= left
            if fits and value[p] > 0.0 and (best < 0 or value[p] > value[best]):
                best = p
        if best < 0:
            return
        x[best] = 1
        left -= size[best]


@entry
def _round(
    y: Float, size: Float, draw: int, budget: float, strict: bool, value: Float, x: Allocation
) -> None:
    free = np.ones(len(y), np.bool_)
    used = round_node(0, len(y), y, size, free, draw, strict, x)
    if strict:
        fill_node(0, len(y), size, free, value, budget - used, x)
