"""Where servers, and the nodes of a network, listen for clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from inferway.loadgen.access import AddressError
from inferway.protocol.address import NODE, ServerAddress, parse_server, split
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment

_PORT: Final = 8000


class _Node(msgspec.Struct):
    http: str


def addresses_of(deployment: Deployment, file: Path | None = None) -> dict[str, str]:
    """Collect the addresses of a deployment's nodes, as URLs.

    Parameters
    ----------
    deployment
        A file with `network`. Nodes with an `address` listen there, at port 8000 unless it says
        another.
    file
        A JSON document ``{"edge-1": {"http": "127.0.0.1:41001", ...}, ...}``, whose addresses hold
        in place of the file's.

    Raises
    ------
    AddressError
        When the document is none, or an address is none.
    DeploymentError
        As `inferway.network.topology_of`.
    """
    from inferway.network.layout import members_of, topology_of

    found = {}
    for name, node in members_of(deployment, topology_of(deployment)).items():
        if node.address is not None:
            host, port = split(node.address.replace(NODE, name))
            found[name] = ServerAddress(host, port or _PORT, False, "").url
    if file is not None:
        try:
            told = msgspec.json.decode(file.read_bytes(), type=dict[str, _Node])
        except OSError as error:
            raise AddressError(f"{file} cannot be read: {error.strerror or error}") from error
        except UNREADABLE as error:
            raise AddressError(
                f"{file} holds no addresses ({fault(error)}): write them as "
                '{"edge-1": {"http": "127.0.0.1:8000"}}'
            ) from error
        found |= {name: server_at(node.http).url for name, node in told.items()}
    return found


def server_at(url: str) -> ServerAddress:
    """Read a server's address, as the user gave it.

    Raises
    ------
    AddressError
        When it is none.
    """
    try:
        return parse_server(url)
    except ValueError as error:
        raise AddressError(str(error)) from None


def known(addresses: Mapping[str, str], nodes: Iterable[str]) -> list[str]:
    """Return the addresses of some nodes.

    Raises
    ------
    AddressError
        When one has none.
    """
    wanted = list(nodes)
    missing = [name for name in wanted if name not in addresses]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AddressError(
            f"requests enter at {missing[0]}{more}, and nothing says where that node listens: give "
            "`--addresses FILE.json`, or `address` of the node in the deployment file"
        )
    return [addresses[name] for name in wanted]
