"""``inferway node``: one node of the file's network."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)

if TYPE_CHECKING:
    from inferway.live.node.node import Node


def node(
    file: File,
    name: Annotated[str, typer.Option(help="Which node of the file this is.")],
    addresses: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON of where the nodes are; else the file says it.",
            show_default=False,
        ),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Where to listen, such as 0.0.0.0, if not at its own address; the ports are the "
            "file's.",
            show_default=False,
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="For its models and its state; ~/.local/state/inferway/nodes/NAME if not given.",
            show_default=False,
        ),
    ] = None,
    certs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the node's certificate, for TLS between nodes; see `certs`.",
            show_default=False,
        ),
    ] = None,
    emulate_rtt: Annotated[
        bool,
        typer.Option("--emulate-rtt", help="Take the file's round-trip times between nodes."),
    ] = False,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Clients over gRPC too; 0: any free. Not offered if not given.",
            show_default=False,
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    keys: Keys = None,
    max_json: MaxJson = 8,
    max_memory: MaxMemory = None,
    max_bodies: MaxBodies = None,
    record: Record = None,
    drain_delay: DrainDelay = 2.0,
    grace: Grace = 10.0,
    policy: Policy = None,
    log_level: Annotated[LogLevel, typer.Option(help="What to log.")] = LogLevel.info,
) -> None:
    """Run one node: serve its clients, forward upstream, and load what placement decides.

    On SIGHUP keys and certificates are read anew.
    """
    from inferway.deployment.nodes import NodeLimits
    from inferway.live import Limits, Node, PortError, ServeError, ServerOptions
    from inferway.live.control.peers import check_extra
    from inferway.live.errors import StoreError
    from inferway.live.node.addresses import addresses_of, check_bind
    from inferway.live.node.state import StateError
    from inferway.live.security.keys import keys_from
    from inferway.live.tracing import tracer_from_environment
    from inferway.network import topology_of
    from inferway.network.layout import members_of

    outlive_hangup()
    shown = certificate(tls_cert, tls_key)
    check_listeners(keys, grpc_port)
    try:
        check_extra(secured=certs is not None)
        if bind is not None:
            check_bind(name, bind)
    except ServeError as error:
        raise CommandError(str(error), REFUSED) from error
    deployment = opened(file, policy)
    try:
        topology = topology_of(deployment)
        at = addresses_of(deployment, topology, addresses)
        # Whether there is such a node is said below.
        member = members_of(deployment, topology).get(name)
        Node(
            deployment,
            name,
            at,
            ServerOptions(
                record=record,
                limits=Limits.of(
                    NodeLimits() if member is None else member.limits,
                    json_bytes=mebibytes(max_json),
                    memory_bytes=mebibytes(max_memory),
                    bodies_bytes=mebibytes(max_bodies),
                ),
                tracer=tracer_from_environment(name),
                grpc_port=grpc_port,
                certificate=shown,
                keys=keys_from(keys),
                read_keys=partial(keys_from, keys),
                drain_delay_s=drain_delay,
                grace_s=grace,
                log_level=log_level,
            ),
            folder=state or _state_of(name),
            bind=bind,
            credentials=certs,
            emulate_rtt=emulate_rtt,
        ).run(_tell)
    except (ServeError, StateError, StoreError) as error:
        raise CommandError(str(error), REFUSED) from error
    except PortError as error:
        raise CommandError(
            f"node {name} cannot listen: {error}. Nodes of one machine need addresses of their "
            "own, `admin` included: give them by --addresses",
            REFUSED,
        ) from error
    leave()


def _state_of(name: str) -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "inferway" / "nodes" / name


def _tell(one: Node) -> None:
    from inferway.protocol.address import joined

    server = one.server
    grpc = "" if server.grpc_port is None else f"grpc={joined(server.host, server.grpc_port)} "
    with terminal.unheard():
        print(
            f"ready {one.name} http={joined(server.host, server.http_port)} {grpc}peer={one.peer} "
            f"admin={joined(server.admin_host, server.admin_port)}"
        )
