"""A deployment served until a signal: the function behind ``inferway serve``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferway.live.options import ServerOptions
from inferway.live.security.keys import keys_from
from inferway.live.server import Server
from inferway.live.tracing import tracer_from_environment

if TYPE_CHECKING:
    from inferway.deployment import Deployment


def serve(
    deployment: Deployment,
    keys: Path | None = None,
    *,
    ready: Callable[[Server], None] | None = None,
    **options: Any,
) -> None:
    """Serve a deployment until SIGINT or SIGTERM; see `Server.run`.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    keys
        A file with one bearer key a line, which is read anew on SIGHUP; None takes the
        environment's `INFERWAY_KEYS`, and lets everybody in without it.
    ready
        Called once with the server, when it is ready.
    options
        Others of `ServerOptions`; without a `read_deployment`, SIGHUP has the deployment's file
        read anew, where it has one.

    Raises
    ------
    ServeError, WarmUpError
        When the deployment, a model or a policy cannot be served.
    PortError
        When a port is taken or an address is not this machine's.
    """
    usual: dict[str, Any] = {
        "keys": keys_from(keys),
        "read_keys": partial(keys_from, keys),
        "read_deployment": _reading(deployment),
        "tracer": tracer_from_environment(),
    }
    Server(deployment, ServerOptions(**usual | options)).run(ready)


def _reading(deployment: Deployment) -> Callable[[], Deployment] | None:
    path = deployment.path
    if path is None:
        return None

    def read() -> Deployment:
        from inferway.deployment import load, measured

        return measured(load(path))

    return read
