"""What a node says when it is asked."""

from __future__ import annotations

import os
from http.client import HTTPConnection, HTTPException
from socket import socket
from typing import Any

import msgspec

from inferway.live.keys import VARIABLE, Role, parted
from inferway.live.up.error import UpError
from inferway.protocol.address import split
from inferway.unreadable import UNREADABLE, fault


def told(node: str, address: str, wire: socket, timeout_s: float) -> dict[str, Any]:
    """Get what the admin listener tells at ``/v2/node``; as `asked`.

    Raises
    ------
    UpError
        If it does not answer, or not so.
    """
    status, body = asked(node, address, "/v2/node", wire, timeout_s)
    page = f"{address}/v2/node"
    if status != 200:
        raise UpError(f"node {node} answers {status} at {page}")
    try:
        found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE as error:
        raise UpError(f"node {node} answers what is no JSON at {page}: {fault(error)}") from None
    return found


def asked(node: str, address: str, path: str, wire: socket, timeout_s: float) -> tuple[int, bytes]:
    """Get a page: its status and content.

    Parameters
    ----------
    node
        Its name, for what is said when it does not answer.
    address
        HOST:PORT.
    path
        Of the page.
    wire
        A socket in the network where that is; closed afterwards.
    timeout_s
        For each step.

    Raises
    ------
    UpError
        If it does not answer.
    """
    host, port = split(address)
    connection = HTTPConnection(host, port)
    wire.settimeout(timeout_s)
    try:
        wire.connect((host, port))
        connection.sock = wire
        connection.request("GET", path, headers=_key())
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or error
        raise UpError(f"node {node} does not answer at {address}: {reason}") from None
    finally:
        wire.close()
        connection.close()


def _key() -> dict[str, str]:
    """Where nodes take keys from the environment, they take ours."""
    keys = [parted(word) for word in os.environ.get(VARIABLE, "").replace(",", " ").split()]
    key = next((key for roles, key in keys if roles & Role.READ), None)
    return {} if key is None else {"Authorization": f"Bearer {key}"}
