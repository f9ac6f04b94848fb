"""Ranks what can serve each request type, and collects the (node, model) pairs that come up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.network.kinds import Catalog, Kind
from inferway.network.options import (
    CostFunction,
    Models,
    Options,
    Pairs,
    Paths,
    Requests,
    Service,
    latency_and_inaccuracy,
)
from inferway.network.pins import Pins
from inferway.network.topology import NetworkError, Topology

_CHUNK = 1 << 20  # costs that are sorted at once; bounds the memory beyond the result

Float = NDArray[np.float64]
Offset = NDArray[np.int64]


class _Ranked(NamedTuple):
    """Entries (a variant at a node, all its copies together) of some request types, in order."""

    types: Offset
    entries: Offset
    hop: NDArray[np.int16]
    offer: NDArray[np.int32]
    cost: Float


def rank(
    topology: Topology,
    catalog: Catalog,
    models: Models,
    paths: Paths,
    requests: Requests,
    pins: Pins,
    *,
    alpha: float,
    cost: CostFunction | None = None,
    every_pair: bool = False,
) -> tuple[Options, Pairs]:
    """Rank all options of all request types ([SiSalem23], Sec. III-E).

    Parameters
    ----------
    every_pair
        Keep also the pairs that no request type can use: what the paper's own text does.

    Raises
    ------
    NetworkError
        If a path's last node pins no variant of the task, or a cost is not a number.
    """
    parts = list(_parts(topology, catalog, paths, requests, pins, alpha, cost))
    total = len(requests.task)
    entries = np.zeros(total, np.int64)
    for part in parts:
        entries[part.types] = part.entries
    first = np.concatenate([[0], np.cumsum(entries)])
    hop = np.empty(first[-1], np.int16)
    offer = np.empty(first[-1], np.int32)
    price = np.empty(first[-1])
    while parts:
        part = parts.pop()
        within = np.arange(len(part.hop)) - np.repeat(
            np.cumsum(part.entries) - part.entries, part.entries
        )
        place = np.repeat(first[part.types], part.entries) + within
        hop[place], offer[place], price[place] = part.hop, part.offer, part.cost
    node = paths.node[np.repeat(paths.first[requests.path], entries) + hop]
    keys, entry_pair = np.unique(
        node.astype(np.int64) * len(catalog.row) + offer, return_inverse=True
    )
    pairs, pair_first = _pairs(topology, catalog, models, pins, keys, every_pair)
    copies = np.where(topology.repository[node], 1, catalog.copies[catalog.row[offer]])
    del offer, keys
    pair = np.repeat(pair_first[entry_pair].astype(np.int32), copies)
    del entry_pair
    pair += _copy(copies)
    last = np.repeat(np.diff(paths.first)[requests.path] - 1, entries) == hop
    options = Options(
        first=np.concatenate([[0], np.cumsum(copies)])[first].astype(np.int64),
        node=np.repeat(node, copies),
        model=pairs.model[pair],
        pair=pair,
        hop=np.repeat(hop, copies),
        cost=np.repeat(price, copies),
        repository=np.repeat(last, copies),
    )
    return options, pairs


def _copy(copies: Offset) -> NDArray[np.int32]:
    """Count 0, 1, ..., n - 1 for each n of `copies`."""
    start = np.cumsum(copies) - copies
    found = np.arange(int(copies.sum()), dtype=np.int32)
    found -= np.repeat(start.astype(np.int32), copies)
    return found


def _parts(
    topology: Topology,
    catalog: Catalog,
    paths: Paths,
    requests: Requests,
    pins: Pins,
    alpha: float,
    cost: CostFunction | None,
) -> Iterator[_Ranked]:
    """Rank request types that have equally many variants and hops together, some at a time."""
    fits = catalog.fits(topology) if len(topology.nodes) * len(catalog.size) <= _CHUNK else None
    length = np.diff(paths.first)[requests.path]
    kind_of = catalog.kind_of[requests.task]
    start = np.cumsum([0] + [len(kind.variants) for kind in catalog.kinds])
    for k, kind in enumerate(catalog.kinds):
        width = len(kind.variants)
        before = int(np.searchsorted(catalog.kind_of, k))  # tasks of the kinds before this one
        for hops in np.unique(length[kind_of == k]):
            alike = np.flatnonzero((kind_of == k) & (length == hops))
            step = max(1, _CHUNK // int(hops * width))
            for begin in range(0, len(alike), step):
                types = alike[begin : begin + step]
                at = paths.first[requests.path[types]][:, None] + np.arange(hops)
                node, rtt = paths.node[at], paths.rtt_s[at]
                delay = kind.delay_s.T[topology.hardware[node]]  # (n, hops, width)
                offer = catalog.first[requests.task[types]][:, None] + np.arange(width)
                pinned = pins.at(node, offer, topology.repository)
                if fits is None:
                    within = kind.size <= topology.budget[node][..., None]
                    may = within & np.isfinite(delay) & ~topology.repository[node][..., None]
                else:
                    may = fits[start[k] : start[k] + width, node].transpose(1, 2, 0)
                open_ = may | (pinned > 0)
                if cost is None:
                    price = latency_and_inaccuracy(rtt[..., None], delay, kind.accuracy, alpha)
                else:
                    price = _asked(
                        cost, topology, kind, before, requests.task[types], node, rtt, open_
                    )
                price[~open_] = np.inf
                yield _order(price, pinned[:, -1] > 0, types, offer)


def _order(price: Float, last_pinned: NDArray[np.bool_], types: Offset, offer: Offset) -> _Ranked:
    """Sort (n, hops, width) costs, and cut each row at its repository."""
    count, hops, width = price.shape
    limit = np.where(last_pinned, price[:, -1], -np.inf).max(axis=1)
    own = np.zeros((count, hops, width), np.bool_)
    own[:, -1] = last_pinned
    flat = price.reshape(count, -1)
    order = np.argsort(flat, axis=1, kind="stable")  # equal costs: by hop, then by variant
    ranked = np.take_along_axis(flat, order, axis=1)
    keep = (ranked < limit[:, None]) | np.take_along_axis(own.reshape(count, -1), order, axis=1)
    row, column = np.nonzero(keep)
    found = order[row, column]
    return _Ranked(
        types,
        keep.sum(axis=1),
        (found // width).astype(np.int16),
        offer[row, found % width].astype(np.int32),
        ranked[row, column],
    )


def _asked(
    cost: CostFunction,
    topology: Topology,
    kind: Kind,
    first: int,
    task: NDArray[np.int32],
    node: NDArray[np.int32],
    rtt: Float,
    wanted: NDArray[np.bool_],
) -> Float:
    """Ask a user's cost function, once for every variant at every hop."""
    price = np.full(wanted.shape, np.inf)
    names = {first + k: name for k, name in enumerate(kind.tasks)}
    for n, hop, w in np.argwhere(wanted):
        service = Service(
            nodes=tuple(topology.nodes[v] for v in node[n, : hop + 1]),
            task=names[task[n]],
            variant=kind.variants[w],
            accuracy=float(kind.accuracy[w]),
            delay_s=float(kind.delay_s[w, topology.hardware[node[n, hop]]]),
            rtt_s=float(rtt[n, hop]),
        )
        price[n, hop, w] = value = float(cost(service))
        if np.isnan(value) or value == -np.inf:
            raise NetworkError(f"the cost function gives {value} for {service}")
    return price


def _pairs(
    topology: Topology,
    catalog: Catalog,
    models: Models,
    pins: Pins,
    used: Offset,
    every_pair: bool,
) -> tuple[Pairs, Offset]:
    """Collect pairs; also the first pair of each of the `used` keys (node x offers + offer)."""
    offers = len(catalog.row)
    keys = used
    if every_pair:
        offer, node = np.nonzero(catalog.fits(topology)[catalog.row])
        keys = np.union1d(keys, node.astype(np.int64) * offers + offer)
    # Both are sorted, which neither isin nor union1d makes use of.
    place = np.minimum(np.searchsorted(keys, pins.key), len(keys) - 1)
    if (keys[place] != pins.key).any():
        keys = np.union1d(keys, pins.key)
    node, offer = np.divmod(keys, offers)
    row = catalog.row[offer]
    repository = topology.repository[node]
    copies = np.where(repository, 1, catalog.copies[row])
    first = np.cumsum(copies) - copies
    copy = _copy(copies)
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
    of_node = np.bincount(node, weights=copies, minlength=len(topology.nodes))
    hardware = topology.hardware[node]
    pairs = Pairs(
        first=np.concatenate([[0], np.cumsum(of_node)]).astype(np.int64),
        node=np.repeat(node.astype(np.int32), copies),
        model=copy,
        size=np.repeat(catalog.size[row], copies),
        capacity=np.repeat(catalog.capacity[row, hardware], copies),
        pinned=each,
    )
    return pairs, first if keys is used else first[np.searchsorted(keys, used)]
