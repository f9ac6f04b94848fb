"""Pinned instances, repositories above all: the minimal allocation ([SiSalem23], Sec. III-A)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.units import SIZE
from inferway.network.kinds import Catalog
from inferway.network.options import CostFunction, Paths, Requests, Service, latency_and_inaccuracy
from inferway.network.topology import NetworkError, Topology

# (node, task, variant) by name -> permanent copies
Given = Mapping[tuple[str, str, str], int]


class Pins(NamedTuple):
    """Permanent copies of variants.

    Attributes
    ----------
    key
        (B,) node x offers + offer, sorted; offers as in `Catalog`.
    copies
        (B,) above 0.
    offers
        How many offers there are.
    """

    key: NDArray[np.int64]
    copies: NDArray[np.float64]
    offers: int

    def at(
        self, node: NDArray[np.int32], offer: NDArray[np.int64], where: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """(n, hops, width) copies at (n, hops) nodes of (n, width) offers; 0 outside `where`."""
        found = np.zeros((*node.shape, offer.shape[1]))
        row, hop = np.nonzero(where[node])
        if len(row) and len(self.key):
            key = node[row, hop].astype(np.int64)[:, None] * self.offers + offer[row]
            place = np.minimum(np.searchsorted(self.key, key), len(self.key) - 1)
            found[row, hop] = np.where(self.key[place] == key, self.copies[place], 0.0)
        return found


def minimal_allocation(
    topology: Topology,
    catalog: Catalog,
    paths: Paths,
    requests: Requests,
    given: Given,
    *,
    alpha: float,
    cost: CostFunction | None = None,
) -> Pins:
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
    pinned = _named(topology, catalog, given)
    end = paths.node[paths.first[1:] - 1][requests.path].astype(np.int64)
    tasks = len(catalog.kind_of)
    served, group = np.unique(end * tasks + requests.task, return_inverse=True)
    demand = np.bincount(group, weights=requests.peak, minlength=len(served))
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(group, minlength=len(served)))[:-1])
    for one, types, peak in zip(served.tolist(), members, demand.tolist(), strict=True):
        node, task = divmod(one, tasks)
        offers = np.arange(catalog.first[task], catalog.first[task + 1])
        row, hardware = catalog.row[offers], topology.hardware[node]
        capacity = catalog.capacity[row, hardware]
        own = np.array([pinned.get((node, int(offer)), 0.0) for offer in offers])
        if not own.any():
            best = _cheapest(topology, catalog, paths, requests, types, node, task, alpha, cost)
            own[best] = max(1.0, np.ceil(peak / capacity[best] * (1 - 1e-12)))
            pinned[node, int(offers[best])] = float(own[best])
        if (own * capacity).sum() < peak * (1 - 1e-9):
            raise NetworkError(
                f"the repository {topology.nodes[node]} can serve {(own * capacity).sum():.6g} "
                f"requests of {_task_name(catalog, task)} in a slot, but up to {peak:.6g} may come "
                "(eq. 9); pin more copies there, or none, so that as many run as are needed"
            )
    _check_budgets(topology, catalog, pinned)
    keys = sorted((node * len(catalog.row) + offer, n) for (node, offer), n in pinned.items())
    return Pins(
        np.array([key for key, _ in keys], np.int64),
        np.array([copies for _, copies in keys], np.float64),
        len(catalog.row),
    )


def _cheapest(
    topology: Topology,
    catalog: Catalog,
    paths: Paths,
    requests: Requests,
    types: NDArray[np.int64],
    node: int,
    task: int,
    alpha: float,
    cost: CostFunction | None,
) -> int:
    """Choose a repository's variant: the one of least cost over the task's request types."""
    kind = catalog.kinds[catalog.kind_of[task]]
    name, where = _task_name(catalog, task), topology.nodes[node]
    delay = kind.delay_s[:, topology.hardware[node]]
    runs = np.flatnonzero(np.isfinite(delay))
    if not runs.size:
        raise NetworkError(
            f"task {name} has no repository: no variant of it runs on "
            f"{topology.kinds[topology.hardware[node]]}, the hardware of {where}"
        )
    if cost is None:
        total = latency_and_inaccuracy(np.zeros(1), delay, kind.accuracy, alpha)
        return int(runs[np.argmin(total[runs])])
    total = np.zeros(len(delay))
    for path in requests.path[types]:
        start, stop = paths.first[path : path + 2]
        nodes = tuple(topology.nodes[v] for v in paths.node[start:stop])
        rtt = float(paths.rtt_s[stop - 1])
        for w in runs:
            total[w] += cost(
                Service(
                    nodes, name, kind.variants[w], float(kind.accuracy[w]), float(delay[w]), rtt
                )
            )
    best = int(runs[np.argmin(total[runs])])
    if not np.isfinite(total[best]):
        raise NetworkError(f"the cost function lets no variant of {name} serve at {where}")
    return best


def _named(topology: Topology, catalog: Catalog, given: Given) -> dict[tuple[int, int], float]:
    index = {name: node for node, name in enumerate(topology.nodes)}
    names = [name for kind in catalog.kinds for name in kind.tasks]
    place = {name: task for task, name in enumerate(names)}
    pinned: dict[tuple[int, int], float] = {}
    for (node_name, task_name, variant), copies in given.items():
        what = f"{copies} of {task_name}/{variant} pinned on {node_name}"
        if node_name not in index or task_name not in place:
            raise NetworkError(f"{what}: there is no such node or task")
        node, task = index[node_name], place[task_name]
        kind = catalog.kinds[catalog.kind_of[task]]
        if variant not in kind.variants:
            raise NetworkError(f"{what}: {task_name} has no variant {variant}")
        w = kind.variants.index(variant)
        if not np.isfinite(kind.delay_s[w, topology.hardware[node]]):
            hardware = topology.kinds[topology.hardware[node]]
            raise NetworkError(f"{what}: {variant} has no service time on {hardware}")
        if copies > kind.copies and not topology.repository[node]:
            raise NetworkError(f"{what}: at most {kind.copies} of a variant run on one node")
        if copies > 0:
            pinned[node, int(catalog.first[task]) + w] = float(copies)
    return pinned


def _check_budgets(
    topology: Topology, catalog: Catalog, pinned: Mapping[tuple[int, int], float]
) -> None:
    taken = np.zeros(len(topology.nodes))
    for (node, offer), copies in pinned.items():
        taken[node] += copies * catalog.size[catalog.row[offer]]
    over = np.flatnonzero(taken > topology.budget)
    if over.size:
        node = int(over[0])
        what = "a repository's copies (eq. 9)" if topology.repository[node] else "what is pinned"
        raise NetworkError(
            f"{topology.nodes[node]} has a budget of {SIZE.write(topology.budget[node])}, but "
            f"{what} there take {SIZE.write(taken[node])}"
        )


def _task_name(catalog: Catalog, task: int) -> str:
    kind = int(catalog.kind_of[task])
    return catalog.kinds[kind].tasks[task - int(np.searchsorted(catalog.kind_of, kind))]
