"""What a topology needs to be emulated: an address per node, the links, the names."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address
from typing import Final, NamedTuple

import numpy as np

from inferway.live.emulation.error import EmulationError
from inferway.network.topology import Topology

FIRST: Final = IPv4Address("10.77.0.1")
"""Of the first node. Namespaces have no way out, so that these may be in use elsewhere."""
MOST: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,62})")


class Wiring(NamedTuple):
    """Nodes as an emulation knows them.

    Attributes
    ----------
    addresses
        By name.
    links
        Index of one end, of the other, round-trip time in seconds; one for each two neighbors.
    """

    addresses: dict[str, IPv4Address]
    links: tuple[tuple[int, int, float], ...]

    def neighbors(self, node: int) -> list[IPv4Address]:
        """Give the addresses at the other ends of a node's links."""
        every = list(self.addresses.values())
        ends = [(one, other) for one, other, _ in self.links if node in (one, other)]
        return [every[other if one == node else one] for one, other in ends]

    def hosts(self) -> str:
        """Give the lines of /etc/hosts inside: all nodes, and this machine as the loopback."""
        own = socket.gethostname()
        loopback = "localhost" if own in self.addresses else f"localhost {own}"
        lines = [f"127.0.0.1 {loopback}", "::1 localhost"]
        lines += [f"{address} {name}" for name, address in self.addresses.items()]
        return "\n".join(lines) + "\n"


def wiring(topology: Topology) -> Wiring:
    """Give each node an address, and keep the fastest of parallel links.

    Raises
    ------
    EmulationError
        If there are too many nodes, or a name cannot be a host's.
    """
    if len(topology.nodes) > MOST:
        raise EmulationError(
            f"the network has {len(topology.nodes)} nodes; at most {MOST} can be emulated"
        )
    seen: dict[str, str] = {}
    for name in topology.nodes:
        if not _NAME.fullmatch(name) or name.lower() == "localhost":
            raise EmulationError(
                f"node {name!r} cannot be emulated, as its name cannot be a host's: use letters, "
                "digits, dots, dashes and underscores, and not localhost"
            )
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise EmulationError(
                f"nodes {other} and {name} cannot be emulated together, as hosts' names do not "
                "differ by capital letters alone"
            )
    fastest: dict[tuple[int, int], float] = {}
    for (one, end), rtt_s in zip(topology.links.tolist(), topology.rtt_s.tolist(), strict=True):
        both = min(one, end), max(one, end)
        fastest[both] = min(rtt_s, fastest.get(both, np.inf))
    addresses = {name: FIRST + k for k, name in enumerate(topology.nodes)}
    return Wiring(addresses, tuple((*both, rtt_s) for both, rtt_s in fastest.items()))
