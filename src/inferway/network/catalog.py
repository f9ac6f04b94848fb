"""The catalog at the nodes of a network, as arrays, and the copies that are pinned there.

Pinned instances, those of repositories above all, are the minimal allocation ([SiSalem23],
Sec. III-A).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Batch, Task
from inferway.deployment.units import SIZE
from inferway.network.options import (
    CostFunction,
    Float,
    Index,
    Models,
    Offset,
    Paths,
    Requests,
    Service,
    latency_and_inaccuracy,
    numbered,
    ranges,
)
from inferway.network.topology import NetworkError, Topology

# (node, task, variant) by name -> permanent copies
Given = Mapping[tuple[str, str, str], int]


class Catalog:
    """All variants of all tasks as tables, at the nodes of a topology.

    The K variants of all entries have a row each: `variants` (names), `accuracy` (0..1), `size`
    (bytes, 0 where unknown), `copies` (per node, at most), and by hardware `delay_s` (mean
    inference delay, ``inf`` where it does not run) and `capacity` (requests per slot, 0 there). A
    task of the N has an *offer* for each variant, T in all: `first` (N + 1,) is the range of each
    task's, `row` (T,) the variant of each. `kind_of` (N,) is a task's entry in `kinds`, and `start`
    the range of each entry's rows.

    The capacity L is the whole number of requests that one instance finishes in a slot of `slot_s`
    seconds, in batches of the size that serves most of those with which two runs fit into the
    task's deadline: who comes when one has begun waits for it. An instance that needs more than a
    slot for one request keeps the fraction, where the paper would have it serve none (Sec. III-D
    takes L to be a whole number).

    Raises
    ------
    NetworkError
        If there is no task, a task has no variants, a number is out of its range, or a variant that
        a node with a budget may host has no size.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        topology: Topology,
        *,
        slot_s: float,
        alpha: float,
        cost: CostFunction | None,
    ) -> None:
        if not (alpha >= 0 and np.isfinite(alpha)):
            raise NetworkError(f"alpha is {alpha:g} ms per point; it must be 0 or more")
        if not tasks:
            raise NetworkError("a network serves at least one task")
        if not (slot_s > 0 and np.isfinite(slot_s)):
            raise NetworkError(f"a slot of {slot_s:g} s is refused; it must be above 0")
        for task in tasks:
            if not task.variants:
                raise NetworkError(f"task {task.name} has no variants")
        self.kinds, self.topology, self.alpha, self.cost = tasks, topology, alpha, cost
        rows = [variant for task in tasks for variant in task.variants.values()]
        self.names = tuple(name for task in tasks for name in task.names)
        self.variants = tuple(variant.name for variant in rows)
        self.accuracy = np.array([variant.accuracy for variant in rows])
        self.size = np.array([float(variant.size_bytes or 0) for variant in rows])
        self.delay_s = np.array(
            [
                [one.service_on(on).mean_s if one.runs_on(on) else np.inf for on in topology.kinds]
                for one in rows
            ]
        )
        self.deadline_s = np.array(
            [np.inf if task.deadline_s is None else task.deadline_s for task in tasks]
        )
        more = np.array(
            [
                [_batching(one.batch_on(on), task.deadline_s) for on in topology.kinds]
                for task in tasks
                for one in task.variants.values()
            ]
        )
        exact = np.maximum(
            slot_s / self.delay_s, np.where(np.isfinite(self.delay_s), slot_s * more, 0.0)
        )
        # 60 s / (1 / 14.2) is 852, not a rounding error less.
        self.capacity = np.where(exact >= 1, np.floor(exact * (1 + 1e-9)), exact)
        widths = np.array([len(task.variants) for task in tasks])
        counts = np.array([len(task.names) for task in tasks])
        self.copies = np.repeat([task.max_instances or 1 for task in tasks], widths)
        self.start = ranges(widths)
        self.kind_of = np.repeat(np.arange(len(tasks)), counts)
        of_task = widths[self.kind_of]
        self.first = ranges(of_task)
        self.row = np.repeat(self.start[self.kind_of], of_task) + numbered(of_task)
        hosts = np.unique(topology.hardware[~topology.repository])
        for k, runs in enumerate(np.isfinite(self.delay_s)[:, hosts].any(axis=1)):
            if runs and rows[k].size_bytes is None:
                raise NetworkError(
                    f"variant {rows[k].name} of task {self.entry_of(k).name} needs `size`, as "
                    "placement has to fit it into budgets"
                )

    def entry_of(self, row: int) -> Task:
        """Return the entry that has a variant."""
        return self.kinds[int(np.searchsorted(self.start, row, side="right")) - 1]

    @property
    def fits(self) -> NDArray[np.bool_]:
        """(K, V) whether a node may host a variant: it runs there and is within the budget.

        Departure from Sec. IV-A: a model larger than a node's whole budget is none of the node's
        models, where the paper would give it a fraction below 1 that rounding could never place.
        """
        topology = self.topology
        runs = np.isfinite(self.delay_s)[:, topology.hardware]
        return np.asarray(runs & (self.size[:, None] <= topology.budget) & ~topology.repository)

    def models(self) -> Models:
        """Number the models: by task, then variant, then copy."""
        copies = self.copies[self.row]
        row, first = np.repeat(self.row, copies), ranges(copies)[self.first]
        task = np.repeat(np.arange(len(self.names), dtype=np.int32), np.diff(first))
        return Models(task, row.astype(np.int32), numbered(copies), self.accuracy[row], first)

    def in_time(self, kind: int, node: Index, rtt_s: Float) -> NDArray[np.bool_]:
        """(n, hops, width) whether an entry's variants answer within its deadline along paths.

        By round trip and service time, as if nobody waited.
        """
        rows = slice(*self.start[kind : kind + 2])
        delay_s = self.delay_s[rows].T[self.topology.hardware[node]]
        return np.asarray(rtt_s[..., None] + delay_s <= self.deadline_s[kind])

    def prices(
        self, kind: int, task: Index, node: Index, rtt_s: Float, open_: NDArray[np.bool_]
    ) -> Float:
        """(n, hops, width) costs of an entry's variants along paths of n tasks; inf if not open."""
        rows, topology = slice(*self.start[kind : kind + 2]), self.topology
        delay, accuracy = self.delay_s[rows], self.accuracy[rows]
        if self.cost is None:
            at = delay.T[topology.hardware[node]]
            price = latency_and_inaccuracy(rtt_s[..., None], at, accuracy, self.alpha)
            price[~open_] = np.inf
            return price
        price = np.full(open_.shape, np.inf)
        for n, hop, w in np.argwhere(open_):
            service = Service(
                nodes=tuple(topology.nodes[v] for v in node[n, : hop + 1]),
                task=self.names[task[n]],
                variant=self.variants[rows][w],
                accuracy=float(accuracy[w]),
                delay_s=float(delay[w, topology.hardware[node[n, hop]]]),
                rtt_s=float(rtt_s[n, hop]),
            )
            price[n, hop, w] = value = float(self.cost(service))
            if np.isnan(value) or value == -np.inf:
                raise NetworkError(f"the cost function gives {value} for {service}")
        return price


def _batching(batch: Batch | None, deadline_s: float | None) -> float:
    """Greatest rate in batches with which two runs fit into a deadline, 1/s; 0 without any."""
    if batch is None:
        return 0.0
    most_s = np.inf if deadline_s is None else deadline_s / 2.0
    pairs = zip(batch.sizes, batch.service_s, strict=False)
    return max((n / s for n, s in pairs if n <= batch.max and s <= most_s), default=0.0)


class Pins(NamedTuple):
    """Permanent copies of variants.

    `key` (B,) is node x offers + offer, sorted, with offers as in `Catalog`, and `copies` (B,) are
    above 0; `offers` is how many there are.
    """

    key: Offset
    copies: Float
    offers: int

    def at(self, node: Index, offer: Offset, where: NDArray[np.bool_]) -> Float:
        """(n, hops, width) copies at (n, hops) nodes of (n, width) offers; 0 outside `where`."""
        copies = np.zeros((*node.shape, offer.shape[1]))
        row, hop = np.nonzero(where[node])
        if len(row) and len(self.key):
            key = node[row, hop].astype(np.int64)[:, None] * self.offers + offer[row]
            place = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
            copies[row, hop] = np.where(self.key[place] == key, self.copies[place], 0.0)
        return copies


def minimal_allocation(catalog: Catalog, paths: Paths, requests: Requests, given: Given) -> Pins:
    """Complete what is pinned so that every repository can serve all that ends there (eq. 9).

    A repository for which nothing is given for a task runs enough copies of the variant with the
    least cost there, as [SiSalem23] does in its Sec. VI-A; the first of equals.

    Raises
    ------
    NetworkError
        If a repository cannot run any variant of a task whose requests end there, has too little
        pinned for the requests (eq. 9) or too small a budget for it, or copies are pinned that
        the node cannot hold.
    """
    topology, tasks = catalog.topology, len(catalog.names)
    pinned = _pinned(catalog, given)
    end = paths.node[paths.first[1:] - 1][requests.path].astype(np.int64)
    served, group = np.unique(end * tasks + requests.task, return_inverse=True)
    demand = np.bincount(group, weights=requests.peak, minlength=len(served))
    members = np.split(
        np.argsort(group, kind="stable"), np.cumsum(np.bincount(group, minlength=len(served)))[:-1]
    )
    for one, types, peak in zip(served.tolist(), members, demand.tolist(), strict=True):
        node, task = divmod(one, tasks)
        offers = np.arange(catalog.first[task], catalog.first[task + 1])
        capacity = catalog.capacity[catalog.row[offers], topology.hardware[node]]
        copies = np.array([pinned.get((node, int(offer)), 0.0) for offer in offers])
        if not copies.any():
            best = _cheapest(catalog, paths, requests.path[types], node, task)
            copies[best] = max(1.0, np.ceil(peak / capacity[best] * (1 - 1e-12)))
            pinned[node, int(offers[best])] = float(copies[best])
        if (copies * capacity).sum() < peak * (1 - 1e-9):
            raise NetworkError(
                f"the repository {topology.nodes[node]} can serve {(copies * capacity).sum():.6g} "
                f"requests of {catalog.names[task]} in a slot, but up to {peak:.6g} may come "
                "(eq. 9); pin more copies there, or none, so that as many run as are needed"
            )
    taken = np.zeros(len(topology.nodes))
    for (node, offer), number in pinned.items():
        taken[node] += number * catalog.size[catalog.row[offer]]
    for node in np.flatnonzero(taken > topology.budget)[:1]:
        what = "a repository's copies (eq. 9)" if topology.repository[node] else "what is pinned"
        raise NetworkError(
            f"{topology.nodes[node]} has a budget of {SIZE.write(topology.budget[node])}, but "
            f"{what} there take {SIZE.write(taken[node])}"
        )
    keys = sorted((node * len(catalog.row) + offer, n) for (node, offer), n in pinned.items())
    return Pins(
        np.array([key for key, _ in keys], np.int64),
        np.array([number for _, number in keys], np.float64),
        len(catalog.row),
    )


def _cheapest(catalog: Catalog, paths: Paths, of_types: Index, node: int, task: int) -> int:
    """Choose a repository's variant: the one of least cost over the task's request types."""
    kind, topology = int(catalog.kind_of[task]), catalog.topology
    name, where, hardware = catalog.names[task], topology.nodes[node], topology.hardware[node]
    runs = np.isfinite(catalog.delay_s[slice(*catalog.start[kind : kind + 2]), hardware])
    if not runs.any():
        raise NetworkError(
            f"task {name} has no repository: no variant of it runs on "
            f"{topology.kinds[hardware]}, the hardware of {where}"
        )
    ways = [(np.array([node], np.int32), np.zeros(1))]  # eq. 6 ranks alike from wherever they come
    if catalog.cost is not None:
        ranges = (slice(*paths.first[path : path + 2]) for path in of_types)
        ways = [(paths.node[path], paths.rtt_s[path]) for path in ranges]
    total = np.zeros(len(runs))
    for nodes, rtt_s in ways:
        open_ = np.zeros((1, len(nodes), len(runs)), np.bool_)
        open_[0, -1] = runs
        at = np.array([task], np.int32)
        total += catalog.prices(kind, at, nodes[None], rtt_s[None], open_)[0, -1]
    best = int(np.argmin(total))
    if not np.isfinite(total[best]):
        raise NetworkError(f"the cost function lets no variant of {name} serve at {where}")
    return best


def _pinned(catalog: Catalog, given: Given) -> dict[tuple[int, int], float]:
    """Number what is pinned by name: copies by (node, offer)."""
    topology = catalog.topology
    index = {name: node for node, name in enumerate(topology.nodes)}
    place = {name: task for task, name in enumerate(catalog.names)}
    pinned: dict[tuple[int, int], float] = {}
    for (node_name, task_name, variant), copies in given.items():
        what = f"{copies} of {task_name}/{variant} pinned on {node_name}"
        if node_name not in index or task_name not in place:
            raise NetworkError(f"{what}: there is no such node or task")
        node, task = index[node_name], place[task_name]
        variants = list(catalog.kinds[catalog.kind_of[task]].variants)
        if variant not in variants:
            raise NetworkError(f"{what}: {task_name} has no variant {variant}")
        offer = int(catalog.first[task]) + variants.index(variant)
        if not np.isfinite(catalog.delay_s[catalog.row[offer], topology.hardware[node]]):
            hardware = topology.kinds[topology.hardware[node]]
            raise NetworkError(f"{what}: {variant} has no service time on {hardware}")
        most = catalog.copies[catalog.row[offer]]
        if copies > most and not topology.repository[node]:
            raise NetworkError(f"{what}: at most {most} of a variant run on one node")
        if copies > 0:
            pinned[node, offer] = float(copies)
    return pinned
