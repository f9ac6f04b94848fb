"""The live world: an inference server around the same policies as the twin.

- `Server`: starts, serves and stops a deployment; `serve` blocks until a signal.
- `apply`: changes what a running server serves.
- `Node`: the same for one node of a network, at the `Addresses` of all that it knows.
- `Site`, `Pool`, `PoolOptions`, `Request`, `Outcome`: one task's requests on their way, for other
  protocols and tests.
- `Limits`, `Keys`, `Certificate`: caps on requests, who may send them, TLS.
- `Headroom`, `MemoryNeed`: memory for runs, and what a model's runs need of it.
- `Tracer`: hands the spans of requests to an exporter of OpenTelemetry.
- `ServeError`, `WarmUpError`, `PortError`: why a deployment cannot be served.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from inferway.live.application import apply
from inferway.live.assembly import times_file
from inferway.live.certificate import Certificate
from inferway.live.errors import PortError, ServeError, WarmUpError
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.http.limits import Limits
from inferway.live.keys import Keys
from inferway.live.pool import Pool, PoolOptions
from inferway.live.request import Outcome, Request
from inferway.live.server import Server
from inferway.live.serving import serve
from inferway.live.site import Site
from inferway.live.tracing import Tracer

if TYPE_CHECKING:
    from inferway.live.node.addresses import Addresses
    from inferway.live.node.node import Node

__all__ = [
    "Addresses",
    "Certificate",
    "Headroom",
    "Keys",
    "Limits",
    "MemoryNeed",
    "Node",
    "Outcome",
    "Pool",
    "PoolOptions",
    "PortError",
    "Request",
    "ServeError",
    "Server",
    "Site",
    "Tracer",
    "WarmUpError",
    "apply",
    "serve",
    "times_file",
]

# A server alone needs nothing of the network.
_OF_NODES = {"Addresses": "inferway.live.node.addresses", "Node": "inferway.live.node.node"}


def __getattr__(name: str) -> Any:
    if name not in _OF_NODES:
        raise AttributeError(f"module 'inferway.live' has no attribute {name!r}")
    return getattr(importlib.import_module(_OF_NODES[name]), name)
