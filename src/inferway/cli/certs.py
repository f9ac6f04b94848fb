"""``inferway certs``: certificates by which the nodes of a network know each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import FAILED, CommandError
from inferway.cli.file import File, existing

if TYPE_CHECKING:
    from inferway.live.security.authority import Issued


def certs(
    file: File,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the certificates and keys.")
    ] = Path("certs"),
    days: Annotated[
        int, typer.Option(min=1, metavar="N", help="How long a new certificate holds.")
    ] = 90,
    json: terminal.Json = False,
) -> None:
    """Make a test authority and a certificate per node, or renew those that need it."""
    import inferway
    from inferway.network import topology_of

    try:
        import cryptography  # noqa: F401
    except ModuleNotFoundError:
        raise CommandError(
            "this command needs cryptography, which is in the extra `network`: "
            "pip install 'inferway[network]'",
            FAILED,
        ) from None
    from inferway.live.security.authority import issue

    issued = issue(topology_of(inferway.load(existing(file))).nodes, out, days=days)
    if json:
        terminal.document(
            {
                "schema": 1,
                "tasks": {},
                "network": None,
                "folder": str(out),
                "certificates": [_entry(one) for one in issued],
            }
        )
        return
    _tell(out, issued)


def _entry(one: Issued) -> dict[str, str]:
    return {
        "name": one.name,
        "certificate": str(one.certificate),
        "key": str(one.key),
        "expires": one.expires.isoformat(timespec="seconds"),
        "state": one.state,
        "reason": one.reason,
    }


def _tell(folder: Path, issued: list[Issued]) -> None:
    from rich.table import Table

    table = Table("name", "certificate", "key", "until", "", box=None, pad_edge=False)
    for one in issued:
        state = f"{one.state}: {one.reason}" if one.reason else one.state
        until = f"{one.expires:%Y-%m-%d}"
        table.add_row(one.name, one.certificate.name, one.key.name, until, state)
    authority, *nodes = issued
    terminal.show(table)
    print(f"In {folder}. Give each node its own two files and {authority.certificate.name}.")
    print(f"{authority.key.name} makes certificates: keep it off the nodes.")
    if any(one.state == "renewed" for one in nodes):
        print("A running node takes renewed files on SIGHUP; its control port, at the next start.")
