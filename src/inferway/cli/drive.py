"""``inferway drive``: the file's workload, sent to a running server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import address, terminal
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

    url = address.checked(url)
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
    from inferway.report.table import accuracy, seconds, shares, table

    # A column per task: there are few tasks, and many numbers.
    lines: dict[str, Callable[[Summary], str]] = {
        "requests": lambda one: str(one.offered),
        "per second": lambda one: f"{one.rate_per_s:.1f}",
        "answered": lambda one: str(one.answered),
        "rejected": lambda one: str(one.rejected),
        "failed": lambda one: str(one.failed),
        "accuracy, by labels": lambda one: accuracy(one.accuracy),
        "accuracy, by profiles": lambda one: accuracy(one.profile_accuracy),
        "latency, mean": lambda one: seconds(one.mean_s),
        "latency, p50": lambda one: seconds(one.p50_s),
        "latency, p95": lambda one: seconds(one.p95_s),
        "latency, p99": lambda one: seconds(one.p99_s),
        "shares": lambda one: shares(one.shares).replace(", ", "\n"),
    }
    rows = [[label, *map(write, summaries.values())] for label, write in lines.items()]
    return table(f"Answers of {url}", ["task", *summaries], rows)
