"""The live world: an inference server around the same policies as the twin.

- `Server`: starts, serves and stops a deployment; `serve` blocks until a signal.
- `apply`: changes what a running server serves.
- `Site`, `Request`, `Outcome`: one task's requests on their way, for other protocols and tests.
- `Limits`, `Keys`, `Certificate`: caps on requests, who may send them, TLS.
- `Headroom`, `MemoryNeed`: memory for runs, and what a model's runs need of it.
- `Tracer`: hands the spans of requests to an exporter of OpenTelemetry.
- `ServeError`, `WarmUpError`, `PortError`: why a deployment cannot be served.
"""

from inferway.live.application import apply
from inferway.live.assembly import times_file
from inferway.live.certificate import Certificate
from inferway.live.errors import PortError, ServeError, WarmUpError
from inferway.live.headroom import Headroom, MemoryNeed
from inferway.live.http.limits import Limits
from inferway.live.keys import Keys
from inferway.live.request import Outcome, Request
from inferway.live.server import Server
from inferway.live.serving import serve
from inferway.live.site import Site
from inferway.live.tracing import Tracer

__all__ = [
    "Certificate",
    "Headroom",
    "Keys",
    "Limits",
    "MemoryNeed",
    "Outcome",
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
