"""``inferway place``: which variants live on which node, computed offline."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import quantity, terminal
from inferway.cli.failure import CommandError
from inferway.cli.file import File, Seed, opened, saved, writable
from inferway.cli.network_twin import known

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.placement.offline import Placement

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
            help="infida, static-greedy, exact, olag, olag-literal, greedy or repository-only.",
            autocompletion=_policies,
            show_default="the file's",
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Slots that the placement is for.")] = 60,
    seed: Seed = None,
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
    if out is not None:
        writable(out)
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
    files: list[Path] = []
    failure: CommandError | None = None
    if out is not None:
        files, failure = saved(out, partial(_write, found, deployment, out))
    if json:
        named = {"files": [str(one) for one in files]} if files else {}
        terminal.document({"schema": 1, "tasks": {}, "network": found.to_json(), **named})
    else:
        _show(found, files, out)
    if failure is not None:
        raise failure


def _write(found: Placement, deployment: Deployment, out: Path) -> list[Path]:
    from inferway.experiments.placed import figures
    from inferway.network import topology_of

    section = out / "nodes.yaml"
    section.write_text(found.yaml, encoding="utf-8")
    title = f"{deployment.path.name}, {found.policy}"
    return [*figures(found, topology_of(deployment), out, title=title), section]


def _show(found: Placement, files: list[Path], out: Path | None) -> None:
    from inferway.experiments.placed import tables

    terminal.show(*tables(found))
    if len(found.network.nodes) <= _MOST_NODES:
        print(found.yaml, end="")
    elif out is None:
        print(f"{len(found.network.nodes)} nodes: give --out DIR for their instances in YAML")
    for one in files:
        print(one)
