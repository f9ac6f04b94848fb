"""Routing paths: by the shortest round-trip time to the nearest repository."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from inferway.network.options import Paths, ranges
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
    both = np.concatenate([topology.links, topology.links[:, ::-1]])
    rtt = np.tile(topology.rtt_s, 2)
    order = np.lexsort((rtt, both[:, 1], both[:, 0]))
    row = ranges(np.bincount(both[:, 0], minlength=count))
    # In steps of a hop's worth below any difference that matters, so that of two paths equally
    # fast the one with fewer hops is taken, whatever the rounding of their sums.
    hop = 1e-12 * max(float(rtt.max(initial=0.0)), 1e-3)
    link = _links_to_nearest(row, both[order, 1], rtt[order] + hop, np.unique(repositories))
    lost = entries[(link[entries] < 0) & ~np.isin(entries, repositories)]
    if lost.size:
        shown = [topology.nodes[r] for r in repositories[:3]] + ["..."] * (len(repositories) > 3)
        raise NetworkError(
            f"no path leads from {topology.nodes[lost[0]]} to a repository ({', '.join(shown)}); "
            "join them by links"
        )
    return _walk(entries, link, both[order, 0], rtt[order])


def given_paths(topology: Topology, paths: Sequence[Sequence[str]]) -> Paths:
    """Take paths as they are listed by name, the entry first, the repository last.

    Raises
    ------
    NetworkError
        If a path is empty, names a node that is not there, passes a node twice or joins two nodes
        without a link.
    """
    index = {name: node for node, name in enumerate(topology.nodes)}
    link: dict[frozenset[int], float] = {}
    for ends, rtt_s in zip(topology.links.tolist(), topology.rtt_s.tolist(), strict=True):
        key = frozenset(ends)
        link[key] = min(rtt_s, link.get(key, np.inf))
    first, nodes, prefix = [0], list[int](), list[float]()
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
        steps = [0.0]
        for one, other in pairwise(hops):
            if (key := frozenset((one, other))) not in link:
                raise NetworkError(
                    f"path {shown} is not connected: there is no link between "
                    f"{topology.nodes[one]} and {topology.nodes[other]}"
                )
            steps.append(link[key])
        prefix += accumulate(steps)
        nodes += hops
        first.append(len(nodes))
    return Paths(np.array(first, np.int64), np.array(nodes, np.int32), np.array(prefix))


def _links_to_nearest(
    row: NDArray[np.int64],
    other: NDArray[np.int64],
    length: NDArray[np.float64],
    roots: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Find (V,) the link by which each node is reached from the nearest root; -1 at roots.

    Dijkstra's algorithm with a heap; -1 also where no root is reached. SciPy's needs a fifth of a
    second to be imported, in which this one walks thousands of links. Node v's links, of lengths to
    others, are those from ``row[v]`` to ``row[v + 1]``.
    """
    distance, by = [np.inf] * (len(row) - 1), [-1] * (len(row) - 1)
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
                distance[end], by[end] = beyond, link
                heappush(heap, (beyond, end))
    return np.array(by)


def _walk(
    entries: NDArray[np.int64],
    link: NDArray[np.int64],
    parent: NDArray[np.int64],
    rtt_s: NDArray[np.float64],
) -> Paths:
    """Follow links to parents from all entries at once, a hop at a time."""
    hops, times = [entries.astype(np.int64)], [np.zeros(len(entries))]
    alive = [np.arange(len(entries))]
    while (on := link[hops[-1]] >= 0).any():
        step = link[hops[-1][on]]
        times.append(times[-1][on] + rtt_s[step])
        hops.append(parent[step])
        alive.append(alive[-1][on])
    path = np.concatenate(alive)
    order = np.argsort(path, kind="stable")  # hops of one path stay in order
    return Paths(
        ranges(np.bincount(path, minlength=len(entries))),
        np.concatenate(hops)[order].astype(np.int32),
        np.concatenate(times)[order],
    )
