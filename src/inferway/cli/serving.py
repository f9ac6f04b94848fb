"""What ``serve`` and ``node`` have in common: options of a process that serves, and its end."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli.failure import REFUSED, CommandError

if TYPE_CHECKING:
    from inferway.live import Certificate

__all__ = [
    "DrainDelay",
    "Grace",
    "Keys",
    "LogLevel",
    "Record",
    "TlsCert",
    "TlsKey",
    "certificate",
    "leave",
]


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
        help="Keys that clients must send, one a line; else INFERWAY_KEYS.",
        show_default=False,
    ),
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
    """Return what clients are shown, None for no TLS; refuse one without the other."""
    from inferway.live import Certificate

    if (tls_cert is None) != (tls_key is None):
        raise CommandError("--tls-cert and --tls-key go together", REFUSED)
    return Certificate(tls_cert, tls_key) if tls_cert and tls_key else None


def leave() -> None:
    """End the process where code is still being compiled aside, for nobody now.

    To wait for it would take minutes, and an interpreter that ends under it may crash.
    """
    from inferway.live.aside import working

    if working():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
