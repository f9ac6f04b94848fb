"""Where nodes are reached, as the file writes it: HOST or HOST:PORT."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from inferway.deployment.quantities import refuse

__all__ = ["NODE", "Host", "HostPort", "joined", "split"]

NODE: Final = "{node}"
"""Stands for the node's name, so that one address can be said of a tier's nodes."""

_LABELS: Final = r"(?:[A-Za-z0-9_.-]|\{node\})+"
_ADDRESS: Final = re.compile(rf"(?:({_LABELS})|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{{1,5}}))?")
_SOURCE: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?")


def split(address: str) -> tuple[str, int | None]:
    """Split HOST or HOST:PORT; an IPv6 host loses its brackets.

    Raises
    ------
    ValueError
        If it is neither.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(
            f'"{address[:60]}" is no address; write HOST or HOST:PORT, such as 10.0.0.7:8000, '
            "[fd00::7]:8000 or edge-1.example.org"
        )
    name, literal, port = match.groups()
    if port is None:
        return name or literal, None
    if not 0 < int(port) < 65536:
        raise ValueError(f"{address} names the port {port}; ports are 1 to 65535")
    return name or literal, int(port)


def joined(host: str, port: int) -> str:
    """Write host and port as one address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(f"expected an address such as edge-1.example.org:8000, got {value!r}")
    try:
        split(value)
    except ValueError as error:
        raise refuse(str(error)) from None
    return value


def _host(value: str) -> str:
    if not _SOURCE.fullmatch(value):
        raise refuse(
            f'"{value[:60]}" is no host; write it as models.example.org, *.example.org or '
            "models.example.org:8443"
        )
    return value.lower()


# An address without a port reads as a number where it is one, so that is said as well.
HostPort = Annotated[
    str,
    BeforeValidator(_address),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": rf"^(?:{_LABELS}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?$",
            "examples": ["edge-1.example.org", "10.0.0.7:8000", "[fd00::7]:8000"],
        }
    ),
]
Host = Annotated[
    str,
    AfterValidator(_host),
    WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^{_SOURCE.pattern}$",
            "examples": ["models.example.org", "*.example.org"],
        }
    ),
]
