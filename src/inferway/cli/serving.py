"""What ``serve`` and ``node`` have in common: options of a process that serves, and its end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli.failure import REFUSED, CommandError

if TYPE_CHECKING:
    from inferway.live import Certificate, PortError


class LogLevel(StrEnum):
    """How much the server writes to standard error."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


DrainDelay = Annotated[
    float, typer.Option(min=0, help="Seconds, after SIGTERM, of serving while not ready.")
]
Grace = Annotated[float, typer.Option(min=0, help="Seconds to wait then for requests in flight.")]
Keys = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Keys that clients must send, a line each: KEY or ROLE+ROLE=KEY; else INFERWAY_KEYS.",
        show_default=False,
    ),
]
MaxMemory = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Growth of memory while requests run, MiB; the file's, else 512.",
        show_default=False,
    ),
]
MaxBodies = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Bodies of all connections that wait or have come in part, MiB; the file's, else 256.",
        show_default=False,
    ),
]
MaxJson = Annotated[
    int,
    typer.Option(min=1, help="Longest JSON of a request, MiB, as sent and unpacked."),
]
Record = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Record every event and decision, for `replay`."),
]
TlsCert = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate chain for clients, PEM.")
]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, PEM.")]


def certificate(tls_cert: Path | None, tls_key: Path | None) -> Certificate | None:
    """Return what clients are shown, None for no TLS; refuse what cannot be shown."""
    from inferway.live import Certificate, ServeError

    if (tls_cert is None) != (tls_key is None):
        raise CommandError("--tls-cert and --tls-key go together", REFUSED)
    if tls_cert is None or tls_key is None:
        return None
    found = Certificate(tls_cert, tls_key)
    try:
        found.context()
    except ServeError as error:
        raise CommandError(str(error), REFUSED) from error
    return found


def check_listeners(
    keys: Path | None,
    grpc_port: int | None,
    *,
    admin_host: str = "127.0.0.1",
    hosts: Sequence[tuple[str, str, int]] = (),
) -> None:
    """Refuse what no listener can be made with, before anything is measured or started.

    Parameters
    ----------
    keys
        The file of keys.
    grpc_port
        None for no gRPC, which else needs an extra.
    admin_host
        Where keys are needed if others can reach it.
    hosts
        By listener, the host and the port that are asked for.
    """
    from inferway.live import PortError, ServeError
    from inferway.live.grpc import endpoint_class
    from inferway.live.port import check_host
    from inferway.live.security.keys import keys_from
    from inferway.live.server import check_admin

    try:
        check_admin(admin_host, keys_from(keys))
        if grpc_port is not None:
            endpoint_class()
        for listener, host, port in hosts:
            check_host(listener, host, port)
    except PortError as error:
        raise refused_port(error) from error
    except ServeError as error:
        raise CommandError(str(error), REFUSED) from error


def refused_port(error: PortError) -> CommandError:
    """Say which option names a port that cannot be had."""
    return CommandError(f"--{error.listener}-port {error.port} at {error.host}: {error.why}")


def mebibytes(number: int | None) -> int | None:
    """Turn an option's MiB into bytes; what is not given stays None."""
    return None if number is None else number * 1024**2


def outlive_hangup() -> None:
    """Let SIGHUP end nothing while the process starts: what it asks to be read is about to be."""
    signal.signal(signal.SIGHUP, lambda number, frame: None)


def leave() -> None:
    """End the process where code is still being compiled aside, for nobody now.

    To wait for it would take minutes, and an interpreter that ends under it may crash.
    """
    from inferway.live.threads import working

    if working():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
