"""Where a node listens: where it is reached, or at another host of its machine.

Neighbors reach a node at the address that they are told. Behind a router that translates addresses,
in a container or on a rented machine no interface has that address, so that the node has to listen
at another one; its ports are the same.
"""

from __future__ import annotations

import errno
import re
import socket
from ipaddress import IPv6Address
from typing import Final

import msgspec

from inferway.live.errors import ServeError
from inferway.live.node.addresses import Addresses
from inferway.protocol.address import split

_LISTENERS: Final = ("http", "peer", "control")
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_PORT: Final = re.compile(r":?[0-9]+")


def bound(name: str, own: Addresses, host: str | None = None) -> Addresses:
    """Tell where a node listens, which is sure to be of this machine.

    Parameters
    ----------
    name
        The node's.
    own
        Where it is reached.
    host
        Of the listeners for clients, peers and control messages: an address or a name, an IPv6
        address with or without brackets; 0.0.0.0 and :: stand for all of the machine. None for
        those of `own`.

    Returns
    -------
    Addresses
        As `own`, `admin` in any case.

    Raises
    ------
    ServeError
        For what is no host, a name without an address, an address that this machine does not have,
        or two listeners that would have one place.
    """
    here = own if host is None else _moved(name, own, _alone(host))
    for one in dict.fromkeys(split(getattr(here, key))[0] for key in _LISTENERS):
        _check(name, one, said=host is not None)
    return here


def check_bind(name: str, host: str) -> None:
    """Refuse a host that a node cannot listen at, before it is known where the node is reached.

    Raises
    ------
    ServeError
        As `bound`, but for two listeners in one place.
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


def _moved(name: str, own: Addresses, host: str) -> Addresses:
    bare = f"[{host}]" if ":" in host else host
    moved: dict[str, str] = {}
    by_port: dict[int, str] = {}
    for key in _LISTENERS:
        _, port = split(getattr(own, key))
        moved[key] = bare if port is None else f"{bare}:{port}"
        other = key if port is None else by_port.setdefault(port, key)
        if other != key:
            raise ServeError(
                f"node {name} cannot listen at {moved[key]} for two: its addresses `{other}` and "
                f"`{key}` differ by their hosts alone, and --bind gives both the same; give them "
                "different ports"
            )
    return msgspec.structs.replace(own, **moved)


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
