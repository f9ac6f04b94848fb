"""A deployment served until a signal: the function behind ``inferway serve``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inferway.live.certificate import Certificate
from inferway.live.http.limits import Limits
from inferway.live.keys import keys_from
from inferway.live.server import ADMIN_PORT, DRAIN_DELAY_S, GRACE_S, HTTP_PORT, Server
from inferway.live.tracing import tracer_from_environment

if TYPE_CHECKING:
    from inferway.deployment import Deployment


def serve(
    deployment: Deployment,
    *,
    host: str = "127.0.0.1",
    http_port: int = HTTP_PORT,
    grpc_port: int | None = None,
    admin_port: int = ADMIN_PORT,
    admin_host: str = "127.0.0.1",
    keys: Path | None = None,
    allow_apply: bool = False,
    apply_from: Sequence[Path] | None = None,
    certificate: Certificate | None = None,
    limits: Limits | None = None,
    drain_delay_s: float = DRAIN_DELAY_S,
    grace_s: float = GRACE_S,
    record: Path | None = None,
    times: Path | None = None,
    log_level: str = "info",
    ready: Callable[[Server], None] | None = None,
    read: Callable[[], Deployment] | None = None,
) -> None:
    """Serve a deployment until SIGINT or SIGTERM; see `Server.run`.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    host
        Address to listen on.
    http_port, admin_port
        Ports, 0 for a free one.
    grpc_port
        Port for gRPC, likewise; None offers none.
    admin_host
        Address of the admin listener; without keys it must be loopback.
    keys
        A file with one bearer key a line, which is read anew on SIGHUP; None takes the
        environment's `INFERWAY_KEYS`, and lets everybody in without it.
    allow_apply
        Whether another deployment may be applied without a key; see `Server`.
    apply_from
        Folders that another one may be applied from; see `Server`.
    certificate
        For TLS; see `Server`.
    limits
        Caps on requests; None takes the node's of the deployment.
    drain_delay_s
        After SIGTERM the server says that it is not ready, and serves, for so long; then it
        accepts nothing more.
    grace_s
        How long it waits then for requests in flight.
    record
        A folder where every task's events and random words are written down; None: nowhere.
    times
        A file that keeps measured service times from one run to the next; None keeps nothing.
    log_level
        The least that is logged: ``debug``, ``info``, ``warning`` or ``error``.
    ready
        Called once with the server, when it is ready.
    read
        Loads the deployment anew on SIGHUP; None loads its file, where it has one.

    Raises
    ------
    ServeError, WarmUpError
        When the deployment, a model or a policy cannot be served.
    PortError
        When a port is taken or an address is not this machine's.
    """
    server = Server(
        deployment,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        admin_port=admin_port,
        admin_host=admin_host,
        keys=keys_from(keys),
        allow_apply=allow_apply,
        apply_from=apply_from,
        certificate=certificate,
        limits=limits,
        drain_delay_s=drain_delay_s,
        grace_s=grace_s,
        record=record,
        times=times,
        tracer=tracer_from_environment(),
        log_level=log_level,
        read_keys=partial(keys_from, keys),
        read_deployment=read or _reading(deployment),
    )
    server.run(ready)


def _reading(deployment: Deployment) -> Callable[[], Deployment] | None:
    path = deployment.path
    if path is None:
        return None

    def read() -> Deployment:
        from inferway.deployment import load, measured

        return measured(load(path))

    return read
