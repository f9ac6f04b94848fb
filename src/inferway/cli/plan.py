"""``inferway plan``: the cheapest instances that keep what the file promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import failure, quantity, terminal
from inferway.cli.file import File, opened

if TYPE_CHECKING:
    from rich.table import Table

    from inferway.twin.plan import TaskPlan


def plan(
    file: File,
    rate: Annotated[
        float | None,
        typer.Option(
            parser=quantity.rate,
            metavar="RATE",
            help="Such as 120/s.",
            show_default="the file's workload",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            parser=quantity.time,
            metavar="TIME",
            help="Greatest mean response time, such as 300ms.",
            show_default="the task's deadline",
        ),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Which node to plan, where there are several.")
    ] = None,
    queries: Annotated[int, typer.Option(min=1000, help="Requests per simulation.")] = 200_000,
    seed: Annotated[int | None, typer.Option(min=0, help="The file's if not given.")] = None,
    tries: Annotated[int, typer.Option(min=1, help="Most simulations per task.")] = 40,
    json: terminal.Json = False,
) -> None:
    """Find the cheapest instances that keep accuracy, energy and latency, tried in the twin."""
    from inferway.twin.plan import plan as planned

    deployment = opened(file)
    try:
        with terminal.progress() as told:
            found = planned(
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
    for task in found.tasks.values():
        terminal.show(_numbers(task))
    print(found.yaml, end="")


def _numbers(task: TaskPlan) -> Table:
    from inferway.report.table import percent, seconds, table

    simulated = task.simulated
    rows = [[f"instances of {name}", str(count)] for name, count in task.instances.items()]
    rows += [
        ["price", f"{task.price:g}"],
        ["rate", f"{task.rate_per_s:.6g}/s"],
        ["response time, mean", f"{seconds(simulated.response_time_s)}"],
        ["asked for", seconds(task.latency_s)],
        ["accuracy", f"{simulated.accuracy:.4f}"],
    ]
    if task.accuracy_target is not None:
        rows.append(["accuracy target", f"{task.accuracy_target:g}"])
    rows.append(["utilization", percent(simulated.utilization, 1)])
    count = f"{len(task.trials)} simulation{'' if len(task.trials) == 1 else 's'}"
    caption = (
        f"Nothing cheaper holds, after {count}."
        if task.cheapest
        else f"The cheapest found in {count}; more --tries may find a cheaper one."
    )
    return table(f"Task {task.task}, planned", ["", "twin"], rows, caption=caption)
