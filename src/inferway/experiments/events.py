"""A network simulated request by request in words and pictures, beside what slots alone tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from inferway.experiments import slots
from inferway.experiments.text import percent, seconds, table
from inferway.twin.network.result import EventResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from inferway.network import Topology
    from inferway.twin.result import NetworkResult


def tables(result: NetworkResult) -> list[RenderableType]:
    """As `inferway.experiments.slots.tables`, with what queues and moves add where they ran."""
    found = slots.tables(result)
    if not isinstance(result, EventResult):
        return found
    return [found[0], Text(), _events(result), *found[1:], Text(), _variants(result)]


def _events(result: EventResult) -> RenderableType:
    rows = [
        ["latency, p50", seconds(result.p50_s)],
        ["latency, p95", seconds(result.p95_s)],
        ["latency, p99", seconds(result.p99_s)],
        ["answered elsewhere than they entered", percent(result.forwarded)],
        ["lost", f"{result.lost:,} of {result.answered + result.lost:,}"],
        ["answered after their deadline", f"{result.late:,}"],
        ["decided twice, as a node refused", f"{result.retried:,}"],
        ["in the network at once, mean", f"{result.in_system:.4g}"],
        ["most of a budget that a node ever held", percent(result.used_most)],
        ["requests per second of CPU", f"{result.requests_per_cpu_s:,.0f}"],
    ]
    return table("Request by request", ["", "twin"], rows)


def _variants(result: EventResult) -> RenderableType:
    places = sorted({place for row in result.variants.values() for place in row})
    rows = [
        [name, *(percent(row.get(place), 2) for place in places)]
        for name, row in result.variants.items()
    ]
    return table("Answers by variant and place", ["variant", *places], rows)


def latencies(result: EventResult, *, title: str = "") -> Figure:
    """Mean latency of the requests that entered in each slot."""
    from inferway.experiments.curves import Curve, Panel, panels

    hours = [(slot + 0.5) * result.slot_s / 3600 for slot in range(result.slots)]
    line = Curve(result.policy, hours, (1e3 * result.latency_in).tolist(), color=0, markers=False)
    across = slots.hours_of(result)
    panel = Panel("latency", "time, h", "mean latency, ms", [line], limits_across=across)
    return panels([panel], columns=1, title=title)


def figures(
    result: NetworkResult, topology: Topology, folder: Path, *, title: str = ""
) -> list[Path]:
    """As `inferway.experiments.slots.figures`, with the latency over time where requests ran."""
    from inferway.experiments.figure import save

    found = slots.figures(result, topology, folder, title=title)
    if isinstance(result, EventResult):
        found.append(save(latencies(result, title=title), folder / "latency")[0])
    return found
