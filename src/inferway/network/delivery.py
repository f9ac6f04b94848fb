"""An inference delivery network: all that placement and its twin need to know, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Task
from inferway.deployment.units import SIZE
from inferway.network.catalog import Catalog, Given, Pins, minimal_allocation
from inferway.network.options import (
    CostFunction,
    Float,
    Index,
    Models,
    Offset,
    Options,
    Pairs,
    Paths,
    Requests,
    numbered,
    ranges,
)
from inferway.network.topology import NetworkError, Topology

_CHUNK = 1 << 20  # costs that are sorted at once; bounds the memory beyond the result


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
        (V,) hardware of each node, as an index of `kinds`.
    slot_s
        Length of a slot in seconds; capacities and counts of requests are per slot.
    kinds
        Names of the H kinds of hardware.
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
    kinds: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def limited(self) -> NDArray[np.bool_]:
        """(V,) nodes with a budget that can be used up; repositories have none."""
        return np.isfinite(self.budget) & (self.budget > 0) & ~self.repository

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
    """Rank all service options of a network ([SiSalem23], Sec. III-E).

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
    catalog = Catalog(tasks, topology, slot_s=slot_s, alpha=alpha, cost=cost)
    _check(catalog, paths, requests)
    models = catalog.models()
    pins = minimal_allocation(catalog, paths, requests, pinned or {})
    options, pairs = _options(catalog, models, paths, requests, pins, every_pair)
    rest, warnings = _rest(catalog, pairs)
    return DeliveryNetwork(
        nodes=topology.nodes,
        tiers=topology.tiers,
        tier=topology.tier,
        budget=topology.budget,
        rest=rest,
        repository=topology.repository,
        tasks=catalog.names,
        variants=catalog.variants,
        models=models,
        paths=paths,
        requests=requests,
        pairs=pairs,
        options=options,
        delay_s=catalog.delay_s,
        hardware=topology.hardware,
        kinds=topology.kinds,
        slot_s=slot_s,
        warnings=warnings,
    )


def _options(
    catalog: Catalog,
    models: Models,
    paths: Paths,
    requests: Requests,
    pins: Pins,
    every_pair: bool,
) -> tuple[Options, Pairs]:
    topology = catalog.topology
    entries, hop, offer, price = _ranked(catalog, paths, requests, pins)
    node = paths.node[np.repeat(paths.first[requests.path], entries) + hop]
    keys, entry_pair = np.unique(
        node.astype(np.int64) * len(catalog.row) + offer, return_inverse=True
    )
    pairs, pair_first = _pairs(catalog, models, pins, keys, every_pair)
    copies = np.where(topology.repository[node], 1, catalog.copies[catalog.row[offer]])
    del offer, keys
    pair = np.repeat(pair_first[entry_pair].astype(np.int32), copies)
    del entry_pair
    pair += numbered(copies)
    last = np.repeat(np.diff(paths.first)[requests.path] - 1, entries) == hop
    options = Options(
        first=ranges(copies)[ranges(entries)],
        node=np.repeat(node, copies),
        model=pairs.model[pair],
        pair=pair,
        hop=np.repeat(hop, copies),
        cost=np.repeat(price, copies),
        repository=np.repeat(last, copies),
    )
    return options, pairs


def _check(catalog: Catalog, paths: Paths, requests: Requests) -> None:
    count, topology = len(requests.task), catalog.topology
    if not (count == len(requests.path) == len(requests.share) == len(requests.peak)):
        raise NetworkError("task, path, share and peak of the request types differ in length")
    if not count:
        raise NetworkError("nothing is requested: there is no request type")
    for name, index, most in (
        ("tasks", requests.task, len(catalog.names) - 1),
        ("paths", requests.path, len(paths.first) - 2),
    ):
        if not (0 <= index.min() <= index.max() <= most):
            raise NetworkError(f"request types name {name} outside 0..{most}")
    for name, column in (("share", requests.share), ("peak", requests.peak)):
        if not ((column >= 0) & np.isfinite(column)).all():
            raise NetworkError(f"{name} of a request type is {column.min():g}; it is 0 or more")
    ends = paths.node[paths.first[1:] - 1]
    for end in ends[~topology.repository[ends]][:1]:
        raise NetworkError(
            f"a path ends at {topology.nodes[end]}, which is no repository; the last "
            "node of a path must always be able to serve"
        )


def _ranked(
    catalog: Catalog, paths: Paths, requests: Requests, pins: Pins
) -> tuple[Offset, NDArray[np.int16], Index, Float]:
    """Rank entries, a variant at a node with all its copies together.

    Returns how many each request type has and, one type after the other, their hops, offers and
    costs. Types that have equally many variants and hops are ranked together, some at a time.
    """
    topology = catalog.topology
    fits = None
    if len(topology.nodes) * len(catalog.size) <= _CHUNK:
        fits = catalog.fits
    length, kind_of = np.diff(paths.first)[requests.path], catalog.kind_of[requests.task]
    parts: list[tuple[Offset, Offset, NDArray[np.int16], Index, Float]] = []
    for k, (start, end) in enumerate(pairwise(catalog.start)):
        for hops in np.unique(length[kind_of == k]):
            alike = np.flatnonzero((kind_of == k) & (length == hops))
            step = max(1, _CHUNK // int(hops * (end - start)))
            for begin in range(0, len(alike), step):
                types = alike[begin : begin + step]
                at = paths.first[requests.path[types]][:, None] + np.arange(hops)
                node, task = paths.node[at], requests.task[types]
                offer = catalog.first[task][:, None] + np.arange(end - start)
                pinned = pins.at(node, offer, topology.repository)
                if fits is None:
                    runs = np.isfinite(catalog.delay_s[start:end].T[topology.hardware[node]])
                    within = catalog.size[start:end] <= topology.budget[node][..., None]
                    may = runs & within & ~topology.repository[node][..., None]
                else:
                    may = fits[start:end, node].transpose(1, 2, 0)
                open_ = may | (pinned > 0)
                if np.isfinite(catalog.deadline_s[k]):
                    # A repository serves whatever its time; elsewhere, late answers help nobody.
                    timely = catalog.in_time(k, node, paths.rtt_s[at])
                    open_[:, :-1] &= timely[:, :-1]
                price = catalog.prices(k, task, node, paths.rtt_s[at], open_)
                parts.append((types, *_order(price, pinned[:, -1] > 0, offer)))
    entries = np.zeros(len(requests.task), np.int64)
    for types, count, *_ in parts:
        entries[types] = count
    first = ranges(entries)
    hop, offers, cost = (np.empty(first[-1], t) for t in (np.int16, np.int32, np.float64))
    while parts:
        types, count, *columns = parts.pop()
        place = np.repeat(first[types], count) + numbered(count)
        hop[place], offers[place], cost[place] = columns
    return entries, hop, offers, cost


def _order(
    price: Float, last_pinned: NDArray[np.bool_], offer: Offset
) -> tuple[Offset, NDArray[np.int16], Index, Float]:
    """Sort (n, hops, width) costs, and cut each row at its repository."""
    count, _, width = price.shape
    limit = np.where(last_pinned, price[:, -1], -np.inf).max(axis=1)
    own = np.zeros(price.shape, np.bool_)
    own[:, -1] = last_pinned
    flat = price.reshape(count, -1)
    order = np.argsort(flat, axis=1, kind="stable")  # equal costs: by hop, then by variant
    ranked = np.take_along_axis(flat, order, axis=1)
    keep = (ranked < limit[:, None]) | np.take_along_axis(own.reshape(count, -1), order, axis=1)
    row, column = np.nonzero(keep)
    place = order[row, column]
    return (
        keep.sum(axis=1),
        (place // width).astype(np.int16),
        offer[row, place % width].astype(np.int32),
        ranked[row, column],
    )


def _pairs(
    catalog: Catalog, models: Models, pins: Pins, used: Offset, every_pair: bool
) -> tuple[Pairs, Offset]:
    """Collect pairs; also the first pair of each of the `used` keys (node x offers + offer)."""
    offers, topology, keys = len(catalog.row), catalog.topology, used
    if every_pair:
        offer, node = np.nonzero(catalog.fits[catalog.row])
        keys = np.union1d(keys, node.astype(np.int64) * offers + offer)
    # Both are sorted, which neither isin nor union1d makes use of.
    place = np.minimum(np.searchsorted(keys, pins.key), len(keys) - 1)
    if (keys[place] != pins.key).any():
        keys = np.union1d(keys, pins.key)
    node, offer = np.divmod(keys, offers)
    row, repository = catalog.row[offer], topology.repository[node]
    copies = np.where(repository, 1, catalog.copies[row])
    first, copy = np.cumsum(copies) - copies, numbered(copies)
    pinned = np.zeros(len(keys))
    pinned[np.searchsorted(keys, pins.key)] = pins.copies
    # Elsewhere a model is one copy, there or not; at a repository it stands for all of them.
    each = np.repeat(np.where(repository, np.inf, pinned), copies)
    each[:] = each > copy
    each[first[repository]] = pinned[repository]
    # A task's models are its offers, each as often as it has copies.
    task = np.searchsorted(catalog.first, offer, side="right") - 1
    model = models.first[task] + (offer - catalog.first[task]) * catalog.copies[row]
    copy += np.repeat(model.astype(np.int32), copies)
    pairs = Pairs(
        first=ranges(np.bincount(node, weights=copies, minlength=len(topology.nodes))),
        node=np.repeat(node.astype(np.int32), copies),
        model=copy,
        size=np.repeat(catalog.size[row], copies),
        capacity=np.repeat(catalog.capacity[row, topology.hardware[node]], copies),
        pinned=each,
    )
    return pairs, first if keys is used else first[np.searchsorted(keys, used)]


def _rest(catalog: Catalog, pairs: Pairs) -> tuple[Float, tuple[str, ...]]:
    """(V,) bytes of models that a node could run and no request type can use; and warnings."""
    topology, size = catalog.topology, catalog.size
    tasks = np.bincount(catalog.row, minlength=len(size))
    rest = np.zeros(len(topology.nodes))
    largest = np.full(len(size), -1.0)  # of the budgets where a variant runs
    hosts = np.flatnonzero(~topology.repository)
    alike, which = np.unique(
        np.column_stack([topology.hardware[hosts].astype(np.float64), topology.budget[hosts]]),
        axis=0,
        return_inverse=True,
    )
    totals = np.zeros(len(alike) + 1)
    for k, (hardware, budget) in enumerate(alike):
        runs = np.isfinite(catalog.delay_s[:, int(hardware)])
        totals[k] = (size * catalog.copies * tasks)[runs & (size <= budget)].sum()
        largest[runs] = np.maximum(largest[runs], budget)
    rest[hosts] = totals[which.ravel()]
    rest -= np.bincount(
        pairs.node, np.where(topology.repository[pairs.node], 0, pairs.size), len(rest)
    )
    return rest.clip(0), tuple(
        f"variant {catalog.variants[row]} of task {catalog.entry_of(row).name} takes "
        f"{SIZE.write(size[row])}, more than every budget that may host it (at most "
        f"{SIZE.write(largest[row])})"
        for row in np.flatnonzero((largest >= 0) & (largest < size)).tolist()
    )
