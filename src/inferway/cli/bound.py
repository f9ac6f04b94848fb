"""``inferway bound``: the best that policies can do that choose before they see an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from inferway.cli import terminal
from inferway.cli.failure import REFUSED, CommandError
from inferway.cli.file import File, opened

if TYPE_CHECKING:
    from rich.table import Table

    from inferway.dispatch import Bound


def bound(
    file: File,
    node: Annotated[
        str | None,
        typer.Option(help="Whose instances are meant, where there are several nodes."),
    ] = None,
    json: terminal.Json = False,
) -> None:
    """Say the best that policies can do that choose before they see an answer.

    That is the greatest rate at which the target can be kept, and the least response time.
    """
    import inferway
    from inferway.dispatch.bound import UnreachableError

    deployment = opened(file)
    try:
        bounds = inferway.bound(deployment, node=node)
    except UnreachableError:
        raise
    except ValueError as error:  # no fleet that could be bounded
        raise CommandError(str(error), REFUSED) from error
    if json:
        tasks = {name: one.to_json() for name, one in bounds.items()}
        terminal.document({"schema": 1, "tasks": tasks, "network": None})
        return
    for name, one in bounds.items():
        terminal.show(_numbers(name, one), _tuples(one))


def _numbers(name: str, bound: Bound) -> Table:
    from inferway.report.table import percent, seconds, table

    rate, too_high = bound.rate_per_s, bound.feasible is False
    rows = [
        ["accuracy target", "none" if bound.target is None else f"{bound.target:g}"],
        ["greatest rate", f"{bound.max_rate_per_s:.6g}/s"],
        ["greatest rate per instance", f"{bound.max_rate_normalized:.6g}/s"],
        ["rate", "none in the file" if rate is None else f"{rate:.6g}/s"],
        ["least response time", seconds(bound.least_response_time_s)],
    ]
    if bound.energy_budget is not None:
        rows.insert(1, ["energy budget per request", f"{bound.energy_budget:g} J"])
    for variant, part in (bound.shares or {}).items():
        rows.append([f"share of {variant}", percent(part, 2)])
    caption = "The rate is above the greatest that keeps the target." if too_high else None
    return table(f"Task {name}", ["", "bound"], rows, caption=caption)


def _tuples(bound: Bound) -> Table:
    from inferway.report.table import percent, seconds, table

    rows = [
        [
            " + ".join(one["variants"]),
            " + ".join(percent(part, 2) for part in one["routing"]),
            seconds(one["cost_s"]),
        ]
        for one in bound.to_json()["tuples"]
    ]
    caption = "A negative share takes traffic off a variant that is busy."
    shuffles = any(part < 0 for one in bound.tuples for part in one.routing)
    return table(
        "Routing tuples",
        ["variants", "shares", "mean service time"],
        rows,
        caption=caption if shuffles else None,
    )
