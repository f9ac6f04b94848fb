"""Coupled rounding: successive allocations share their random numbers, so that few models move.

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

from inferway.placement.contract import Allocation, Float, Index, Offset
from inferway.placement.layout import Layout
from inferway.placement.serving import sink
from inferway.site.compiled import jit
from inferway.site.draw import uniform

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
