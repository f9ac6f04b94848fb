"""Which nodes a node talks to, and which of the two connects."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inferway.live.errors import ServeError
from inferway.network.topology import Topology


def neighbors_of(
    topology: Topology, node: str, addresses: Mapping[str, str]
) -> dict[str, str | None]:
    """Name the other ends of a node's links.

    One end of each link connects, that which the file names later: in a tree the one further down,
    which may sit behind a router that lets nobody in.

    Parameters
    ----------
    topology
        Nodes and links.
    node
        Its name.
    addresses
        HOST:PORT by name, of at least the neighbors that the node connects to.

    Returns
    -------
    dict
        Address by neighbor, in the network's order; None for those that connect to this node.

    Raises
    ------
    ServeError
        For a name that no node has, or a neighbor to connect to without an address.
    """
    if node not in topology.nodes:
        raise ServeError(f"the network has no node {node}; it has {', '.join(topology.nodes[:20])}")
    own = topology.nodes.index(node)
    at_end = topology.links[(topology.links == own).any(axis=1)]
    found: dict[str, str | None] = {}
    for other in np.unique(at_end[at_end != own]).tolist():
        name = topology.nodes[other]
        if other > own:
            found[name] = None
        elif name in addresses:
            found[name] = addresses[name]
        else:
            raise ServeError(f"node {node} connects to {name}, which has no address")
    return found
