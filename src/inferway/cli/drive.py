"""``inferway drive``: the file's workload, sent to a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import INTERRUPTED, CommandError
from inferway.cli.file import File, opened

if TYPE_CHECKING:
    from rich.table import Table

    from inferway.drive import Summary


def drive(
    file: File,
    url: Annotated[str, typer.Option(help="The server.")] = "http://127.0.0.1:8000",
    duration: Annotated[float, typer.Option(min=0.1, help="Seconds to send for.")] = 30.0,
    connections: Annotated[int, typer.Option(min=1, help="Greatest number of connections.")] = 512,
    binary: Annotated[
        bool, typer.Option("--binary/--no-binary", help="Tensors as raw bytes, or as JSON.")
    ] = True,
    json: terminal.Json = False,
) -> None:
    """Send the file's workload to a server, open-loop, and say what its requests met."""
    from inferway import drive as generator

    deployment = opened(file)
    with terminal.progress() as progress:
        records = generator.run(
            deployment,
            url,
            duration_s=duration,
            connections=connections,
            binary=binary,
            progress=progress,
        )
    summaries = {}
    for name, record in records.items():
        variants = deployment.tasks[name].variants.values()
        accuracy = {variant.name: variant.accuracy for variant in variants}
        summaries[name] = generator.summary(record, accuracy)
    if json:
        tasks = {name: one.to_dict() for name, one in summaries.items()}
        terminal.document({"schema": 1, "tasks": tasks, "network": None})
    else:
        terminal.show(_table(url, summaries))
    for name, one in summaries.items():
        for sentence in one.warnings:
            terminal.complain(f"{name}: {sentence}")
    if any(record.interrupted for record in records.values()):
        raise typer.Exit(INTERRUPTED)
    if not any(one.answered for one in summaries.values()):
        raise CommandError("no request was answered")


def _table(url: str, summaries: dict[str, Summary]) -> Table:
    from inferway.report.table import accuracy, milliseconds, shares, table

    columns = ["task", "requests", "per s", "accuracy", "profile accuracy", "p50 ms", "p95 ms"]
    columns += ["p99 ms", "rejected", "failed", "shares"]
    rows = [
        [
            name,
            str(one.offered),
            f"{one.rate_per_s:.1f}",
            accuracy(one.accuracy),
            accuracy(one.profile_accuracy),
            milliseconds(one.p50_s),
            milliseconds(one.p95_s),
            milliseconds(one.p99_s),
            str(one.rejected),
            str(one.failed),
            shares(one.shares),
        ]
        for name, one in summaries.items()
    ]
    return table(f"Answers of {url}", columns, rows, left=(0, 10))
