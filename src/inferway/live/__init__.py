"""The live world: an inference server around the same policies as the twin.

- `Server`: starts, serves and stops a deployment; `serve` blocks until a signal.
- `apply`: changes what a running server serves.
- `LiveNode`: the same for one node of a network, at the `Addresses` of all that it knows.
- `TaskSite`, `Pool`, `PoolOptions`, `InferRequest`, `Outcome`: one task's requests on their way,
  for other protocols and tests.
- `ServerOptions`: ports, limits and what else a server and a node have in common.
- `Limits`, `Keys`, `Certificate`: caps on requests, who may send them, TLS.
- `Headroom`, `MemoryNeed`: memory for runs, and what a model's runs need of it.
- `Tracer`: hands the spans of requests to an exporter of OpenTelemetry.
- `ServeError`, `WarmUpError`, `PortError`: why a deployment cannot be served.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from inferway.live.answers import answers_folder
    from inferway.live.applying import apply
    from inferway.live.assigned import assigned_file
    from inferway.live.errors import PortError, ServeError, WarmUpError
    from inferway.live.headroom import Headroom, MemoryNeed
    from inferway.live.http.exchange import Limits
    from inferway.live.node.addresses import Addresses
    from inferway.live.node.node import LiveNode
    from inferway.live.options import PoolOptions, ServerOptions
    from inferway.live.pool import Pool
    from inferway.live.request import InferRequest, Outcome
    from inferway.live.security.keys import Keys
    from inferway.live.security.tls import Certificate
    from inferway.live.server import Server, serve
    from inferway.live.site import TaskSite
    from inferway.live.tracing import Tracer

__all__ = [
    "Addresses",
    "Certificate",
    "Headroom",
    "InferRequest",
    "Keys",
    "Limits",
    "LiveNode",
    "MemoryNeed",
    "Outcome",
    "Pool",
    "PoolOptions",
    "PortError",
    "ServeError",
    "Server",
    "ServerOptions",
    "TaskSite",
    "Tracer",
    "WarmUpError",
    "answers_folder",
    "apply",
    "assigned_file",
    "serve",
]

# Each is imported with what it needs when it is asked for: a command that runs nodes as processes,
# makes certificates or asks a server needs no compiler.
_MODULES: Final = {
    "Addresses": "node.addresses",
    "Certificate": "security.tls",
    "Headroom": "headroom",
    "InferRequest": "request",
    "Keys": "security.keys",
    "Limits": "http.exchange",
    "LiveNode": "node.node",
    "MemoryNeed": "headroom",
    "Outcome": "request",
    "Pool": "pool",
    "PoolOptions": "options",
    "PortError": "errors",
    "ServeError": "errors",
    "Server": "server",
    "ServerOptions": "options",
    "TaskSite": "site",
    "Tracer": "tracing",
    "WarmUpError": "errors",
    "answers_folder": "answers",
    "apply": "applying",
    "assigned_file": "assigned",
    "serve": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'inferway.live' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
