"""Routing paths: by the shortest round-trip time to the nearest repository."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from inferway.network.options import Paths
from inferway.network.topology import NetworkError, Topology


def shortest_paths(
    topology: Topology, entries: NDArray[np.int64], repositories: NDArray[np.int64]
) -> Paths:
    """Route from each entry to the repository that is nearest in round-trip time.

    Paths are simple, as the paper needs them (Sec. III-B), and all that pass a node go on alike
    from there.

    Parameters
    ----------
    entries
        (Q,) nodes where requests enter; path q starts at entry q.
    repositories
        Nodes that paths may end at, at least one.

    Raises
    ------
    NetworkError
        If an entry reaches no repository.
    """
    count = len(topology.nodes)
    ends, rtt = _least_links(topology)
    both = np.concatenate([ends, ends[:, ::-1]])
    order = np.lexsort((both[:, 1], both[:, 0]))
    row = np.concatenate([[0], np.cumsum(np.bincount(both[:, 0], minlength=count))])
    # In steps of a hop's worth below any difference that matters, so that of two paths equally
    # fast the one with fewer hops is taken, whatever the rounding of their sums.
    hop = 1e-12 * max(float(rtt.max(initial=0.0)), 1e-3)
    distance, parent = _nearest(
        row, both[order, 1], np.tile(rtt, 2)[order] + hop, np.unique(repositories)
    )
    lost = entries[~np.isfinite(distance[entries])]
    if lost.size:
        raise NetworkError(
            f"no path leads from {topology.nodes[lost[0]]} to a repository "
            f"({_some([topology.nodes[r] for r in repositories])}); join them by links"
        )
    return _walk(entries, parent, _step_rtt(parent, both[order], np.tile(rtt, 2)[order]))


def given_paths(topology: Topology, paths: Sequence[Sequence[str]]) -> Paths:
    """Take paths as they are listed by name, the entry first, the repository last.

    Raises
    ------
    NetworkError
        If a path is empty, names a node that is not there, passes a node twice or joins two nodes
        without a link.
    """
    index = {name: node for node, name in enumerate(topology.nodes)}
    ends, rtt = _least_links(topology)
    link = {(int(a), int(b)): float(w) for (a, b), w in zip(ends, rtt, strict=True)}
    first, nodes, prefix = [0], [], []
    for path in paths:
        shown = " - ".join(path)
        if not path:
            raise NetworkError("a path is empty; it needs at least a repository")
        for name in path:
            if name not in index:
                raise NetworkError(f"path {shown}: there is no node {name}")
        if len(set(path)) < len(path):
            twice = next(name for name in path if list(path).count(name) > 1)
            raise NetworkError(f"path {shown} is not simple: it passes {twice} twice")
        hops = [index[name] for name in path]
        total = 0.0
        prefix.append(total)
        for one, other in pairwise(hops):
            key = (min(one, other), max(one, other))
            if key not in link:
                raise NetworkError(
                    f"path {shown} is not connected: there is no link between "
                    f"{topology.nodes[one]} and {topology.nodes[other]}"
                )
            total += link[key]
            prefix.append(total)
        nodes += hops
        first.append(len(nodes))
    return Paths(np.array(first, np.int64), np.array(nodes, np.int32), np.array(prefix))


def _nearest(
    row: NDArray[np.int64],
    other: NDArray[np.int64],
    length: NDArray[np.float64],
    roots: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Find each node's distance to the nearest root and the next node on the way there.

    Dijkstra's algorithm with a heap. SciPy's needs a fifth of a second to be imported, in
    which this one walks thousands of links.

    Parameters
    ----------
    row, other, length
        Links as rows of a sparse matrix: node v's are those from ``row[v]`` to ``row[v + 1]``.

    Returns
    -------
    distance
        (V,) inf where no root is reached.
    parent
        (V,) -1 at roots and where none is reached.
    """
    distance, parent = [np.inf] * (len(row) - 1), [-1] * (len(row) - 1)
    first, ends, lengths = row.tolist(), other.tolist(), length.tolist()
    heap = [(0.0, root) for root in roots.tolist()]
    for _, root in heap:
        distance[root] = 0.0
    while heap:
        far, node = heappop(heap)
        if far > distance[node]:
            continue
        for link in range(first[node], first[node + 1]):
            beyond, end = far + lengths[link], ends[link]
            if beyond < distance[end]:
                distance[end], parent[end] = beyond, node
                heappush(heap, (beyond, end))
    return np.array(distance), np.array(parent, np.int32)


def _least_links(topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Keep the fastest of parallel links: (E', 2) ends, the lower first, and (E',) seconds."""
    ends = np.sort(topology.links, axis=1)
    order = np.lexsort((topology.rtt_s, ends[:, 1], ends[:, 0]))
    ends, rtt = ends[order], topology.rtt_s[order]
    new = np.ones(len(ends), np.bool_)
    new[1:] = (np.diff(ends, axis=0) != 0).any(axis=1)
    return ends[new], rtt[new]


def _step_rtt(
    parent: NDArray[np.int32], links: NDArray[np.int64], rtt: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(V,) seconds from each node to its parent; 0 where it has none."""
    count = len(parent)
    step = np.zeros(count)
    below = np.flatnonzero(parent >= 0)
    key = links[:, 0] * count + links[:, 1]  # sorted
    found = np.searchsorted(key, below * count + parent[below])
    step[below] = rtt[found]
    return step


def _walk(
    entries: NDArray[np.int64], parent: NDArray[np.int32], step: NDArray[np.float64]
) -> Paths:
    """Follow parents from all entries at once, a hop at a time."""
    hops, times = [entries.astype(np.int64)], [np.zeros(len(entries))]
    alive = [np.arange(len(entries))]
    here, spent = hops[0], times[0]
    while True:
        on = parent[here] >= 0
        if not on.any():
            break
        spent = spent[on] + step[here[on]]
        here = parent[here[on]].astype(np.int64)
        hops.append(here)
        times.append(spent)
        alive.append(alive[-1][on])
    path = np.concatenate(alive)
    order = np.argsort(path, kind="stable")  # hops of one path stay in order
    first = np.concatenate([[0], np.cumsum(np.bincount(path, minlength=len(entries)))])
    return Paths(
        first.astype(np.int64),
        np.concatenate(hops)[order].astype(np.int32),
        np.concatenate(times)[order],
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
