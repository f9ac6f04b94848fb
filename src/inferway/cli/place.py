"""``inferway place``: which variants live on which node, computed offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferway.cli import quantity, terminal
from inferway.cli.file import File, opened
from inferway.cli.network_twin import known

_MOST_NODES = 100
"""The section of more is for a file, not for a terminal."""


def _policies(incomplete: str) -> list[str]:
    from inferway.placement.table import POLICIES

    return [name for name in POLICIES if name.startswith(incomplete)]


def place(
    file: File,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="infida, static-greedy, exact, olag, greedy or repository-only.",
            autocompletion=_policies,
            show_default="the file's",
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Slots that the placement is for.")] = 60,
    seed: Annotated[int | None, typer.Option(min=0, help="The file's if not given.")] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            parser=quantity.time, metavar="TIME", help="When `exact` stops with what it has."
        ),
    ] = "60s",  # type: ignore[assignment]  # Typer parses defaults, too
    bound: Annotated[
        bool, typer.Option("--bound", help="Bound every placement's gain, by the LP relaxation.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder for nodes.yaml, a heat map per tier and a map."),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Compute which variants live on which node, for the file's mean requests."""
    import inferway

    deployment = opened(file)
    with terminal.progress() as told:
        found = inferway.place(
            deployment,
            policy=known(policy),
            slots=slots,
            seed=seed,
            time_limit_s=time_limit,
            bound=bound,
            progress=lambda done: told("slots", done / slots),
        )
    written: list[Path] = []
    if out is not None:
        from inferway.network import topology_of
        from inferway.report.placed import figures

        title = f"{file.name}, {found.policy}"
        written = figures(found, topology_of(deployment), out, title=title)
        written.append(out / "nodes.yaml")
        written[-1].write_text(found.yaml, encoding="utf-8")
    if json:
        files = {"files": [str(one) for one in written]} if written else {}
        terminal.document({"schema": 1, "tasks": {}, "network": found.to_json(), **files})
        return
    from inferway.report.placed import tables

    terminal.show(*tables(found))
    if len(found.network.nodes) <= _MOST_NODES:
        print(found.yaml, end="")
    elif out is None:
        print(f"{len(found.network.nodes)} nodes: give --out DIR for their instances in YAML")
    for one in written:
        print(one)
