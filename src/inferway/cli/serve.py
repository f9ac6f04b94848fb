"""``inferway serve``: a deployment file as a running server."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from inferway.cli import terminal
from inferway.cli.failure import REFUSED, CommandError
from inferway.cli.file import File, Policy, opened
from inferway.cli.serving import (
    DrainDelay,
    Grace,
    Keys,
    LogLevel,
    MaxBodies,
    MaxJson,
    MaxMemory,
    Record,
    TlsCert,
    TlsKey,
    certificate,
    check_listeners,
    leave,
    mebibytes,
    outlive_hangup,
    refused_port,
)
from inferway.extras import installing

if TYPE_CHECKING:
    from inferway.live import Server

_EVERYWHERE: Final = {"0.0.0.0", "::", ""}


def serve(
    file: File,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Open Inference Protocol over HTTP; 0: any free.")
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="The same over gRPC; 8001 where it is installed, with --http-port 0 any free.",
            show_default=False,
        ),
    ] = None,
    no_grpc: Annotated[
        bool, typer.Option("--no-grpc", help="No gRPC, even where it is installed.")
    ] = False,
    admin_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Metrics and admin; 0: any free.")
    ] = 8002,
    drain_delay: DrainDelay = 2.0,
    grace: Grace = 10.0,
    admin_host: Annotated[
        str, typer.Option(help="Address of the metrics and admin listener.")
    ] = "127.0.0.1",
    keys: Keys = None,
    allow_apply: Annotated[
        bool,
        typer.Option("--allow-apply", help="Let `apply` in without keys, from this machine."),
    ] = False,
    apply_from: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Where `apply` may take files from, policies and models too; repeatable. "
            "FILE's folder if not given.",
            show_default=False,
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    max_body: Annotated[
        int, typer.Option(min=1, help="Largest body of a request, MiB, as sent and unpacked.")
    ] = 64,
    max_json: MaxJson = 8,
    max_memory: MaxMemory = None,
    max_bodies: MaxBodies = None,
    max_elements: Annotated[
        int, typer.Option(min=1, help="Largest number of elements of a tensor.")
    ] = 16 * 1024**2,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Open connections; more are told to come back.")
    ] = 4096,
    max_queued: Annotated[
        int,
        typer.Option(min=1, help="Bodies, in MiB, of one connection that wait for their answers."),
    ] = 64,
    receive_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds for a request to arrive whole.")
    ] = 60,
    idle_timeout: Annotated[
        int, typer.Option(min=1, help="Seconds that an unused connection stays open.")
    ] = 300,
    policy: Policy = None,
    record: Record = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Neither recall nor keep measured service times."),
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.info,
    json: terminal.Json = False,
) -> None:
    """Serve the file's tasks until Ctrl-C or SIGTERM; then finish what is in flight and go.

    On SIGHUP file, keys and certificate are read anew.
    """
    from inferway import live
    from inferway.deployment.nodes import NodeLimits
    from inferway.live.grpc import GRPC_PORT

    outlive_hangup()
    for folder in apply_from or ():
        if not folder.is_dir():
            raise CommandError(f"--apply-from {folder} is no folder", REFUSED)
    shown = certificate(tls_cert, tls_key)
    if no_grpc and grpc_port is not None:
        raise CommandError("--grpc-port and --no-grpc cannot be given together", REFUSED)
    if grpc_port is None and not no_grpc and find_spec("grpc") is not None:
        grpc_port = GRPC_PORT if http_port else 0
    _apart(
        ("--http-port", host, http_port),
        ("--grpc-port", host, grpc_port),
        ("--admin-port", admin_host, admin_port),
    )
    check_listeners(
        keys,
        grpc_port,
        admin_host=admin_host,
        hosts=(("http", host, http_port), ("admin", admin_host, admin_port)),
    )

    def ready(server: Server) -> None:
        with terminal.unheard():
            say(server)

    def say(server: Server) -> None:
        if json:
            ports = {
                "http_port": server.http_port,
                "grpc_port": server.grpc_port,
                "admin_port": server.admin_port,
            }
            terminal.document({"schema": 1, **ports, "ready": True}, indent=None)
        else:
            scheme = "https" if tls_cert else "http"
            address = f"{scheme}://{host}:{server.http_port}"
            print(f"serving {', '.join(deployment.tasks)} on {address}/v2")
            if server.grpc_port is not None:
                print(f"and over gRPC on {host}:{server.grpc_port}")
            elif not no_grpc:
                print(f"not over gRPC, which needs an extra: {installing('grpc')}")
            scheme = (
                "https"
                if tls_cert and admin_host not in ("127.0.0.1", "localhost", "::1")
                else "http"
            )
            metrics = f"{scheme}://{admin_host}:{server.admin_port}/metrics"
            print(f"metrics on {metrics}; Ctrl-C stops", flush=True)

    deployment = opened(file, policy)
    # Of several nodes, which are refused below, any will do.
    written = next((node.limits for node in deployment.nodes.values()), NodeLimits())
    try:
        with terminal.compiling(not json):
            live.serve(
                deployment,
                keys,
                ready=ready,
                host=host,
                http_port=http_port,
                grpc_port=grpc_port,
                admin_port=admin_port,
                admin_host=admin_host,
                allow_apply=allow_apply,
                apply_from=apply_from or None,
                certificate=shown,
                limits=live.Limits.of(
                    written,
                    body_bytes=mebibytes(max_body),
                    json_bytes=mebibytes(max_json),
                    memory_bytes=mebibytes(max_memory),
                    bodies_bytes=mebibytes(max_bodies),
                    elements=max_elements,
                    queued_bytes=mebibytes(max_queued),
                    connections=max_connections,
                    receive_s=receive_timeout,
                    idle_s=idle_timeout,
                ),
                drain_delay_s=drain_delay,
                grace_s=grace,
                record=record,
                times=None if forget else live.times_file(),
                log_level=log_level,
                read_deployment=partial(opened, file, policy),
            )
    except live.ServeError as error:  # an option or the file asks for what cannot be
        raise CommandError(str(error), REFUSED) from error
    except live.PortError as error:
        raise refused_port(error) from error
    leave()


def _apart(*listeners: tuple[str, str, int | None]) -> None:
    """Refuse two listeners on one port; 0 and None are none."""
    for (option, host, port), (other, at, taken) in combinations(listeners, 2):
        if port and port == taken and (host == at or {host, at} & _EVERYWHERE):
            raise CommandError(
                f"{option} and {other} are both {port}: give each a port of its own", REFUSED
            )
