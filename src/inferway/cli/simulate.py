"""``inferway simulate``: the deployment file's site in the twin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import failure, terminal
from inferway.cli.file import File, opened

if TYPE_CHECKING:
    from rich.console import RenderableType

    from inferway.twin import TaskResult


def _count(text: str) -> int:
    """Read a number of requests, such as 5e6."""
    try:
        value = float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number such as 5e6") from None
    if not (value >= 1 and value == int(value)):
        raise typer.BadParameter(f"{text} is not a whole number of at least 1")
    return int(value)


def simulate(
    file: File,
    queries: Annotated[
        int,
        typer.Option(parser=_count, metavar="NUMBER", help="Requests per task and replication."),
    ] = "1e6",  # type: ignore[assignment]
    replications: Annotated[int, typer.Option(min=1, help="Independent runs.")] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="The file's if not given.")] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Requests left out first.  [default: found]")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="Whose instances are meant, where there are several nodes."),
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Folder for a Parquet file per task, a row per request.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads.  [default: as many as cores]")
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Simulate the file's site with the very policies that the live server calls."""
    import inferway

    deployment = opened(file)
    names = tuple(deployment.workload)
    with _progress(queries * replications * len(names)) as told:
        result = inferway.simulate(
            deployment,
            node=node,
            queries=queries,
            replications=replications,
            seed=seed,
            warmup=warmup,
            workers=workers,
            records=records,
            progress=told,
        )
    if json:
        terminal.document({**result.to_json(), "network": None})
    else:
        for name, one in result.tasks.items():
            terminal.show(*_tables(name, one))
    if any(not one.complete for one in result.tasks.values()):
        raise typer.Exit(failure.INTERRUPTED if _interrupted(result.tasks) else 0)


def _interrupted(tasks: dict[str, TaskResult]) -> bool:
    from inferway.twin.simulation import INTERRUPTED

    return any(INTERRUPTED in one.notes for one in tasks.values())


@contextmanager
def _progress(total: int) -> Iterator[Callable[[str, int], None] | None]:
    """Show queries done, their rate and the time left, on standard error if it is a terminal."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: object) -> Text:
            speed = getattr(task, "speed", None)
            return Text("" if speed is None else f"{speed / 1e6:.1f} M/s")

    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} queries"),
        Rate(),
        TimeRemainingColumn(),
    )
    lock = threading.Lock()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("compiling", total=total)

        def told(name: str, done: int) -> None:
            with lock:
                bar.update(row, description=name, advance=done)

        yield told


def _tables(name: str, result: TaskResult) -> list[RenderableType]:
    from inferway.report.table import percent, seconds, table

    accuracy, response = result.accuracy, result.response_time_s
    rows = [
        ["response time, mean", f"{seconds(response.mean)} +- {seconds(1.96 * response.stderr)}"],
        ["response time, p50", seconds(result.p50_s)],
        ["response time, p95", seconds(result.p95_s)],
        ["response time, p99", seconds(result.p99_s)],
        ["accuracy", f"{accuracy.mean:.5f} +- {1.96 * accuracy.stderr:.1g}"],
    ]
    if result.accuracy_target is not None:
        rows.append(["accuracy target", f"{result.accuracy_target:g}"])
    rows += [
        ["goodput", percent(result.goodput, 2)],
        ["rejected", percent(result.rejected, 3)],
        ["dropped", percent(result.dropped, 3)],
        ["late", percent(result.late, 3)],
        ["in the system, mean", f"{result.in_system:.4g}"],
        ["arrival rate", f"{result.rate_per_s:.6g}/s"],
        ["queries", f"{result.queries:,} after {result.warmup:,} of warm-up"],
        ["queries per CPU second", f"{result.queries_per_cpu_s / 1e6:.1f} M ({result.engine})"],
    ]
    caption = " ".join(f"{note}." for note in result.notes) or None
    shown: list[RenderableType] = [
        table(f"Task {name}, simulated", ["", "twin"], rows, caption=caption),
        table(
            "By variant",
            ["variant", "share", "utilization", "mean", "p95"],
            [
                [
                    variant,
                    percent(one.share, 2),
                    percent(one.utilization, 1),
                    seconds(one.response_time_s),
                    seconds(one.p95_s),
                ]
                for variant, one in result.classes.items()
            ],
        ),
    ]
    if len(result.phases) > 1:
        shown.append(
            table(
                "By phase of arrival",
                ["phase", "rate", "target", "accuracy", "mean", "p95", "lost or late"],
                [
                    [
                        str(number),
                        "" if one.rate_per_s is None else f"{one.rate_per_s:.4g}/s",
                        "" if one.accuracy_target is None else f"{one.accuracy_target:g}",
                        f"{one.accuracy:.4f}",
                        seconds(one.response_time_s),
                        seconds(one.p95_s),
                        percent(one.violation_ratio, 2),
                    ]
                    for number, one in enumerate(result.phases, 1)
                ],
            )
        )
    return shown
