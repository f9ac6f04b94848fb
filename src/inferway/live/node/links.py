"""A node's links: the ways to its neighbors, and the control plane between them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from inferway.live.control.control import LETTERS, ControlPlane
from inferway.live.control.credentials import Credentials, file_name
from inferway.live.control.late import LatePlane
from inferway.live.control.neighbors import neighbors_of
from inferway.live.errors import ServeError
from inferway.live.node.addresses import Addresses
from inferway.live.node.menu import MENU
from inferway.live.node.position import Position
from inferway.live.upstream.upstream import Upstream
from inferway.network.topology import Topology
from inferway.protocol.address import split


def upstreams_of(
    position: Position,
    addresses: Mapping[str, Addresses],
    mine: Credentials | None,
    *,
    emulate_rtt: bool,
) -> dict[str, Upstream]:
    """Make the ways to all neighbors.

    Parameters
    ----------
    position
        The node's.
    addresses
        Of its neighbors, at least.
    mine
        The node's certificate; None for plain connections.
    emulate_rtt
        Whether they take the links' round-trip times.

    Raises
    ------
    ServeError
        For a neighbor without an address.
    """
    upstreams = {}
    for neighbor, rtt_s in position.links_s.items():
        if neighbor not in addresses:
            raise ServeError(f"node {neighbor}, a neighbor, has no address")
        host, port = host_and_port(addresses[neighbor].peer)
        upstreams[neighbor] = Upstream(
            neighbor,
            host,
            port,
            rtt_s=rtt_s if emulate_rtt else 0.0,
            tls=None if mine is None else mine.client_context(),
            server_name=None if mine is None else file_name(neighbor),
        )
    return upstreams


def plane_of(
    topology: Topology,
    position: Position,
    addresses: Mapping[str, Addresses],
    mine: Credentials | None,
    *,
    listen: str,
    emulate_rtt: bool,
) -> ControlPlane:
    """Make the control plane, not open yet, with its own address; else as `upstreams_of`."""
    node = position.node
    options: dict[str, Any] = {
        "network": _name_of(topology.nodes),
        "listen": listen,
        "neighbors": neighbors_of(
            topology, node, {one: at.control for one, at in addresses.items()}
        ),
        "credentials": mine,
        "kinds": (*LETTERS, MENU),
    }
    if emulate_rtt:
        return LatePlane(node, links_s=position.links_s, **options)
    return ControlPlane(node, **options)


def host_and_port(address: str) -> tuple[str, int]:
    """Split HOST:PORT; 0, any port, where none is given."""
    host, port = split(address)
    return host, port or 0


def _name_of(nodes: tuple[str, ...]) -> str:
    """Name a network by its nodes, so that two of one machine's hear nothing of each other."""
    return hashlib.sha256("\n".join(nodes).encode()).hexdigest()[:12]
