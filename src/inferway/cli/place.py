"""Decisions made offline: ``place``, which variants live where, and ``plan``, how many run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from inferway.cli import options, terminal
from inferway.cli.failure import CommandError

_MOST_NODES = 100
"""The section of more is for a file, not for a terminal."""


def place(
    file: options.File,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="infida, static-greedy, exact, olag, olag-literal, greedy or repository-only.",
            autocompletion=options.completing("placement.table"),
            show_default="the file's",
        ),
    ] = None,
    slots: Annotated[int, typer.Option(min=1, help="Slots that the placement is for.")] = 60,
    seed: options.Seed = None,
    time_limit: Annotated[
        float,
        typer.Option(
            parser=options.time, metavar="TIME", help="When `exact` stops with what it has."
        ),
    ] = "60s",  # type: ignore[assignment]  # Typer parses defaults, too
    bound: Annotated[
        bool, typer.Option("--bound", help="Bound every placement's gain, by the LP relaxation.")
    ] = False,
    out: Annotated[
        Path | None, options.folder("Folder for nodes.yaml, a heat map per tier and a map.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Compute which variants live on which node, for the file's mean requests."""
    import inferway
    from inferway.experiments.placed import figures, tables
    from inferway.network import topology_of

    deployment = options.opened(file)
    options.writable(out)
    with terminal.progress() as told:
        placed = inferway.place(
            deployment,
            policy=options.placement_policy(policy),
            slots=slots,
            seed=seed,
            time_limit_s=time_limit,
            bound=bound,
            progress=lambda done: told("slots", done / slots),
        )

    def write() -> list[Path]:
        assert out is not None
        section, title = out / "nodes.yaml", f"{deployment.path.name}, {placed.policy}"
        section.write_text(placed.yaml, encoding="utf-8")
        return [*figures(placed, topology_of(deployment), out, title=title), section]

    files, failure = options.saved(out, write)
    if json:
        named = {"files": list(map(str, files))} if files else {}
        terminal.document({"schema": 1, "tasks": {}, "network": placed.to_json(), **named})
    else:
        terminal.show(*tables(placed))
        number = len(placed.network.nodes)
        if number <= _MOST_NODES:
            print(placed.yaml, end="")
        elif out is None:
            print(f"{number} nodes: give --out DIR for their instances in YAML")
        for one in files:
            print(one)
    if failure is not None:
        raise failure


def plan(
    file: options.File,
    rate: Annotated[
        float | None,
        typer.Option(
            parser=options.rate,
            metavar="RATE",
            help="Such as 120/s.",
            show_default="the file's workload",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            parser=options.time,
            metavar="TIME",
            help="Greatest mean response time, such as 300ms.",
            show_default="the task's deadline",
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Which node to plan, where there are several.")
    ] = None,
    queries: Annotated[int, typer.Option(min=1000, help="Requests per simulation.")] = 200_000,
    seed: options.Seed = None,
    tries: Annotated[int, typer.Option(min=1, help="Most simulations per task.")] = 40,
    json: terminal.Json = False,
) -> None:
    """Find the cheapest instances that keep accuracy, energy and latency, tried in the twin."""
    import inferway

    deployment = options.opened(file)
    try:
        with terminal.progress() as told:
            found = inferway.plan(
                deployment,
                node=node,
                rate=rate,
                latency=latency,
                queries=queries,
                seed=seed,
                tries=tries,
                progress=told,
            )
    except ValueError as error:
        raise CommandError(str(error)) from error
    if json:
        terminal.document(found.to_json())
        return
    from inferway.experiments.planned import tables

    terminal.show(*tables(found))
    print(found.yaml, end="")
