"""Topologies from and to NetworkX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.network.error import NetworkError
from inferway.network.topology import Topology

if TYPE_CHECKING:
    import networkx


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
    data: list[tuple[Any, dict[str, Any]]] = list(graph.nodes(data=True))
    index = {node: k for k, (node, _) in enumerate(data)}
    kinds = tuple(dict.fromkeys(str(values.get("hardware", "cpu")) for _, values in data))
    tiers = tuple(dict.fromkeys(str(values.get("tier", "")) for _, values in data))
    links, seconds = [], []
    for one, other, values in graph.edges(data=True):
        if rtt not in values:
            raise NetworkError(
                f"the edge between {one} and {other} has no attribute {rtt}, its round-trip time "
                "in seconds"
            )
        links.append((index[one], index[other]))
        seconds.append(float(values[rtt]))
    return Topology(
        nodes=tuple(str(node) for node, _ in data),
        links=np.array(links, np.int64).reshape(-1, 2),
        rtt_s=np.array(seconds),
        budget=np.array([float(values.get("budget", np.inf)) for _, values in data]),
        hardware=np.array(
            [kinds.index(str(values.get("hardware", "cpu"))) for _, values in data], np.int32
        ),
        kinds=kinds,
        repository=np.array([bool(values.get("repository", False)) for _, values in data]),
        tier=np.array([tiers.index(str(values.get("tier", ""))) for _, values in data], np.int32),
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
