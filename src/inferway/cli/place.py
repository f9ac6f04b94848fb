"""Decisions made offline: ``place``, which variants live where, and ``plan``, how many run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import inferway
from inferway.cli import options, terminal
from inferway.cli.failure import FAILED, failing
from inferway.cli.options import says

_MOST_NODES = 100
"""The section of more is for a file, not for a terminal."""


def place(
    file: options.File,
    policy: Annotated[
        str | None,
        says(
            "infida, static-greedy, exact, olag, olag-literal, greedy or repository-only.",
            metavar="NAME",
            autocompletion=options.completing("placement.table"),
            show_default="the file's",
        ),
    ] = None,
    slots: Annotated[int, says("Slots that the placement is for.", min=1)] = 60,
    seed: options.Seed = None,
    time_limit: Annotated[
        float,
        says("When `exact` stops with what it has.", parser=options.time, metavar="TIME"),
    ] = "60s",  # type: ignore[assignment]  # Typer parses defaults, too
    bound: Annotated[
        bool, says("Bound every placement's gain, by the LP relaxation.", "--bound")
    ] = False,
    out: Annotated[
        Path | None, options.folder("Folder for nodes.yaml, a heat map per tier and a map.")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Compute which variants live on which node, for the file's mean requests."""
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
        return [*placed.figures(topology_of(deployment), out, title=title), section]

    files, failure = options.saved(out, write)
    names, number = list(map(str, files)), len(placed.network.nodes)
    content = {"schema": 1, "tasks": {}, "network": placed.to_json()}
    terminal.present(
        json, lambda: {**content, **({"files": names} if names else {})}, placed.tables
    )
    if not json:
        if number <= _MOST_NODES:
            print(placed.yaml, end="")
        elif out is None:
            print(f"{number} nodes: give --out DIR for their instances in YAML")
        print(*names, sep="\n", end="\n" * bool(names))
    if failure is not None:
        raise failure


def plan(
    file: options.File,
    rate: Annotated[
        float | None,
        says(
            "Such as 120/s.",
            parser=options.rate,
            metavar="RATE",
            show_default="the file's workload",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        says(
            "Greatest mean response time, such as 300ms.",
            parser=options.time,
            metavar="TIME",
            show_default="the task's deadline",
        ),
    ] = None,
    node: Annotated[str | None, says("Which node to plan, where there are several.")] = None,
    queries: Annotated[int, says("Requests per simulation.", min=1000)] = 200_000,
    seed: options.Seed = None,
    tries: Annotated[int, says("Most simulations per task.", min=1)] = 40,
    json: terminal.Json = False,
) -> None:
    """Find the cheapest instances that keep accuracy, energy and latency, tried in the twin."""
    deployment = options.opened(file)
    with failing(ValueError, code=FAILED), terminal.progress() as told:
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
    terminal.present(json, found.to_json, found.tables)
    if not json:
        print(found.yaml, end="")
