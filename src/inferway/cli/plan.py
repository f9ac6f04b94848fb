"""``inferway plan``: the cheapest instances that keep what the file promises."""

from __future__ import annotations

from typing import Annotated

import typer

from inferway.cli import failure, options, terminal


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
        raise failure.CommandError(str(error)) from error
    if json:
        terminal.document(found.to_json())
        return
    from inferway.experiments.planned import tables

    terminal.show(*tables(found))
    print(found.yaml, end="")
