"""Nodes and links as arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import networkx


class NetworkError(ValueError):
    """A network that cannot be used, with one sentence that says why and what would be right."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A weighted undirected graph of nodes ([SiSalem23], Sec. III-A).

    Parameters
    ----------
    nodes
        V names, all different.
    links
        (E, 2) the two ends of each link, as indices of `nodes`.
    rtt_s
        (E,) round-trip time of each link in seconds, 0 or more (the paper's w).
    budget
        (V,) bytes of each node; ``inf`` where there is no limit. No limit anywhere if not given.
    hardware
        (V,) hardware of each node, as an index of `kinds`; all 0 if not given.
    kinds
        Names of hardware.
    repository
        (V,) whether a node can always serve every task; none if not given.
    tier, tiers
        (V,) tier of each node, and the tiers' names.

    Raises
    ------
    NetworkError
        If two nodes share a name, an array has another shape, a link ends nowhere or where it
        began, or a round-trip time or budget is negative or not a number.
    """

    nodes: tuple[str, ...]
    links: NDArray[np.int64]
    rtt_s: NDArray[np.float64]
    budget: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    hardware: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    kinds: tuple[str, ...] = ("cpu",)
    repository: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    tier: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    tiers: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        count = len(self.nodes)
        links = np.asarray(self.links, np.int64).reshape(-1, 2)
        for name, dtype, default, length in (
            ("rtt_s", np.float64, None, len(links)),
            ("budget", np.float64, np.inf, count),
            ("hardware", np.int32, 0, count),
            ("repository", np.bool_, False, count),
            ("tier", np.int32, 0, count),
        ):
            column = np.asarray(getattr(self, name), dtype)
            if default is not None and not column.size:
                column = np.full(count, default, dtype)
            if column.shape != (length,):
                raise NetworkError(f"{name} has shape {column.shape}, expected ({length},)")
            object.__setattr__(self, name, column)
        object.__setattr__(self, "links", links)
        if not self.nodes:
            raise NetworkError("a network has at least one node")
        if len(set(self.nodes)) < len(self.nodes):
            name, times = Counter(self.nodes).most_common(1)[0]
            raise NetworkError(f"{times} nodes are called {name}; every node needs its own name")
        if links.size and not (0 <= links.min() <= links.max() < count):
            wrong = links[((links < 0) | (links >= count)).any(axis=1)][0]
            raise NetworkError(f"a link joins nodes {wrong.tolist()}, but there are only {count}")
        for one in links[links[:, 0] == links[:, 1], 0][:1]:
            raise NetworkError(
                f"a link joins two nodes, but both ends of one are {self.nodes[one]}"
            )
        for bad in np.flatnonzero(~((self.rtt_s >= 0) & np.isfinite(self.rtt_s)))[:1]:
            one, other = (self.nodes[end] for end in links[bad])
            raise NetworkError(
                f"the round-trip time between {one} and {other} is {self.rtt_s[bad]:g} s; it "
                "must be a number of 0 or more"
            )
        for bad in np.flatnonzero(~(self.budget >= 0))[:1]:
            raise NetworkError(
                f"the budget of {self.nodes[bad]} is {self.budget[bad]:g} bytes; it must be "
                "0 or more"
            )

    def of_tier(self, name: str) -> NDArray[np.int64]:
        """Return the nodes of a tier.

        Raises
        ------
        NetworkError
            If there is no such tier.
        """
        if name not in self.tiers:
            raise NetworkError(f"there is no tier {name}; there is {', '.join(self.tiers)}")
        return np.flatnonzero(self.tier == self.tiers.index(name))


@dataclass(frozen=True)
class Level:
    """One level of a tree, as plain values.

    Attributes
    ----------
    name
        Its name; its nodes are NAME-0, NAME-1, ..., or NAME alone where there is one.
    nodes
        How many.
    rtt_s
        Round-trip time from each of its nodes to its parent, in seconds; 0 for the root.
    budget
        Bytes of each node, or (share, bytes) pairs whose shares add up to 1; None is no limit.
    hardware, repository
        As in `Topology`.
    """

    name: str
    nodes: int
    rtt_s: float = 0.0
    budget: float | Sequence[tuple[float, float]] | None = None
    hardware: str = "cpu"
    repository: bool = False


def tree(tiers: Sequence[Level], *, seed: int = 0) -> Topology:
    """Join tiers to a tree, the root first.

    The nodes of a tier are spread evenly over those of the tier above, neighbors under one parent:
    24 base stations below 8 offices are 3 below each.

    Parameters
    ----------
    tiers
        At least one; the first has one node.
    seed
        Which nodes of a tier get which share of a mixed budget. Shares become whole numbers of
        nodes that add up, the largest remainders rounded up.

    Raises
    ------
    NetworkError
        If there is no tier, the root has not one node, or as `Topology`.
    """
    if not tiers:
        raise NetworkError("a tree needs at least one tier, its root")
    if tiers[0].nodes != 1:
        raise NetworkError(f"tier {tiers[0].name} is the root and has one node")
    names: list[str] = []
    for tier in tiers:
        if tier.nodes < 1:
            raise NetworkError(f"tier {tier.name} has {tier.nodes} nodes; it needs at least one")
        names += [f"{tier.name}-{k}" for k in range(tier.nodes)] if tier.nodes > 1 else [tier.name]
    sizes = np.array([tier.nodes for tier in tiers])
    start = np.cumsum(sizes) - sizes
    level = np.repeat(np.arange(len(tiers)), sizes)
    below = np.arange(1, len(level))
    above = level[1:] - 1
    parent = start[above] + (below - start[above + 1]) * sizes[above] // sizes[above + 1]
    kinds = tuple(dict.fromkeys(tier.hardware for tier in tiers))
    rng = np.random.default_rng([seed, _BUDGETS])
    return Topology(
        nodes=tuple(names),
        links=np.column_stack([below, parent]),
        rtt_s=np.repeat([tier.rtt_s for tier in tiers], sizes)[1:],
        budget=np.concatenate([_budgets(tier, rng) for tier in tiers]),
        hardware=np.array([kinds.index(tier.hardware) for tier in tiers], np.int32)[level],
        kinds=kinds,
        repository=np.array([tier.repository for tier in tiers])[level],
        tier=level.astype(np.int32),
        tiers=tuple(tier.name for tier in tiers),
    )


_BUDGETS = 0xB0D6  # tells this use of the seed from others


def _budgets(tier: Level, rng: np.random.Generator) -> NDArray[np.float64]:
    if tier.budget is None:
        return np.full(tier.nodes, np.inf)
    if isinstance(tier.budget, int | float):
        return np.full(tier.nodes, float(tier.budget))
    shares = np.array([share for share, _ in tier.budget])
    if abs(shares.sum() - 1) > 1e-9 or (shares < 0).any():
        raise NetworkError(f"the shares of tier {tier.name} add up to {shares.sum():.4g}, not to 1")
    exact = shares * tier.nodes
    counts = np.floor(exact + 1e-9).astype(np.int64)
    short = tier.nodes - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
    sizes = np.repeat([float(size) for _, size in tier.budget], counts)
    return np.asarray(rng.permutation(sizes))


def from_graph(graph: networkx.Graph, *, rtt: str = "rtt_s") -> Topology:
    """Take any graph of NetworkX; directions of links are ignored.

    Parameters
    ----------
    graph
        Edges carry the attribute `rtt`. Nodes may carry ``budget`` (bytes; unlimited if not given),
        ``hardware`` (``cpu``), ``repository`` (False) and ``tier`` (none); their names are what
        ``str`` makes of them.
    rtt
        The edges' attribute that holds the round-trip time in seconds.

    Raises
    ------
    NetworkError
        If an edge has no round-trip time, or as `Topology`.
    """
    names = list(graph)
    index = {node: k for k, node in enumerate(names)}
    for one, other, values in graph.edges(data=True):
        if rtt not in values:
            raise NetworkError(
                f"the edge between {one} and {other} has no attribute {rtt}, its round-trip time "
                "in seconds"
            )
    edges = [
        (index[one], index[other], float(rtt_s)) for one, other, rtt_s in graph.edges(data=rtt)
    ]
    hardware, tier = (
        [str(graph.nodes[node].get(key, default)) for node in names]
        for key, default in (("hardware", "cpu"), ("tier", ""))
    )
    kinds, tiers = tuple(dict.fromkeys(hardware)), tuple(dict.fromkeys(tier))
    return Topology(
        nodes=tuple(map(str, names)),
        links=np.array([ends for *ends, _ in edges], np.int64).reshape(-1, 2),
        rtt_s=np.array([rtt_s for *_, rtt_s in edges]),
        budget=np.array([float(graph.nodes[node].get("budget", np.inf)) for node in names]),
        hardware=np.array([kinds.index(one) for one in hardware], np.int32),
        kinds=kinds,
        repository=np.array([bool(graph.nodes[node].get("repository", False)) for node in names]),
        tier=np.array([tiers.index(one) for one in tier], np.int32),
        tiers=tiers,
    )


def to_graph(topology: Topology) -> networkx.Graph:
    """Return a graph as `from_graph` reads it; of parallel links, the fastest."""
    import networkx

    graph = networkx.Graph()
    for k, name in enumerate(topology.nodes):
        graph.add_node(
            name,
            budget=float(topology.budget[k]),
            hardware=topology.kinds[topology.hardware[k]],
            repository=bool(topology.repository[k]),
            tier=topology.tiers[topology.tier[k]],
        )
    for (one, other), seconds in zip(topology.links, topology.rtt_s, strict=True):
        ends = topology.nodes[one], topology.nodes[other]
        if not graph.has_edge(*ends) or graph.edges[ends]["rtt_s"] > seconds:
            graph.add_edge(*ends, rtt_s=float(seconds))
    return graph
