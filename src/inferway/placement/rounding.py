"""From a step to an allocation: projection, and rounding.

Bregman projection onto the weighted capped simplex ([SiSalem23], Algorithm 2 and Theorem D.1).

The point of ``{y in [0, 1]^M: s'y = b}`` that is nearest in the divergence of the weighted negative
entropy is ``min(1, c y')`` for the one scale c that spends the budget. `project_sorted` finds c as
Algorithm 2 does, which sorts. `project` finds it by Newton's method on the spent budget,

    f(c) = sum_m s_m min(1, c y'_m),

which is increasing, concave and piecewise linear: from the scale that would be right without caps,
the steps go up to the root without passing it and end there exactly. A step costs one pass over
what is not capped yet; few are needed, because a pass caps all that the next scale lifts above 1.

DepRound: an integral allocation with the fractional one as its mean ([SiSalem23], Sec. IV-C).

Two fractional models at a time trade mass, at equal total size, until one of them is 0 or 1; at
most one *residual* model stays fractional. `elastic` budgets draw it, so that E[x] = y for all and
the budget is exceeded by less than its size at times. `strict` ones leave it out and fill what
remains with the models of the best marginal gain that still fit. (R. Gandhi et al.,
doi:10.1145/1147954.1147956; with sizes as in the paper.)

Coupled rounding: successive allocations share their random numbers, so that few models move.
DepRound draws anew every slot, and models come and go although the fractional state has settled.
Here each node keeps one *permanent random number* per task, u, and every model gets from it

    u_m = frac(u - (sum of y over the task's models before m)),

uniform in [0, 1). The models with ``u_m < y_m`` are a systematic sample (W. G. Madow, doi:10.1214/
aoms/1177729988): each is in it with probability y_m, and of a task's models, which replace each
other, there are always as many as they sum to, rounded up or down.

Their sizes need not fit the budget. Plainly dropping what exceeds it costs gain where budgets are
tight. Instead the models enter in the order of u_m / y_m while they fit, as in sequential Poisson
sampling (E. Ohlsson, Journal of Official Statistics 14(2), 1998): those with u_m < y_m rank below 1
and all others above, so a node that drew too much drops what was the least certain, and one that
drew too little fills up with what nearly was in. The budget always holds. E[x] = y holds up to that
trim, not exactly.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.placement.contract import Allocation, Float, Index, Mask, Offset
from inferway.placement.layout import Layout
from inferway.placement.serving import sink
from inferway.site.compiled import entry, jit
from inferway.site.draw import uniform

# A fraction nearer to 0 or 1 than this is one.
_EXACT: Final = 1e-9
_WORD: Final = 2.0**53


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
    for holds, sentence in (
        (
            state.ndim == 1 and state.shape == sizes.shape,
            f"{state.shape} numbers cannot be projected with {sizes.shape} sizes",
        ),
        (
            np.all((state > 0) & np.isfinite(state)),
            "the negative entropy is for positive numbers; one to project is not",
        ),
        (np.all((sizes > 0) & np.isfinite(sizes)), "every size must be positive"),
        (budget >= 0, f"the budget is {budget}, which is not at least 0"),
    ):
        if not holds:
            raise ValueError(sentence)
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


# Below this probability a model is not even ranked; the floor of the state lies below.
_NEGLIGIBLE: Final = 1e-5


Scratch = tuple[Float, Index, Index]


@jit
def scratch_for(first: Offset) -> Scratch:
    """Make the room that `couple_node` needs at the node with the most pairs."""
    most = 0
    for v in range(len(first) - 1):
        most = max(most, first[v + 1] - first[v])
    return np.empty(most), np.empty(most, np.int32), np.empty(most, np.int32)


@jit
def couple_node(
    layout: Layout, v: int, y: Float, draw: int, scratch: Scratch, x: Allocation
) -> None:
    """Choose one node's pairs; `draw` is the node's word, the same in every slot."""
    start, end, left = layout.first[v], layout.first[v + 1], layout.budget[v]
    free, size, model, task = layout.free, layout.size, layout.model, layout.task
    rank, heap, place = scratch
    count = 0
    smallest = np.inf
    last = -1
    offset = 0.0
    for p in range(start, end):
        if not free[p]:
            x[p] = 1
            continue
        x[p] = 0
        if task[model[p]] != last:
            last = task[model[p]]
            offset = uniform(draw, int(last))
        u = offset - np.floor(offset)
        offset -= y[p]
        if y[p] >= 1.0 and size[p] <= left:
            x[p] = 1
            left -= size[p]
        elif y[p] > _NEGLIGIBLE:
            rank[p - start] = u / y[p]
            heap[count] = p - start
            count += 1
            smallest = min(smallest, size[p])
    # Most candidates never get their turn: a heap leaves them unsorted.
    for i in range(count // 2 - 1, -1, -1):
        sink(heap, place, rank, i, count)
    while count > 0 and left >= smallest:
        p = start + heap[0]
        count -= 1
        heap[0] = heap[count]
        sink(heap, place, rank, 0, count)
        if size[p] <= left:
            x[p] = 1
            left -= size[p]
