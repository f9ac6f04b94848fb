"""What a node's admin listener says of it."""

from __future__ import annotations

import os
from http.client import HTTPConnection, HTTPException
from socket import socket
from typing import Any

import msgspec

from inferway.deployment.hosts import split
from inferway.live.keys import VARIABLE
from inferway.live.up.error import UpError

__all__ = ["asked"]


def asked(node: str, address: str, wire: socket, timeout_s: float) -> dict[str, Any]:
    """Get ``/v2/node``.

    Parameters
    ----------
    node
        Its name, for what is said when it does not answer.
    address
        HOST:PORT of the admin listener.
    wire
        A socket in the network where that is; closed afterwards.
    timeout_s
        For each step.

    Raises
    ------
    UpError
        If it does not answer, or not so.
    """
    host, port = split(address)
    connection = HTTPConnection(host, port)
    wire.settimeout(timeout_s)
    try:
        wire.connect((host, port))
        connection.sock = wire
        connection.request("GET", "/v2/node", headers=_key())
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as error:
        raise UpError(f"node {node} does not answer at {address}: {error}") from None
    finally:
        wire.close()
        connection.close()
    if answer.status != 200:
        raise UpError(f"node {node} answers {answer.status} at {address}/v2/node")
    try:
        found: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UpError(
            f"node {node} answers what is no JSON at {address}/v2/node: {error}"
        ) from None
    return found


def _key() -> dict[str, str]:
    """Where nodes take keys from the environment, they take ours."""
    keys = os.environ.get(VARIABLE, "").replace(",", " ").split()
    return {"Authorization": f"Bearer {keys[0]}"} if keys else {}
