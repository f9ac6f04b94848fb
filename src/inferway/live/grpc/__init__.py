"""The Open Inference Protocol v2 over gRPC, and gRPC's own health protocol.

- `endpoint_class`: what listens for calls and answers them from sites.
- `GRPC_PORT`: where, if nothing else is said.

Everything but this module needs the extra ``grpc`` (grpcio and protobuf); `endpoint_class` is where
a server without it hears so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferway.live.errors import ServeError

if TYPE_CHECKING:
    from inferway.live.grpc.endpoint import Endpoint

__all__ = ["GRPC_PORT", "endpoint_class"]

GRPC_PORT = 8001


def endpoint_class() -> type[Endpoint]:
    """Import the endpoint; only a server that listens for gRPC calls this.

    ServeError when the extra ``grpc`` is not installed.
    """
    try:
        from inferway.live.grpc.endpoint import Endpoint
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("grpc", "google"):
            raise
        raise ServeError(
            "gRPC needs grpcio and protobuf, which are not installed: "
            "pip install 'inferway[grpc]', or serve without gRPC"
        ) from error
    return Endpoint
