"""The Zenoh session of a node: whom it talks to, what they may say, when they count as gone."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import numpy as np

from inferway.live.errors import ServeError
from inferway.live.security.tls import Credentials
from inferway.network.topology import Topology
from inferway.protocol.address import joined, split

# Under which key a node tells a neighbor that it lives.
ALIVE: Final = "alive"

_RETRY: Final = {"period_init_ms": 100, "period_max_ms": 1000, "period_increase_factor": 2.0}
# A connection attempt into a partition hangs until then, and one that heals is not seen before.
_OPEN_TIMEOUT_MS: Final = 3000
# Batches of up to 64 KiB that wait for a link, the most that there may be; beyond, all is dropped.
_QUEUE: Final = 16
_SAID: Final = ("put", "delete", "liveliness_token", "declare_queryable", "reply")
_ASKED: Final = (
    *("declare_subscriber", "declare_liveliness_subscriber"),
    *("liveliness_query", "query"),
)


class KeyExpressions(NamedTuple):
    """Names of what a node of a network says to another: ``inferway/NETWORK/FROM/TO/KIND``."""

    network: str
    node: str

    def to(self, neighbor: str) -> str:
        """Return the prefix of what the node says to a neighbor."""
        return _prefix(self.network, self.node, neighbor)

    def of(self, neighbor: str) -> str:
        """Return the prefix of what a neighbor says to the node."""
        return _prefix(self.network, neighbor, self.node)


def _prefix(*names: str) -> str:
    # Zenoh reads slashes and ``* $ ? # @`` as its own.
    return "/".join(("inferway", *(quote(name, safe="") for name in names)))


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
    ends = np.unique(at_end[at_end != own]).tolist()
    for name in (topology.nodes[other] for other in ends if other < own):
        if name not in addresses:
            raise ServeError(f"node {node} connects to {name}, which has no address")
    names = {other: topology.nodes[other] for other in ends}
    return {name: addresses[name] if other < own else None for other, name in names.items()}


def settings(
    keys: KeyExpressions,
    listen: str,
    neighbors: Mapping[str, str | None],
    credentials: Credentials | None,
    *,
    lease_s: float,
    limit_bytes: int,
) -> str:
    """Write the configuration of a session, in JSON.

    With credentials, who speaks is known from the certificate, and access rules let each neighbor
    say what begins with its own name and hear what is meant for it, and all others nothing.

    Parameters
    ----------
    keys
        The node's.
    listen
        Address, as HOST:PORT; a name stands for each of its addresses.
    neighbors
        Address of each that the node connects to; None for those that connect to it.
    credentials
        The node's; None for plain TCP, where names are only claimed.
    lease_s
        Time after which a neighbor from which nothing comes is gone, s.
    limit_bytes
        Larger messages are dropped while they arrive.
    """
    scheme = "tcp" if credentials is None else "tls"
    dialed = [f"{scheme}/{address}" for address in neighbors.values() if address is not None]
    link: dict[str, Any] = {
        "protocols": [scheme],
        "rx": {"max_message_size": limit_bytes},
        # Announced to the other end, which listens by it; kept alive four times as often.
        "tx": {
            "lease": round(lease_s * 1000),
            "keep_alive": 4,
            "queue": {"size": {"data": _QUEUE}},
        },
    }
    if credentials is not None:
        # Before the port Zenoh looks for a server's name, of which brackets are no part.
        dialed = [address.replace("[", "").replace("]", "") for address in dialed]
        link["tls"] = {
            "root_ca_certificate": str(credentials.authority),
            "listen_certificate": str(credentials.certificate),
            "listen_private_key": str(credentials.key),
            "connect_certificate": str(credentials.certificate),
            "connect_private_key": str(credentials.key),
            "enable_mtls": True,
            # Certificates bear nodes' names, not addresses. Whom a link reaches is checked all the
            # same, by the access rules: the wrong node is not heard and is told nothing. (Zenoh
            # trusts the public authorities beside ours for servers; their certificates bear no
            # names of ours, so that the rules keep them out, too.)
            "verify_name_on_connect": False,
            "close_link_on_expiration": True,
        }
    return json.dumps(
        {
            "mode": "peer",
            "listen": {
                "endpoints": [f"{scheme}/{address}" for address in _each(listen)],
                "exit_on_failure": True,
                "timeout_ms": 0,
            },
            # Neighbors that are not up yet are waited for, without end and in the background.
            "connect": {
                "endpoints": dialed,
                "timeout_ms": -1,
                "exit_on_failure": False,
                "retry": _RETRY,
            },
            "open": {"return_conditions": {"connect_scouted": False, "declares": False}},
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "adminspace": {"enabled": False},
            "plugins_loading": {"enabled": False},
            "transport": {
                "unicast": {"open_timeout": _OPEN_TIMEOUT_MS, "accept_timeout": _OPEN_TIMEOUT_MS},
                # Neighbors on one machine talk as those on two.
                "shared_memory": {"enabled": False},
                "link": link,
            },
            "access_control": _rules(keys, neighbors, known=credentials is not None),
        }
    )


def _each(address: str) -> list[str]:
    """Write out a name's addresses, of which Zenoh would listen at the first alone."""
    with suppress(OSError, ValueError):
        host, port = split(address)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(joined(str(one[4][0]), port or 0) for one in found))
    return [address]  # what is wrong with it Zenoh says


def _rules(
    keys: KeyExpressions, neighbors: Mapping[str, str | None], *, known: bool
) -> dict[str, Any]:
    """Allow each neighbor its own keys; `known` where certificates tell who speaks."""
    ways = (
        ("hear", _SAID, "ingress", keys.of),
        ("ask", _ASKED, "egress", keys.of),
        ("tell", _SAID, "egress", keys.to),
        ("be asked", _ASKED, "ingress", keys.to),
    )
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [
            {
                "id": f"{name} {k}",
                "messages": list(messages),
                "flows": [flow],
                "permission": "allow",
                "key_exprs": [f"{prefix(neighbor)}/**"],
            }
            for k, neighbor in enumerate(neighbors)
            for name, messages, flow, prefix in ways
        ],
        "subjects": [
            {"id": f"neighbor {k}", **({"cert_common_names": [neighbor]} if known else {})}
            for k, neighbor in enumerate(neighbors)
        ],
        "policies": [
            {"rules": [f"{name} {k}" for name, *_ in ways], "subjects": [f"neighbor {k}"]}
            for k in range(len(neighbors))
        ],
    }
