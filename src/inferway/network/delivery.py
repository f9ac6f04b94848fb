"""An inference delivery network: all that placement and its twin need to know, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Task
from inferway.deployment.units import SIZE
from inferway.network.kinds import Catalog, kinds_of, models_of
from inferway.network.options import CostFunction, Models, Options, Pairs, Paths, Requests
from inferway.network.pins import Given, minimal_allocation
from inferway.network.ranking import rank
from inferway.network.topology import NetworkError, Topology


@dataclass(frozen=True, eq=False)
class DeliveryNetwork:
    """The paper's IDN: who may serve which requests, where, at what cost ([SiSalem23], Sec. III).

    Attributes
    ----------
    nodes
        V names.
    tiers
        Names of the tiers; ``("",)`` where the network has none.
    tier
        (V,) tier of each node.
    budget
        (V,) allocation budget b in bytes; ``inf`` where there is none, as at repositories.
    rest
        (V,) bytes that all models take together which the node could run and which are in no pair
        of it. Such models never serve; fractional policies spread budget over them all the same.
    repository
        (V,) whether the node's allocation is fixed to what it serves as a repository.
    tasks
        N names.
    variants
        Names of the variants that `models` refers to.
    models, paths, requests, pairs, options
        See `inferway.network.options`.
    delay_s
        (K, H) mean inference delay of each of `variants` on each hardware, in seconds (the paper's
        d); ``inf`` where it does not run.
    hardware
        (V,) hardware of each node.
    slot_s
        Length of a slot in seconds; capacities and counts of requests are per slot.
    warnings
        What is allowed and may not be meant, in a sentence each.
    """

    nodes: tuple[str, ...]
    tiers: tuple[str, ...]
    tier: NDArray[np.int32]
    budget: NDArray[np.float64]
    rest: NDArray[np.float64]
    repository: NDArray[np.bool_]
    tasks: tuple[str, ...]
    variants: tuple[str, ...]
    models: Models
    paths: Paths
    requests: Requests
    pairs: Pairs
    options: Options
    delay_s: NDArray[np.float64]
    hardware: NDArray[np.int32]
    slot_s: float
    warnings: tuple[str, ...] = ()

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """(O,) seconds that each option takes: round trip and inference delay."""
        per_type = np.diff(self.options.first)
        start = np.repeat(self.paths.first[self.requests.path], per_type)
        travel = self.paths.rtt_s[start + self.options.hop]
        variant = self.models.variant[self.options.model]
        return np.asarray(travel + self.delay_s[variant, self.hardware[self.options.node]])

    @property
    def inaccuracy(self) -> NDArray[np.float64]:
        """(O,) inaccuracy of each option, 0..1."""
        return np.asarray(1.0 - self.models.accuracy[self.options.model])

    def path(self, index: int) -> tuple[str, ...]:
        """Name the nodes of a path, from the entry to the repository."""
        start, end = self.paths.first[index : index + 2]
        return tuple(self.nodes[node] for node in self.paths.node[start:end])

    def name(self, model: int) -> str:
        """Name a model as ``TASK/VARIANT#COPY``."""
        task, variant = self.models.task[model], self.models.variant[model]
        return f"{self.tasks[task]}/{self.variants[variant]}#{self.models.copy[model]}"


def delivery_network(
    tasks: Sequence[Task],
    topology: Topology,
    paths: Paths,
    requests: Requests,
    *,
    alpha: float = 1.0,
    slot_s: float = 60.0,
    cost: CostFunction | None = None,
    pinned: Given | None = None,
    every_pair: bool = False,
) -> DeliveryNetwork:
    """Rank all service options of a network.

    Parameters
    ----------
    tasks
        Entries with their variants; `count` identical tasks each, named NAME-0, NAME-1, ...
    topology
        Nodes and links.
    paths
        Where requests go; see `inferway.network.routes`. Each ends at a repository node.
    requests
        Request types; tasks count over all entries, in order.
    alpha
        Milliseconds that a point of inaccuracy (0..100) is worth (eq. 6).
    slot_s
        Length of a slot in seconds.
    cost
        Another cost than eq. 6 (eq. 5).
    pinned
        Copies that placement may not take away, by (node, task, variant).
    every_pair
        Keep also (node, model) pairs that no request type can use, as the paper's text does; they
        change no decision.

    Raises
    ------
    NetworkError
        If a path does not end at a repository, a number is out of its range, a variant that a node
        with a budget may host has no size, or as `minimal_allocation`.
    """
    if not (alpha >= 0 and np.isfinite(alpha)):
        raise NetworkError(f"alpha is {alpha:g} ms per point; it must be 0 or more")
    kinds = kinds_of(tasks, topology.kinds, slot_s)
    catalog = Catalog.of(kinds)
    _check(topology, catalog, paths, requests)
    models = models_of(kinds)
    pins = minimal_allocation(
        topology, catalog, paths, requests, pinned or {}, alpha=alpha, cost=cost
    )
    options, pairs = rank(
        topology,
        catalog,
        models,
        paths,
        requests,
        pins,
        alpha=alpha,
        cost=cost,
        every_pair=every_pair,
    )
    rest, warnings = _rest(topology, catalog, pairs)
    return DeliveryNetwork(
        nodes=topology.nodes,
        tiers=topology.tiers,
        tier=topology.tier,
        budget=topology.budget,
        rest=rest,
        repository=topology.repository,
        tasks=tuple(name for kind in kinds for name in kind.tasks),
        variants=tuple(name for kind in kinds for name in kind.variants),
        models=models,
        paths=paths,
        requests=requests,
        pairs=pairs,
        options=options,
        delay_s=catalog.delay_s,
        hardware=topology.hardware,
        slot_s=slot_s,
        warnings=warnings,
    )


def _check(topology: Topology, catalog: Catalog, paths: Paths, requests: Requests) -> None:
    count = len(requests.task)
    if not (count == len(requests.path) == len(requests.share) == len(requests.peak)):
        raise NetworkError("task, path, share and peak of the request types differ in length")
    if not count:
        raise NetworkError("nothing is requested: there is no request type")
    if not (0 <= requests.task.min() <= requests.task.max() < len(catalog.kind_of)):
        raise NetworkError(f"request types name tasks outside 0..{len(catalog.kind_of) - 1}")
    if not (0 <= requests.path.min() <= requests.path.max() < len(paths.first) - 1):
        raise NetworkError(f"request types name paths outside 0..{len(paths.first) - 2}")
    for name, column in (("share", requests.share), ("peak", requests.peak)):
        if not ((column >= 0) & np.isfinite(column)).all():
            raise NetworkError(f"{name} of a request type is {column.min():g}; it is 0 or more")
    ends = paths.node[paths.first[1:] - 1]
    lost = np.flatnonzero(~topology.repository[ends])
    if lost.size:
        raise NetworkError(
            f"a path ends at {topology.nodes[ends[lost[0]]]}, which is no repository; the last "
            "node of a path must always be able to serve"
        )
    for kind in catalog.kinds:
        hosts = topology.hardware[~topology.repository]
        runs = np.isfinite(kind.delay_s)[:, np.unique(hosts)].any(axis=1)
        unsized = np.flatnonzero(np.isnan(kind.size) & runs)
        if unsized.size:
            raise NetworkError(
                f"variant {kind.variants[unsized[0]]} of task {kind.name} needs `size`, as "
                "placement has to fit it into budgets"
            )


def _rest(
    topology: Topology, catalog: Catalog, pairs: Pairs
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """(V,) bytes of models that a node could run and no request type can use; and warnings."""
    tasks = np.array([len(kind.tasks) for kind in catalog.kinds])
    per_kind = np.array([len(kind.variants) for kind in catalog.kinds])
    weight = catalog.size * catalog.copies * np.repeat(tasks, per_kind)
    runs = np.isfinite(catalog.delay_s)
    rest = np.zeros(len(topology.nodes))
    largest = np.full(len(catalog.size), -1.0)  # of the budgets where a variant runs
    hosts = np.flatnonzero(~topology.repository)
    alike, which = np.unique(
        np.column_stack([topology.hardware[hosts].astype(np.float64), topology.budget[hosts]]),
        axis=0,
        return_inverse=True,
    )
    totals = np.empty(len(alike))
    for k, (hardware, budget) in enumerate(alike):
        here = runs[:, int(hardware)]
        totals[k] = weight[here & (catalog.size <= budget)].sum()
        largest[here] = np.maximum(largest[here], budget)
    rest[hosts] = totals[which.ravel()] if len(hosts) else 0.0
    rest -= np.bincount(
        pairs.node, np.where(topology.repository[pairs.node], 0, pairs.size), len(rest)
    )
    return rest.clip(0), tuple(_too_large(catalog, largest))


def _too_large(catalog: Catalog, largest: NDArray[np.float64]) -> Iterator[str]:
    row = 0
    for kind in catalog.kinds:
        for variant, size in zip(kind.variants, kind.size, strict=True):
            if 0 <= largest[row] < size:
                yield (
                    f"variant {variant} of task {kind.name} takes {SIZE.write(size)}, more than "
                    f"every budget that may host it (at most {SIZE.write(largest[row])})"
                )
            row += 1
