"""The plan of a node: what the file says that concerns it, its upstreams and control plane."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from inferway.live.control.peers import Peers
from inferway.live.control.session import neighbors_of
from inferway.live.errors import ServeError
from inferway.live.node.addresses import Addresses
from inferway.live.security.tls import Credentials, file_name
from inferway.live.upstream.upstream import Upstream
from inferway.network.layout import Deployed, deployed, members_of, topology_of
from inferway.network.routes import shortest_paths
from inferway.network.topology import Topology
from inferway.placement.layout import NodeData, data_of
from inferway.protocol.address import split

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Node, Task


@dataclass(frozen=True, eq=False)
class NodePlan:
    """One node's place.

    Attributes
    ----------
    node, number
        Its name, and its number among the network's nodes.
    repository
        Whether it is one.
    upstream
        The neighbor towards the nearest repository; None at a repository.
    links_s
        Round-trip time to each neighbor, in seconds.
    budget_bytes
        Infinite where there is none.
    tasks
        By the name under which clients ask for them: a counted task's entry of the file stands for
        all that are counted.
    types
        Request type by (task, entry node).
    data
        What placement needs of the node.
    rates_per_s, peaks_per_s
        Mean arrival rate at the start of each task that enters here, and the most at any time, 1/s.
    reach_s
        Longest round trip, s, from a node whose requests go through this one.
    topology, deployed
        All nodes and links, the whole network and the demand for it.
    member
        What the file says of the node.
    """

    node: str
    number: int
    repository: bool
    upstream: str | None
    links_s: Mapping[str, float]
    budget_bytes: float
    tasks: Mapping[str, Task]
    types: Mapping[tuple[str, str], int]
    data: NodeData
    rates_per_s: Mapping[str, float]
    peaks_per_s: Mapping[str, float]
    reach_s: float
    topology: Topology
    deployed: Deployed
    member: Node


def plan_of(deployment: Deployment, node: str) -> NodePlan:
    """Find a node's place in the network of a deployment.

    Raises
    ------
    ServeError
        For a name that no node has.
    DeploymentError
        Where the file has no network, or one that cannot be used.
    """
    topology = topology_of(deployment)
    if node not in topology.nodes:
        raise ServeError(f"the network has no node {node}; it has {', '.join(topology.nodes[:20])}")
    number = topology.nodes.index(node)
    network, demand = whole = deployed(deployment)
    first, entry = network.paths.first, network.paths.node
    types = {
        (network.tasks[task], network.nodes[entry[first[path]]]): rho
        for rho, (task, path) in enumerate(
            zip(network.requests.task, network.requests.path, strict=True)
        )
    }
    expected = demand.expected(0) / demand.slot_s
    links: dict[str, float] = {}
    for (one, other), rtt_s in zip(topology.links.tolist(), topology.rtt_s.tolist(), strict=True):
        if number in (one, other):
            name = topology.nodes[other if one == number else one]
            links[name] = min(rtt_s, links.get(name, np.inf))
    upstream = None
    if not topology.repository[number]:
        path = shortest_paths(topology, np.array([number]), np.flatnonzero(topology.repository))
        upstream = topology.nodes[path.node[1]]
    return NodePlan(
        node=node,
        number=number,
        repository=bool(topology.repository[number]),
        upstream=upstream,
        links_s=links,
        budget_bytes=float(topology.budget[number]),
        tasks=deployment.named(),
        types=types,
        data=data_of(network)[number],
        rates_per_s={task: float(expected[rho]) for (task, at), rho in types.items() if at == node},
        peaks_per_s={
            task: float(network.requests.peak[rho]) / demand.slot_s
            for (task, at), rho in types.items()
            if at == node
        },
        reach_s=float(network.paths.rtt_s[network.paths.node == number].max(initial=0.0)),
        topology=topology,
        deployed=whole,
        member=members_of(deployment, topology)[node],
    )


def links_of(
    plan: NodePlan,
    addresses: Mapping[str, Addresses],
    mine: Credentials | None,
    listen: str,
    emulate_rtt: bool,
) -> tuple[dict[str, Upstream], Peers]:
    """Make the ways to all neighbors and the control plane between them, not yet open.

    `mine` is the node's certificate, None for plain connections; `emulate_rtt` has both take the
    links' round-trip times. ServeError for a neighbor without an address.
    """
    upstreams = {}
    for neighbor, rtt_s in plan.links_s.items():
        if neighbor not in addresses:
            raise ServeError(f"node {neighbor}, a neighbor, has no address")
        host, port = host_and_port(addresses[neighbor].peer)
        upstreams[neighbor] = Upstream(
            neighbor,
            host,
            port,
            rtt_s=rtt_s if emulate_rtt else 0.0,
            tls=None if mine is None else mine.context(server=False),
            server_name=None if mine is None else file_name(neighbor),
        )
    control = {name: at.control for name, at in addresses.items()}
    peers = Peers(
        plan.node,
        # Named by its nodes, so that two networks of one machine hear nothing of each other.
        network=hashlib.sha256("\n".join(plan.topology.nodes).encode()).hexdigest()[:12],
        listen=listen,
        neighbors=neighbors_of(plan.topology, plan.node, control),
        credentials=mine,
        delays_s={one: rtt_s / 2 for one, rtt_s in plan.links_s.items()} if emulate_rtt else {},
    )
    return upstreams, peers


def host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT; 0, any port, where none is given."""
    host, port = split(address)
    return host, port or 0
