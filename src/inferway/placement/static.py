"""Static allocations: what a file lists, repositories alone, and two policies in hindsight.

Both maximize the time-averaged gain G_T ([SiSalem23], eq. 14), each slot served as `serve` does.
Slots with the same requests are counted once, with a weight. A task's gain depends on its own
models only (tasks meet in the budgets alone), so it can be evaluated on the task's arrays.

INFIDA offline makes one static allocation from INFIDA's own average (Prop. V.1.1). Each iteration
takes a mirror step along the subgradient of G_T. As in the paper's experiments, the potential
available capacities are those that the current integral allocation leaves in each slot. The
fractional states are averaged and rounded. Departure: several roundings are drawn and the best in
hindsight is kept, which an offline policy can see; the guarantee in expectation holds for each.

Static greedy, SG (Sec. VI), starts from the minimal allocation and adds the (node, model) pair with
the highest marginal gain of G_T divided by its size among those that still fit. The paper stops
when "the intermediate allocation is capable of serving all requests" or nothing gains any more; the
first half can be read in two ways, so both are here:

* ``no-gain`` goes on for as long as anything gains;
* ``all-served`` stops once no request of any slot reaches a repository.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.deployment.units import SIZE
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, Mask, Observation, batches_of
from inferway.placement.infida import (
    couple_all,
    initial,
    learn_all,
    options_of,
    round_all,
    subgradient_of_loads,
)
from inferway.placement.layout import Layout, layout_of
from inferway.placement.objective import minimal
from inferway.placement.serving import fill, serve
from inferway.site.compiled import entry, jit

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class Static:
    """A policy whose allocation never changes: whoever derives from it sets `allocation`.

    Those that learn, and have no fractional state, `step` in their own way.
    """

    allocation: Allocation
    fractional: Float | None = None

    @classmethod
    def build(cls, network: DeliveryNetwork, **options: Any) -> Self:
        """Make the policy."""
        return cls(network, **options)  # type: ignore[call-arg]

    def step(self, observation: Observation) -> Allocation:
        """Return the same allocation, whatever happened."""
        return self.allocation


class RepositoryOnly(Static):
    """Nothing but the minimal allocation omega, the zero of every gain (eq. 13)."""

    def __init__(
        self, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> None:
        self.allocation = minimal(network).astype(np.uint8)


class Written(Static):
    """The instances that the file lists; those that no request type can use are passed over.

    A counted task's own name stands for all of them. ValueError where a node's instances exceed its
    budget.
    """

    def __init__(self, deployment: Deployment, network: DeliveryNetwork) -> None:
        self.allocation = minimal(network).astype(np.uint8)
        pairs, models, layout = network.pairs, network.models, layout_of(network)
        task, variant = models.task[pairs.model], models.variant[pairs.model]
        index = {name: node for node, name in enumerate(network.nodes)}
        names = np.array(network.variants)[variant]  # those of different tasks may be equal
        for node in deployment.nodes.values():
            place = index[node.name]
            here = (pairs.node == place) & ~network.repository[place]
            for (name, one), count in node.instances.items():
                for number, own in enumerate(network.tasks):
                    stem, _, last = own.rpartition("-")
                    if own == name or (stem == name and last.isdecimal()):
                        copies = np.flatnonzero(here & (task == number) & (names == one))
                        self.allocation[copies[:count]] = 1
        decided = np.where(layout.free, self.allocation * pairs.size, 0.0)
        used = np.bincount(pairs.node, decided, len(network.nodes))
        over = np.flatnonzero(used > layout.budget * (1 + 1e-12))
        if over.size:
            place = int(over[0])
            raise ValueError(
                f"node {network.nodes[place]}: its instances take {SIZE.write(used[place])}, more "
                f"than its budget leaves for them, {SIZE.write(layout.budget[place])}"
            )


class Horizon(NamedTuple):
    """The different slots of a horizon."""

    requests: Float  # (B, R) each different batch of requests
    weight: Float  # (B,) share of the slots that are such; they sum to 1


class TaskView(NamedTuple):
    """One task's part of a network."""

    types: NDArray[np.int64]  # Its request types
    pairs: NDArray[np.int64]  # (p,) its pairs, as indices of the network's
    # Its options; `pair` counts within `pairs`.
    first: NDArray[np.int64]
    pair: NDArray[np.int32]
    cost: Float
    repository: NDArray[np.bool_]


def needed(batches: Float | None, policy: str) -> Float:
    """The batches, which a policy in hindsight cannot do without; ValueError if there are none."""
    if batches is None:
        raise ValueError(f"{policy} decides in hindsight: it needs the requests of all slots")
    return batches


def horizon_of(network: DeliveryNetwork, batches: ArrayLike) -> Horizon:
    """Count the different slots of (T, R) requests; ValueError for another shape."""
    rows = batches_of(network, batches)
    different, counts = np.unique(rows, axis=0, return_counts=True)
    return Horizon(np.ascontiguousarray(different), counts / len(rows))


def task_views(network: DeliveryNetwork) -> list[TaskView]:
    """Split a network by tasks; tasks without request types are left out."""
    options = network.options
    views = []
    lengths = np.diff(options.first)
    for task in range(len(network.tasks)):
        types = np.flatnonzero(network.requests.task == task)
        if not len(types):
            continue
        chosen = np.concatenate([np.arange(*options.first[rho : rho + 2]) for rho in types])
        pairs, pair = np.unique(options.pair[chosen], return_inverse=True)
        views.append(
            TaskView(
                types,
                pairs.astype(np.int64),
                np.concatenate([[0], np.cumsum(lengths[types])]).astype(np.int64),
                pair.astype(np.int32),
                np.ascontiguousarray(options.cost[chosen]),
                np.ascontiguousarray(options.repository[chosen]),
            )
        )
    return views


def served_of(
    network: DeliveryNetwork, horizon: Horizon, allocation: Allocation | None = None
) -> Float:
    """(O,) mean requests of a slot that each option serves; of the minimal allocation if none."""
    chosen = minimal(network).astype(np.uint8) if allocation is None else allocation
    served = np.zeros(len(network.options.pair))
    for requests, weight in zip(horizon.requests, horizon.weight, strict=True):
        served += weight * serve(network, requests, chosen)
    return served


def average_gain(network: DeliveryNetwork, horizon: Horizon, allocation: Allocation) -> float:
    """G_T of a static allocation, each slot served as `serve` does; costs times requests."""
    least = minimal(network).astype(np.uint8)
    total = 0.0
    for requests, weight in zip(horizon.requests, horizon.weight, strict=True):
        load = serve(network, requests, allocation)
        total += weight * float(network.options.cost @ (serve(network, requests, least) - load))
    return total


class InfidaOffline(Static):
    """A static allocation, by INFIDA on the whole horizon.

    It takes (T, R) requests of each type and slot, `iterations` mirror steps (the paper's T-tilde)
    at a constant learning rate eta or one that tunes itself, and `draws` roundings of which the
    best is kept. ValueError for batches of another shape, or numbers that are not positive.
    """

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        iterations: int = 400,
        learning_rate: float | None = None,
        draws: int = 8,
    ) -> None:
        if iterations < 1 or draws < 1:
            raise ValueError(f"{iterations} iterations and {draws} draws: both must be positive")
        rate = options_of(seed, learning_rate, 1, "coupled", "elastic").rate
        horizon = horizon_of(network, needed(batches, "infida-offline"))
        layout = layout_of(network)
        self.fractional = average = np.zeros(len(network.pairs.node))
        _climb(layout, horizon, rate, seed, iterations, average)
        # The paper's own rounding first, kept if it fits and gains most.
        x = self.allocation = np.zeros(len(average), np.uint8)
        round_all(layout, 0, average, np.zeros_like(average), seed, 0, True, x)
        most = average_gain(network, horizon, x)
        for draw in range(draws):
            x = np.zeros(len(average), np.uint8)
            couple_all(layout, 0, average, seed + draw, x)
            if (gained := average_gain(network, horizon, x)) > most:
                self.allocation, most = x, gained


@entry
def _climb(
    layout: Layout, horizon: Horizon, rate: float, seed: int, iterations: int, average: Float
) -> None:
    pairs, nodes, first = len(layout.size), len(layout.rest), layout.option_first
    y = np.empty(pairs)
    spread = np.empty(nodes)
    steep = np.zeros(nodes)
    x = np.zeros(pairs, np.uint8)
    load = np.zeros(len(layout.pair))
    g = np.zeros(pairs)
    part = np.zeros(pairs)
    initial(layout, y, spread)
    for _ in range(iterations):
        for p in range(pairs):
            average[p] += y[p] / iterations
        couple_all(layout, 0, y, seed, x)
        g[:] = 0.0
        for b in range(len(horizon.weight)):
            requests = horizon.requests[b]
            fill(first, layout.pair, layout.capacity, layout.pinned, x, requests, load)
            subgradient_of_loads(layout, requests, load, y, part)
            for p in range(pairs):
                g[p] += horizon.weight[b] * part[p]
        learn_all(layout, g, rate, y, spread, steep)


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
    x = minimal(network).astype(np.uint8)
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
    # Sums of many products: a gain of their rounding error is none.
    least = 1e-9 * max(float(view.cost.max()) for view in views) * float(horizon.requests.max())
    while True:
        fits = layout.size <= left[node]
        best = int(np.argmax(np.where(fits & (x == 0), density, -np.inf)))
        gains = density[best] * layout.size[best] > least and fits[best] and not x[best]
        if not gains or (until_served and upstream.sum() <= 0):
            return x
        x[best] = 1
        left[node[best]] -= layout.size[best]
        measure(int(owner[best]))


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
