"""Addresses at which each node of a network is reached, and at which it listens itself.

Neighbors reach a node at the address that they are told. Behind a router that translates addresses,
in a container or on a rented machine no interface has that address, so that the node has to listen
at another one; its ports are the same.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from inferway.live.errors import ServeError
from inferway.network.layout import members_of
from inferway.protocol.address import NODE, joined, split
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Node
    from inferway.network.topology import Topology

HTTP_PORT, ADMIN_PORT, PEER_PORT, CONTROL_PORT = 8000, 8002, 8003, 7447

_LISTENERS: Final = ("http", "peer", "control")
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_PORT: Final = re.compile(r":?[0-9]+")


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
        """URL that clients are given."""
        return f"http://{self.http}"


def addresses_of(
    deployment: Deployment, topology: Topology, file: Path | None = None
) -> dict[str, Addresses]:
    """Tell where the nodes are, by node, in the network's order.

    A `file` of addresses by node, such as `inferway up` writes, counts before the deployment's
    `address`, `peer` and `control`; nodes of which that gives no `address` are left out.

    Raises
    ------
    ServeError
        For a file that cannot be read or lacks a node, or two nodes in one place.
    """
    if file is not None:
        written = read(file)
        missing = [name for name in topology.nodes if name not in written]
        if missing:
            raise ServeError(f"{file}: there is no address of node {missing[0]}")
        addresses = {name: written[name] for name in topology.nodes}
    else:
        addresses = {
            name: _of(node)
            for name, node in members_of(deployment, topology).items()
            if node.address is not None
        }
    # Two listeners in one place are refused, but the admin ones, each of its own machine.
    taken: dict[str, str] = {}
    for name, one in addresses.items():
        for key in _LISTENERS:
            address, where = getattr(one, key), f"{name} ({key})"
            other = taken.setdefault(address, where)
            if other != where:
                raise ServeError(
                    f"{file or deployment.path}: nodes {other} and {where} have one address, "
                    f"{address}"
                )
    return addresses


def read(file: Path) -> dict[str, Addresses]:
    """Read a file of addresses; ServeError if it is none, or one of its addresses is none."""
    try:
        addresses = msgspec.json.decode(file.read_bytes(), type=dict[str, Addresses])
    except OSError as error:
        raise ServeError(f"{file}: {error.strerror or error}") from None
    except UNREADABLE as error:
        raise ServeError(f"{file} is no file of addresses: {fault(error)}") from None
    for name, one in addresses.items():
        for key, address in msgspec.structs.asdict(one).items():
            try:
                if split(address)[1] is None:
                    raise ValueError(f"{address} lacks a port")
            except ValueError as error:
                raise ServeError(f"{file}: {name}.{key}: {error}") from None
    return addresses


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


def bound(name: str, own: Addresses, host: str | None = None) -> Addresses:
    """Tell where a node listens, which is sure to be of this machine.

    `own` is where it is reached. A `host` is of the listeners for clients, peers and control
    messages: an address or a name, an IPv6 address with or without brackets; 0.0.0.0 and :: stand
    for all of the machine.

    Raises
    ------
    ServeError
        For what is no host, a name without an address, an address that this machine does not have,
        or two listeners that would have one place.
    """
    at = own
    if host is not None:
        bare, moved = _alone(host), dict[str, str]()
        for key in _LISTENERS:
            _, port = split(getattr(own, key))
            moved[key] = joined(bare, port) if port is not None else joined(bare, 0)[:-2]
            other = next(one for one in moved if moved[one] == moved[key])
            if other != key and port is not None:
                raise ServeError(
                    f"node {name} cannot listen at {moved[key]} for two: its addresses `{other}` "
                    f"and `{key}` differ by their hosts alone, and --bind gives both the same; "
                    "give them different ports"
                )
        at = msgspec.structs.replace(own, **moved)
    for one in dict.fromkeys(split(getattr(at, key))[0] for key in _LISTENERS):
        _check(name, one, said=host is not None)
    return at


def check_bind(name: str, host: str) -> None:
    """Refuse a host that a node cannot listen at, before it is known where the node is reached.

    ServeError as `bound`, but for two listeners in one place.
    """
    _check(name, _alone(host), said=True)


def _alone(text: str) -> str:
    """Return a host without brackets, and refuse a port behind it or in its place."""
    try:
        host, port = split(f"[{text}]" if text.count(":") > 1 and "[" not in text else text)
        if ":" in host:
            IPv6Address(host)
    except ValueError:
        host, port = "", None
    if port is not None or _PORT.fullmatch(text):
        raise ServeError(
            f"--bind takes a host and no port, such as 0.0.0.0, and was given {text}: the ports "
            "are those of the node's addresses"
        )
    if not host or "{" in host:
        raise ServeError(
            f'"{text[:60]}" is no host to listen at; write one such as 0.0.0.0, 10.0.0.7, [::] or '
            "edge-1.internal"
        )
    return host


def _check(name: str, host: str, *, said: bool) -> None:
    """Refuse a host of which this machine does not have every address."""
    where = f"node {name} cannot listen at {host}"
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ServeError(f"{where}: no address of that name is found ({reason})") from None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as one:
                one.bind(place)
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            address = str(place[0])
            absent = "no such address" if address == host else f"no address {address}"
            right = (
                "give --bind one that it has, or 0.0.0.0 for all of them"
                if said
                else "if it is reached there by way of a router or a container, say by --bind "
                "where it listens, such as 0.0.0.0"
            )
            raise ServeError(f"{where}: this machine has {absent}; {right}") from None
