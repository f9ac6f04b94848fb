"""A simulated network in words and pictures: by slots, and where it ran request by request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.text import milliseconds, percent, seconds, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from inferway.network import Topology
    from inferway.twin.network.result import EventResult
    from inferway.twin.result import NetworkResult, PartResult

Float = NDArray[np.float64]

MOST_ROWS = 40
"""Tasks that are shown; the JSON document has all."""
_MIB, _GIB = 2**20, 2**30
_POINTS = 400


def tables(result: NetworkResult) -> list[RenderableType]:
    """The whole, by tier, by task, with what queues and moves add where requests ran."""
    from inferway.twin.network.result import EventResult

    notes: list[RenderableType] = [Text(f"Note: {n}.", style="yellow") for n in result.notes]
    head = [_whole(result), *([Text(), _events(result)] if isinstance(result, EventResult) else [])]
    laid = [*head, *notes, Text(), _tiers(result), Text(), _tasks(result)]
    return [*laid, Text(), _variants(result)] if isinstance(result, EventResult) else laid


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


def _whole(result: NetworkResult) -> RenderableType:
    network = result.network
    rows = [
        ["gain per request (NTAG)", f"{result.ntag_ms:.4g} ms"],
        ["models fetched per slot (MU)", mebibytes(result.mu_bytes_per_slot)],
        ["latency, mean", seconds(result.latency_s)],
        ["inaccuracy, mean", percent(result.inaccuracy, 2)],
        ["requests", f"{result.requests.sum():,.0f}"],
        ["slots", f"{result.slots} of {result.slot_s:g} s"],
        ["policy's CPU time per slot", seconds(result.cpu_s_per_slot)],
    ]
    if result.regret is not None:
        regret = result.regret
        per_request = max(float(result.requests.sum()), 1.0)
        rows += [
            ["best static allocation gains", f"{regret.best.sum() / per_request:.4g} ms"],
            ["and is proven within", percent(regret.gap, 3)],
            ["regret per request", f"{regret.plain / per_request:.4g} ms"],
            ["the same, against 1 - 1/e of it", f"{regret.discounted / per_request:.4g} ms"],
            ["its bound, A sqrt(T)", f"{regret.bound / per_request:.4g} ms"],
        ]
    caption = (
        f"{len(network.nodes)} nodes, {len(network.tasks)} tasks, {len(network.models.task)} "
        f"models, {len(network.requests.task)} request types."
    )
    return table(f"Network, simulated with {result.policy}", ["", "twin"], rows, caption=caption)


def _tiers(result: NetworkResult) -> RenderableType:
    rows = [[name, *_numbers(part), percent(part.used, 1)] for name, part in result.tiers.items()]
    columns = ["tier", "served", "latency", "inaccuracy", "fetched per slot", "budget used"]
    return table("By tier", columns, rows, caption="Latencies in ms.")


def _tasks(result: NetworkResult) -> RenderableType:
    rows = [
        [name, *_numbers(part), f"{part.ntag_ms or np.nan:.1f}" if part.share > 0 else "-"]
        for name, part in list(result.tasks.items())[:MOST_ROWS]
    ]
    more = len(result.tasks) - len(rows)
    columns = ["task", "requests", "latency", "inaccuracy", "fetched per slot", "gain"]
    caption = "Latencies and gains in ms." + (f" {more} more tasks." if more > 0 else "")
    return table("By task", columns, rows, caption=caption)


def _numbers(part: PartResult) -> list[str]:
    return [
        percent(part.share, 2),
        milliseconds(part.latency_s),
        percent(part.inaccuracy, 1),
        mebibytes(part.mu_bytes_per_slot),
    ]


def mebibytes(value: float) -> str:
    """Write bytes in MiB, so that a column can be compared by eye."""
    return f"{value / _MIB:,.1f} MiB"


def over_time(result: NetworkResult, *, title: str = "") -> Figure:
    """Gain per request and bytes fetched in each slot; means of several where there are many."""
    step = -(-result.slots // _POINTS)
    edges = np.arange(0, result.slots, step)
    requests = np.add.reduceat(result.requests, edges)
    gain = np.add.reduceat(result.gain, edges) / np.where(requests > 0, requests, np.nan)
    length = np.diff(np.append(edges, result.slots))
    moved = np.add.reduceat(result.moved, edges) / length / _GIB
    hours = (edges + length / 2) * result.slot_s / 3600
    across = hours_of(result)
    gains = [_line(result, hours, gain)]
    if result.regret is not None:
        best = np.add.reduceat(result.regret.best, edges) / np.where(requests > 0, requests, np.nan)
        gains.append(Curve("best static allocation", hours.tolist(), best.tolist()))
    most = float(moved.max(initial=0.0))
    shown = [
        Panel("gain", "time, h", "gain per request, ms", gains, limits_across=across),
        Panel(
            "models fetched",
            "time, h",
            "GiB per slot",
            [_line(result, hours, moved)],
            limits_up=(0.0, 1.05 * most or 1.0),
            limits_across=across,
        ),
    ]
    return panels(shown, columns=2, title=title)


def hours_of(result: NetworkResult) -> tuple[float, float]:
    """Begin and end of what was simulated, h."""
    return 0.0, max(result.slots, 1) * result.slot_s / 3600


def _line(result: NetworkResult, x: Float, y: Float) -> Curve:
    return Curve(result.policy, x.tolist(), y.tolist(), color=0, markers=False)


def latencies(result: EventResult, *, title: str = "") -> Figure:
    """Mean latency of the requests that entered in each slot."""
    hours = [(slot + 0.5) * result.slot_s / 3600 for slot in range(result.slots)]
    line = Curve(result.policy, hours, (1e3 * result.latency_in).tolist(), color=0, markers=False)
    across = hours_of(result)
    panel = Panel("latency", "time, h", "mean latency, ms", [line], limits_across=across)
    return panels([panel], columns=1, title=title)


def served_at(result: NetworkResult) -> Float:
    """(V,) share of all requests that each node served."""
    network = result.network
    here = np.bincount(network.options.node, result.served, minlength=len(network.nodes))
    return np.asarray(here / max(float(here.sum()), 1.0))


def figures(
    result: NetworkResult, topology: Topology, folder: Path, *, title: str = ""
) -> list[Path]:
    """Write gain, the heat map per tier, the map and, where requests ran, latency: PNG and SVG.

    Returns
    -------
    list of Path
        The PNG files; a network of too many nodes has no map.
    """
    from inferway.experiments.allocation import by_tier, heat_maps
    from inferway.experiments.figure import save
    from inferway.experiments.network_map import MOST_NODES, network_map
    from inferway.twin.network.result import EventResult

    grid = by_tier(result.network, result.presence)
    drawn = {
        "gain": over_time(result, title=title),
        "allocation": heat_maps([grid], label="copies per node", title=title),
    }
    if len(topology.nodes) <= MOST_NODES:
        drawn["map"] = network_map(topology, served_at(result), title=title)
    if isinstance(result, EventResult):
        drawn["latency"] = latencies(result, title=title)
    return [save(figure, folder / name)[0] for name, figure in drawn.items()]
