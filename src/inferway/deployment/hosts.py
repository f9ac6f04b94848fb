"""Where nodes are reached, as the file writes it: HOST or HOST:PORT."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from inferway.deployment.quantities import refuse
from inferway.protocol.address import LABELS, split

_SOURCE: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?(:[0-9]{1,5})?")


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
            "pattern": rf"^(?:{LABELS}|\[[0-9A-Fa-f:.]+\])(?::[0-9]{{1,5}})?$",
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
