"""Where each node of a network is reached: as its file says, or as a file of addresses does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from inferway.live.errors import ServeError
from inferway.network.members import members_of
from inferway.protocol.address import NODE, joined, split
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Node
    from inferway.network.topology import Topology

HTTP_PORT: Final = 8000
ADMIN_PORT: Final = 8002
PEER_PORT: Final = 8003
CONTROL_PORT: Final = 7447


class Addresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node's addresses, each HOST:PORT.

    Attributes
    ----------
    http
        Clients' requests.
    peer
        What other nodes forward to it.
    control
        Its neighbors' control messages.
    admin
        Metrics and state; of its own machine only unless said otherwise.
    """

    http: str
    peer: str
    control: str
    admin: str = f"127.0.0.1:{ADMIN_PORT}"

    @property
    def url(self) -> str:
        """What clients are given."""
        return f"http://{self.http}"


def addresses_of(
    deployment: Deployment, topology: Topology, file: Path | None = None
) -> dict[str, Addresses]:
    """Tell where the nodes are.

    Parameters
    ----------
    deployment
        Its file's `address`, `peer` and `control` count where there is no `file`.
    topology
        Its nodes and links.
    file
        JSON of addresses by node, such as `inferway up` writes.

    Returns
    -------
    dict
        By node, in the network's order; without those of which the deployment gives no `address`.

    Raises
    ------
    ServeError
        For a file that cannot be read or lacks a node, or two nodes in one place.
    """
    if file is not None:
        found = read(file)
        missing = [name for name in topology.nodes if name not in found]
        if missing:
            raise ServeError(f"{file}: there is no address of node {missing[0]}")
        found = {name: found[name] for name in topology.nodes}
    else:
        found = {
            name: _of(node)
            for name, node in members_of(deployment, topology).items()
            if node.address is not None
        }
    _check_apart(found, deployment.path if file is None else file)
    return found


def read(file: Path) -> dict[str, Addresses]:
    """Read a file of addresses.

    Raises
    ------
    ServeError
        If it cannot be read, is no such file, or one of its addresses is none.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, Addresses])
    except OSError as error:
        raise ServeError(f"{file}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ServeError(f"{file} is no file of addresses: {fault(error)}") from None
    for name, addresses in found.items():
        for key, address in msgspec.structs.asdict(addresses).items():
            try:
                _, port = split(address)
            except ValueError as error:
                raise ServeError(f"{file}: {name}.{key}: {error}") from None
            if port is None:
                raise ServeError(f"{file}: {name}.{key}: {address} lacks a port")
    return found


def write(file: Path, addresses: Mapping[str, Addresses]) -> None:
    """Write a file of addresses."""
    text = msgspec.json.format(msgspec.json.encode(dict(addresses)), indent=2)
    file.write_bytes(text + b"\n")


def _of(node: Node) -> Addresses:
    assert node.address is not None

    def whole(said: str | None, port: int) -> str:
        host, given = split((said or node.address or "").replace(NODE, node.name))
        return joined(host, port if given is None or said is None else given)

    return Addresses(
        http=whole(node.address, HTTP_PORT),
        peer=whole(node.peer, PEER_PORT),
        control=whole(node.control, CONTROL_PORT),
    )


def _check_apart(addresses: Mapping[str, Addresses], path: Path) -> None:
    """Refuse two listeners in one place, but for the admin ones, each of its own machine."""
    taken: dict[str, str] = {}
    for name, one in addresses.items():
        for key in ("http", "peer", "control"):
            address = getattr(one, key)
            where = f"{name} ({key})"
            other = taken.setdefault(address, where)
            if other != where:
                raise ServeError(f"{path}: nodes {other} and {where} have one address, {address}")
