"""Static greedy, SG: models one after the other, by marginal gain per size ([SiSalem23], Sec. VI).

In hindsight, it starts from the minimal allocation and adds the (node, model) pair with the highest
marginal gain of G_T (eq. 14) divided by its size among those that still fit, each slot served as
`serve` does. The paper stops when "the intermediate allocation is capable of serving all requests"
or nothing gains any more; the first half can be read in two ways, so both are here:

* ``no-gain`` goes on for as long as anything gains;
* ``all-served`` stops once no request of any slot reaches a repository.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, Mask, Static
from inferway.placement.hindsight import Horizon, TaskView, horizon_of, needed, task_views
from inferway.placement.layout import layout_of
from inferway.placement.serving import fill
from inferway.site.compiled import entry, jit


class StaticGreedy(Static):
    """A static allocation by cost-benefit greedy, for (T, R) requests of each type and slot.

    It draws nothing. ValueError without batches, for such of another shape or an unknown `stop`.
    """

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        stop: Literal["no-gain", "all-served"] = "no-gain",
    ) -> None:
        if stop not in ("no-gain", "all-served"):
            raise ValueError(f"static greedy stops at no-gain or all-served, not at {stop!r}")
        horizon = horizon_of(network, needed(batches, "static-greedy"))
        self.allocation = _greedy(network, horizon, stop == "all-served")


def _greedy(network: DeliveryNetwork, horizon: Horizon, until_served: bool) -> Allocation:
    layout = layout_of(network)
    views = task_views(network)
    x = (network.pairs.pinned > 0).astype(np.uint8)
    left = layout.budget.copy()
    node = network.pairs.node
    density = np.full(len(x), -np.inf)
    owner = np.full(len(x), -1)
    upstream = np.zeros(len(views))

    def measure(i: int) -> None:
        view = views[i]
        requests = np.ascontiguousarray(horizon.requests[:, view.types])
        possible = layout.free[view.pairs] & (layout.size[view.pairs] <= left[node[view.pairs]])
        gains = np.zeros(len(view.pairs))
        upstream[i] = _marginals(
            view,
            requests,
            horizon.weight,
            layout.capacity[view.pairs],
            layout.pinned[view.pairs],
            x[view.pairs],
            possible,
            gains,
        )
        density[view.pairs] = np.where(possible, gains / layout.size[view.pairs], -np.inf)

    for i, view in enumerate(views):
        owner[view.pairs] = i
        measure(i)
    while True:
        fits = layout.size <= left[node]
        best = int(np.argmax(np.where(fits & (x == 0), density, -np.inf)))
        # Sums of many products: a gain of their rounding error is none.
        if not density[best] * layout.size[best] > 1e-9 * _scale(views, horizon):
            return x
        if not fits[best] or x[best]:
            return x
        if until_served and upstream.sum() <= 0:
            return x
        x[best] = 1
        left[node[best]] -= layout.size[best]
        measure(int(owner[best]))


def _scale(views: list[TaskView], horizon: Horizon) -> float:
    return max(float(view.cost.max()) for view in views) * float(horizon.requests.max())


@entry
def _marginals(
    view: TaskView,
    requests: Float,
    weight: Float,
    capacity: Float,
    pinned: Float,
    x: Allocation,
    possible: Mask,
    gains: Float,
) -> float:
    """Write the marginal gain of each possible pair; return what goes to a repository."""
    now, upstream = _spent(view, requests, weight, capacity, pinned, x)
    for p in range(len(x)):
        if possible[p] and x[p] == 0:
            x[p] = 1
            then, _ = _spent(view, requests, weight, capacity, pinned, x)
            x[p] = 0
            gains[p] = now - then
    return upstream


@jit
def _spent(
    view: TaskView, requests: Float, weight: Float, capacity: Float, pinned: Float, x: Allocation
) -> tuple[float, float]:
    """Mean cost of the task's slots, and its mean number of requests at a repository."""
    load = np.zeros(len(view.pair))
    total = 0.0
    upstream = 0.0
    for b in range(len(weight)):
        fill(view.first, view.pair, capacity, pinned, x, requests[b], load)
        for o in range(len(load)):
            total += weight[b] * view.cost[o] * load[o]
            if view.repository[o]:
                upstream += weight[b] * load[o]
    return total, upstream
