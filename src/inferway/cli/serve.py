"""Processes that serve: ``serve``, a deployment alone, and ``node``, one node of a network."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from inferway.cli import dashboard as page
from inferway.cli import options, terminal
from inferway.cli.terminal import FAILED, CommandError, says
from inferway.extras import installing
from inferway.files import home_folder

if TYPE_CHECKING:
    from inferway.live import Certificate, LiveNode, Server

_EVERYWHERE: Final = {"0.0.0.0", "::", ""}
_MIB: Final = 1024**2
_HERE: Final = ("127.0.0.1", "localhost", "::1")


Port = Annotated[int, says("Metrics and admin; 0: any free.", min=0, max=65535)]
DrainDelay = Annotated[float, says("Seconds, after SIGTERM, of serving while not ready.", min=0)]
Grace = Annotated[float, says("Seconds to wait then for requests in flight.", min=0)]
Keys = Annotated[
    Path | None,
    options.file(
        "Keys that clients must send, a line each: KEY or ROLE+ROLE=KEY; else INFERWAY_KEYS."
    ),
]
MaxMemory = Annotated[
    int | None, says("Growth of memory while requests run, MiB; the file's, else 512.", min=1)
]
MaxBodies = Annotated[
    int | None,
    says(
        "Bodies of all connections that wait or have come in part, MiB; the file's, else 256.",
        min=1,
    ),
]
MaxJson = Annotated[int, says("Longest JSON of a request, MiB, as sent and unpacked.", min=1)]
Record = Annotated[Path | None, options.folder("Record every event and decision, for `replay`.")]
TlsCert = Annotated[Path | None, options.file("Certificate chain for clients, PEM.")]
TlsKey = Annotated[Path | None, options.file("Its key, PEM.")]
Log = Annotated[Literal["debug", "info", "warning", "error"], says("What to log.")]


def serve(
    file: options.File,
    host: Annotated[str, says("Address to listen on.")] = "127.0.0.1",
    http_port: Annotated[
        int, says("Open Inference Protocol over HTTP; 0: any free.", min=0, max=65535)
    ] = 8000,
    grpc_port: Annotated[
        int | None,
        says(
            "The same over gRPC; 8001 where it is installed, with --http-port 0 any free.",
            min=0,
            max=65535,
        ),
    ] = None,
    no_grpc: Annotated[bool, says("No gRPC, even where it is installed.", "--no-grpc")] = False,
    admin_port: Port = 8002,
    drain_delay: DrainDelay = 2.0,
    grace: Grace = 10.0,
    admin_host: Annotated[str, says("Address of the metrics and admin listener.")] = "127.0.0.1",
    keys: Keys = None,
    allow_apply: Annotated[
        bool, says("Let `apply` in without keys, from this machine.", "--allow-apply")
    ] = False,
    apply_from: Annotated[
        list[Path] | None,
        options.folder(
            "Where `apply` may take files from, policies and models too; repeatable. "
            "FILE's folder if not given."
        ),
    ] = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    max_body: Annotated[
        int, says("Largest body of a request, MiB, as sent and unpacked.", min=1)
    ] = 64,
    max_json: MaxJson = 8,
    max_memory: MaxMemory = None,
    max_bodies: MaxBodies = None,
    max_elements: Annotated[int, says("Largest number of elements of a tensor.", min=1)] = 16
    * 1024**2,
    max_connections: Annotated[
        int, says("Open connections; more are told to come back.", min=1)
    ] = 4096,
    max_queued: Annotated[
        int, says("Bodies, in MiB, of one connection that wait for their answers.", min=1)
    ] = 64,
    receive_timeout: Annotated[int, says("Seconds for a request to arrive whole.", min=1)] = 60,
    idle_timeout: Annotated[
        int, says("Seconds that an unused connection stays open.", min=1)
    ] = 300,
    policy: options.Policy = None,
    record: Record = None,
    forget: Annotated[
        bool, says("Neither recall nor keep measured service times.", "--forget")
    ] = False,
    dry_run: Annotated[
        bool,
        says(
            "Of `placement: {policy: assign}`: move nothing, and say what would be moved.",
            "--dry-run",
        ),
    ] = False,
    log_level: Log = "info",
    dashboard: page.Dashboard = False,
    dashboard_host: page.DashboardHost = page.HOST,
    dashboard_port: page.DashboardPort = page.PORT,
    json: terminal.Json = False,
) -> None:
    """Serve the file's tasks until Ctrl-C or SIGTERM; then finish what is in flight and go.

    On SIGHUP file, keys and certificate are read anew.
    """
    from inferway import live
    from inferway.deployment import check, times_file
    from inferway.deployment.nodes import NodeLimits
    from inferway.live.errors import check_host
    from inferway.live.grpc import GRPC_PORT
    from inferway.live.security.keys import keys_from
    from inferway.live.server import check_admin
    from inferway.protocol.address import joined

    _outlive_hangup()
    for folder in (one for one in apply_from or () if not one.is_dir()):
        raise CommandError(f"--apply-from {folder} is no folder")
    shown = _certificate(tls_cert, tls_key)
    if no_grpc and grpc_port is not None:
        raise CommandError("--grpc-port and --no-grpc cannot be given together")
    if grpc_port is None and not no_grpc and find_spec("grpc") is not None:
        grpc_port = GRPC_PORT if http_port else 0
    listeners = (("http", host, http_port), ("grpc", host, grpc_port))
    for (one, at, port), (other, there, taken) in combinations(
        (
            *listeners,
            ("admin", admin_host, admin_port),
            ("dashboard", dashboard_host, dashboard_port if dashboard else None),
        ),
        2,
    ):
        # 0 and None are no ports.
        if port and port == taken and (at == there or {at, there} & _EVERYWHERE):
            raise CommandError(
                f"--{one}-port and --{other}-port are both {port}: give each a port of its own"
            )
    with _refusing():
        check_admin(admin_host, keys_from(keys))
        _check_grpc(grpc_port)
        check_host("http", host, http_port)
        check_host("admin", admin_host, admin_port)
    if dashboard and tls_cert and admin_host not in _HERE:
        raise CommandError(
            f"--dashboard reads an admin listener of this machine alone, not at {admin_host} with "
            "TLS: start `inferway dashboard URL --ca FILE.pem` beside it"
        )
    beside = page.PageBeside(dashboard_host, dashboard_port, keys) if dashboard else None

    @terminal.unheard()
    def say(server: Server) -> None:
        if beside is not None:
            reached = "127.0.0.1" if admin_host in _EVERYWHERE else admin_host
            url = f"http://{joined(reached, server.admin_port)}"
            beside.start([url], folder=deployment.folder)
            server.dashboard = beside.url
        if json:
            names = ("http_port", "grpc_port", "admin_port")
            ports = {name: getattr(server, name) for name in names}
            shown_at = {} if beside is None else {"dashboard": beside.url}
            terminal.document({"schema": 1, **ports, **shown_at, "ready": True}, indent=None)
            return
        scheme = "https" if tls_cert else "http"
        print(f"serving {', '.join(deployment.tasks)} on {scheme}://{host}:{server.http_port}/v2")
        if server.grpc_port is not None:
            print(f"and over gRPC on {host}:{server.grpc_port}")
        elif not no_grpc:
            print(f"not over gRPC, which needs an extra: {installing('grpc')}")
        if beside is not None:
            print(f"a page shows it at {beside.url}")
        scheme = "http" if admin_host in _HERE else scheme
        metrics = f"{scheme}://{admin_host}:{server.admin_port}/metrics"
        print(f"metrics on {metrics}; Ctrl-C stops", flush=True)

    @terminal.unheard()
    def say_moves(told: Mapping[str, Any]) -> None:
        if json:
            terminal.document({"schema": 1, "placement": dict(told)}, indent=None)
        else:
            print("\n".join(_would_move(told)), flush=True)

    deployment = options.opened(file, policy)
    if dry_run and not deployment.assigns:
        raise CommandError(
            f"--dry-run is of the placement policy assign, which {file} does not name"
        )
    for caution in check(deployment):
        if caution.kind in {"left-alone", "no-accuracy"}:
            terminal.complain(str(caution))
    # Of several nodes, which are refused below, any will do.
    written = next((node.limits for node in deployment.nodes.values()), NodeLimits())
    with (
        _refusing(),
        terminal.compiling(not json),
        nullcontext() if beside is None else closing(beside),
    ):
        live.serve(
            deployment,
            keys,
            ready=say,
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
                body_bytes=max_body * _MIB,
                json_bytes=max_json * _MIB,
                memory_bytes=max_memory and max_memory * _MIB,
                bodies_bytes=max_bodies and max_bodies * _MIB,
                elements=max_elements,
                queued_bytes=max_queued * _MIB,
                connections=max_connections,
                receive_s=receive_timeout,
                idle_s=idle_timeout,
            ),
            drain_delay_s=drain_delay,
            grace_s=grace,
            record=record,
            times=None if forget else times_file(),
            answers=None if forget else live.answers_folder(deployment.path),
            assigned=None if forget else live.assigned_file(deployment.path),
            dry_run=dry_run,
            reassigned=say_moves if dry_run else None,
            log_level=log_level,
            read_deployment=partial(options.opened, file, policy),
        )
    _leave()


def _would_move(told: Mapping[str, Any]) -> Iterator[str]:
    """Write what a decision on devices would move, a line each."""
    yield f"would be moved: {told['reason']}"
    for move in told["moves"]:
        sides = [move["from"], move["to"]]
        before, after = (
            "nothing" if one is None else f"{one['variant']} on {one['device']}" for one in sides
        )
        yield f"  {before} -> {after}"


def node(
    file: options.File,
    name: Annotated[str, says("Which node of the file this is.")],
    addresses: Annotated[
        Path | None, options.file("JSON of where the nodes are; else the file says it.")
    ] = None,
    bind: Annotated[
        str | None,
        says(
            "Where to listen, such as 0.0.0.0, if not at its own address; the ports are the "
            "file's.",
            metavar="HOST",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        options.folder(
            "For its models and its state; ~/.local/state/inferway/nodes/NAME if not given."
        ),
    ] = None,
    certs: Annotated[
        Path | None,
        options.folder("Folder with the node's certificate, for TLS between nodes; see `certs`."),
    ] = None,
    emulate_rtt: Annotated[
        bool, says("Take the file's round-trip times between nodes.", "--emulate-rtt")
    ] = False,
    grpc_port: Annotated[
        int | None,
        says("Clients over gRPC too; 0: any free. Not offered if not given.", min=0, max=65535),
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
    policy: options.Policy = None,
    log_level: Log = "info",
) -> None:
    """Run one node: serve its clients, forward upstream, and load what placement decides.

    On SIGHUP keys and certificates are read anew.
    """
    from inferway import live
    from inferway.deployment.nodes import NodeLimits
    from inferway.live.control.peers import check_extra
    from inferway.live.errors import StoreError
    from inferway.live.node.addresses import addresses_of, check_bind
    from inferway.live.node.state import StateError
    from inferway.live.security.keys import keys_from
    from inferway.live.tracing import tracer_from_environment
    from inferway.network import topology_of
    from inferway.network.layout import members_of
    from inferway.protocol.address import joined

    _outlive_hangup()
    shown = _certificate(tls_cert, tls_key)
    with _refusing():
        keys_from(keys)
        _check_grpc(grpc_port)
        check_extra(secured=certs is not None)
        if bind is not None:
            check_bind(name, bind)
    deployment = options.opened(file, policy)

    @terminal.unheard()
    def tell(one: LiveNode) -> None:
        at, admin = one.server, joined(one.server.admin_host, one.server.admin_port)
        grpc = "" if at.grpc_port is None else f"grpc={joined(at.host, at.grpc_port)} "
        http = joined(at.host, at.http_port)
        print(f"ready {one.name} http={http} {grpc}peer={one.peer} admin={admin}")

    try:
        topology = topology_of(deployment)
        at = addresses_of(deployment, topology, addresses)
        # Whether there is such a node is said below.
        member = members_of(deployment, topology).get(name)
        live.LiveNode(
            deployment,
            name,
            at,
            live.ServerOptions(
                record=record,
                limits=live.Limits.of(
                    NodeLimits() if member is None else member.limits,
                    json_bytes=max_json * _MIB,
                    memory_bytes=max_memory and max_memory * _MIB,
                    bodies_bytes=max_bodies and max_bodies * _MIB,
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
            folder=state or home_folder("state") / "nodes" / name,
            bind=bind,
            credentials=certs,
            emulate_rtt=emulate_rtt,
        ).run(tell)
    except (live.ServeError, StateError, StoreError) as error:
        raise CommandError(str(error)) from error
    except live.PortError as error:
        raise CommandError(
            f"node {name} cannot listen: {error}. Nodes of one machine need addresses of their "
            "own, `admin` included: give them by --addresses"
        ) from error
    _leave()


def _certificate(tls_cert: Path | None, tls_key: Path | None) -> Certificate | None:
    from inferway.live import Certificate

    if tls_cert is None or tls_key is None:
        if tls_cert or tls_key:
            raise CommandError("--tls-cert and --tls-key go together")
        return None
    shown = Certificate(tls_cert, tls_key)
    with _refusing():
        shown.context()
    return shown


def _check_grpc(port: int | None) -> None:
    """Import what gRPC needs, which is in an extra, before anything is measured or started."""
    from inferway.live.grpc import endpoint_class

    if port is not None:
        endpoint_class()


@contextmanager
def _refusing() -> Iterator[None]:
    """Refuse an option or a file that asks for what cannot be; name a port that cannot be had."""
    from inferway.live import PortError, ServeError

    try:
        yield
    except PortError as error:
        raise CommandError(
            f"--{error.listener}-port {error.port} at {error.host}: {error.why}", FAILED
        ) from error
    except ServeError as error:
        raise CommandError(str(error)) from error


def _outlive_hangup() -> None:
    """Let SIGHUP end nothing while the process starts: what it asks to be read is about to be."""
    signal.signal(signal.SIGHUP, lambda number, frame: None)


def _leave() -> None:
    """End the process where code is still being compiled aside, for nobody now.

    To wait for it would take minutes, and an interpreter that ends under it may crash.
    """
    from inferway.live.threads import working

    if working():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
