"""A network in words and pictures: by slots, request by request, as it is placed, on a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.text import Text

from inferway.deployment.units import ENERGY
from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.figure import INK, canvas, save
from inferway.experiments.text import (
    Frame,
    Laid,
    Shown,
    frame,
    milliseconds,
    noted,
    number,
    percent,
    seconds,
    shown_as,
    table,
)
from inferway.network import DeliveryNetwork, Topology
from inferway.placement import offline
from inferway.placement.offline import Placement
from inferway.twin.result import EventResult, NetworkResult, PartResult

Float = NDArray[np.float64]

MOST_ROWS: Final = 40  # of tasks, whose JSON document has all, and of nodes in a heat map
MOST_NODES: Final = 2000  # a map of more shows nothing
_MIB, _GIB = 2**20, 2**30
_PROOF: Final = {
    True: "Proven to be the best; the gap is what sharing instances by arrival costs.",
    False: "The time limit came before the proof: a better placement may exist.",
    None: None,
}


@dataclass(frozen=True, eq=False)
class PlacementResult(Placement, Shown):
    """The placement that `inferway.place` gives."""

    def to_frame(self) -> Frame:
        """One row for each node and variant of a task that runs there."""
        rows = (
            (node, *instance.rsplit("/", 1), count)
            for node, instances in self.nodes.items()
            for instance, count in instances.items()
        )
        return frame(rows, columns=["node", "task", "variant", "instances"])

    def plot(self) -> Figure:
        """Draw how many copies of each variant a node of each tier holds."""
        grid = by_tier(self.network, np.asarray(self.allocation, np.float64))
        return heat_maps([grid], label="copies per node", title=f"placement by {self.policy}")

    def _repr_html_(self) -> str:
        rows = frame(
            {"tier": name, "served": tier.share, "budget used": tier.used, **tier.copies}
            for name, tier in self.tiers.items()
        )
        return str(rows.fillna(0).to_html(index=False, float_format="{:.3g}".format))

    def tables(self) -> list[Laid]:
        """The whole, and what runs on each tier."""
        rows = [
            ["gain per request", f"{self.gain_ms:.4g} ms"],
            ["latency, mean", seconds(self.latency_s)],
            ["inaccuracy, mean", percent(self.inaccuracy, 2)],
        ]
        if self.in_time is not None:
            rows.append(["in time, if nobody waits", percent(self.in_time, 2)])
        if self.bound_ms is not None:
            rows += [
                ["no static placement gains more than", f"{self.bound_ms:.4g} ms"],
                ["gap", percent(self.gap, 3)],
            ]
        rows += [["for so many slots", str(self.slots)], ["computed in", seconds(self.seconds)]]
        parts = [
            [
                name,
                percent(tier.share, 2),
                percent(tier.used, 1),
                ", ".join(f"{count} {variant}" for variant, count in tier.copies.items()) or "-",
            ]
            for name, tier in self.tiers.items()
        ]
        columns = ["tier", "served", "budget used", "copies, of all tasks"]
        title, caption = f"Placement by {self.policy}", _PROOF[self.proven]
        return [
            table(title, ["", "offline"], rows, caption=caption),
            Text(),
            table("By tier", columns, parts, left=(0, 3)),
            Text(),
        ]

    def figures(self, topology: Topology, folder: Path, *, title: str = "") -> list[Path]:
        """Write the heat map per tier and the map, PNG and SVG each; return the PNG files.

        A network of too many nodes has no map.
        """
        presence = np.asarray(self.allocation, np.float64)
        return _saved(_maps(self.network, presence, self.served, topology, title), folder)


place = shown_as(PlacementResult, offline.place)


def tables(result: NetworkResult) -> list[Laid]:
    """The whole, by tier, by task, with what queues and moves add where requests ran."""
    network, regret = result.network, result.regret
    whole = [
        ["gain per request (NTAG)", f"{result.ntag_ms:.4g} ms"],
        ["models fetched per slot (MU)", _mebibytes(result.mu_bytes_per_slot)],
        ["latency, mean", seconds(result.latency_s)],
        ["inaccuracy, mean", percent(result.inaccuracy, 2)],
        ["requests", f"{result.requests.sum():,.0f}"],
        ["slots", f"{result.slots} of {result.slot_s:g} s"],
        ["policy's CPU time per slot", seconds(result.cpu_s_per_slot)],
    ]
    if regret is not None:
        per_request = max(float(result.requests.sum()), 1.0)
        whole += [
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
    tiers = [[name, *_cells(part), percent(part.used, 1)] for name, part in result.tiers.items()]
    tasks = [
        [name, *_cells(part), f"{part.ntag_ms or np.nan:.1f}" if part.share > 0 else "-"]
        for name, part in list(result.tasks.items())[:MOST_ROWS]
    ]
    more = len(result.tasks) - len(tasks)
    columns = ["latency", "inaccuracy", "fetched per slot"]
    laid: list[Laid] = [
        table(f"Network, simulated with {result.policy}", ["", "twin"], whole, caption=caption),
        *noted(result.notes),
        Text(),
        table(
            *("By tier", ["tier", "served", *columns, "budget used"], tiers),
            caption="Latencies in ms.",
        ),
        Text(),
        table(
            *("By task", ["task", "requests", *columns, "gain"], tasks),
            caption="Latencies and gains in ms." + (f" {more} more tasks." if more > 0 else ""),
        ),
    ]
    if not isinstance(result, EventResult):
        return laid
    events = [
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
    places = sorted({place for row in result.variants.values() for place in row})
    answers = [
        [name, *(percent(row.get(place), 2) for place in places)]
        for name, row in result.variants.items()
    ]
    laid[1:1] = [Text(), table("Request by request", ["", "twin"], events)]
    laid += [Text(), table("Answers by variant and place", ["variant", *places], answers)]
    return [*laid, *_joint(result)]


def _joint(result: EventResult) -> list[Laid]:
    """Lay out where targets over several tasks stand, in all and by entry."""
    rows = []
    for name, one in (result.targets or {}).items():
        for at, of in [("all", one), *list(one["nodes"].items())[:MOST_ROWS]]:
            means = _means(one, of["mean"])
            rows.append([name, at, *means, f"{of['answers']:,}", of["state"]])
    if not rows:
        return []
    columns = ["target", "entry", "promised", "mean", "answers", "state"]
    return [Text(), table("Targets over several tasks", columns, rows, left=(0, 1, 5))]


def _means(one: Mapping[str, Any], mean: float | None) -> tuple[str, str]:
    """What a target promises, and what came of it."""
    if "accuracy" in one:
        return percent(one["accuracy"]), percent(mean)
    return ENERGY.write(one["energy"]), number(mean, "{:.4g} J")


def _cells(part: PartResult) -> list[str]:
    return [
        percent(part.share, 2),
        milliseconds(part.latency_s),
        percent(part.inaccuracy, 1),
        _mebibytes(part.mu_bytes_per_slot),
    ]


def _mebibytes(value: float) -> str:
    return f"{value / _MIB:,.1f} MiB"


def over_time(result: NetworkResult, *, title: str = "") -> Figure:
    """Gain per request and bytes fetched in each slot; means of several where there are many."""
    edges = np.arange(0, result.slots, -(-result.slots // 400))
    length = np.diff(np.append(edges, result.slots))
    requests = np.add.reduceat(result.requests, edges)
    requests = np.where(requests > 0, requests, np.nan)
    moved = np.add.reduceat(result.moved, edges) / length / _GIB
    gains = {result.policy: np.add.reduceat(result.gain, edges) / requests}
    if result.regret is not None:
        gains["best static allocation"] = np.add.reduceat(result.regret.best, edges) / requests
    shown = {
        ("gain", "gain per request, ms"): gains,
        ("models fetched", "GiB per slot"): {result.policy: moved},
    }
    up = (0.0, 1.05 * float(moved.max(initial=0.0)) or 1.0)
    return _over_time(result, edges + length / 2, shown, (None, up), title)


def latencies(result: EventResult, *, title: str = "") -> Figure:
    """Mean latency of the requests that entered in each slot."""
    shown = {("latency", "mean latency, ms"): {result.policy: 1e3 * result.latency_in}}
    return _over_time(result, np.arange(result.slots) + 0.5, shown, (None,), title)


def _over_time(
    result: NetworkResult,
    slots: NDArray[np.floating[Any]],
    shown: Mapping[tuple[str, str], Mapping[str, Float]],
    limits_up: Sequence[tuple[float, float] | None],
    title: str,
) -> Figure:
    """Draw curves by panel against the hour; only the policy's own has a color."""
    hours = (slots * result.slot_s / 3600).tolist()
    across = (0.0, max(result.slots, 1) * result.slot_s / 3600)
    drawn = []
    for ((name, up), values), ends in zip(shown.items(), limits_up, strict=True):
        curves = [
            Curve(label, hours, one.tolist(), color=color, markers=color < 0)
            for color, (label, one) in zip((0, -1), values.items(), strict=False)
        ]
        drawn.append(Panel(name, "time, h", up, curves, limits_up=ends, limits_across=across))
    return panels(drawn, columns=len(drawn), title=title)


def served_at(network: DeliveryNetwork, served: Float) -> Float:
    """(V,) share of all requests that each node served, from how many each option did."""
    count = np.bincount(network.options.node, served, minlength=len(network.nodes))
    return np.asarray(count / max(float(count.sum()), 1.0))


def figures(
    result: NetworkResult, topology: Topology, folder: Path, *, title: str = ""
) -> list[Path]:
    """Write gain, the heat map per tier, the map and, where requests ran, latency: PNG and SVG.

    Returns the PNG files; a network of too many nodes has no map.
    """
    return _saved(drawn(result, topology, title=title), folder)


def drawn(result: NetworkResult, topology: Topology, *, title: str = "") -> dict[str, Figure]:
    """Draw the same, by name."""
    found = {"gain": over_time(result, title=title)}
    found |= _maps(result.network, result.presence, result.served, topology, title)
    if isinstance(result, EventResult):
        found["latency"] = latencies(result, title=title)
    return found


def _saved(drawn: Mapping[str, Figure], folder: Path) -> list[Path]:
    return [save(figure, folder / name)[0] for name, figure in drawn.items()]


def _maps(
    network: DeliveryNetwork, presence: Float, served: Float, topology: Topology, title: str
) -> dict[str, Figure]:
    grid = by_tier(network, presence)
    drawn = {"allocation": heat_maps([grid], label="copies per node", title=title)}
    if len(topology.nodes) <= MOST_NODES:
        drawn["map"] = network_map(topology, served_at(network, served), title=title)
    return drawn


def network_map(topology: Topology, share: Float, *, title: str = "") -> Figure:
    """Draw a tree tier by tier, any other graph so that distances look like round-trip times.

    `share` is (V,), the share of all requests that each node serves, 0..1. ValueError above
    `MOST_NODES` nodes.
    """
    count = len(topology.nodes)
    if count > MOST_NODES:
        raise ValueError(f"a map shows up to {MOST_NODES} nodes, not {count}")
    tree = len(topology.tiers) > 1 and len(topology.links) == count - 1
    at = _tiered(topology) if tree else _spread(topology)
    least, more = (60, 340) if count <= 300 else (12, 80)
    top = max(float(share.max(initial=0.0)), 1e-9)
    with canvas(9.0, 5.2 if tree else 6.4) as figure:
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.add_collection(
            LineCollection(at[topology.links].tolist(), colors="#BBBBBB", linewidths=1.0, zorder=1)
        )
        for repository, marker in ((False, "o"), (True, "s")):
            these = topology.repository == repository
            if these.any():
                drawn = axes.scatter(
                    at[these, 0],
                    at[these, 1],
                    c=100 * share[these],
                    s=least + more * share[these] / top,
                    marker=marker,
                    cmap="viridis_r",
                    vmin=0.0,
                    vmax=100 * top,
                    edgecolors="#444444",
                    linewidths=0.8,
                    zorder=2,
                )
        tiers = np.bincount(topology.tier, minlength=len(topology.tiers))
        for node, tier in enumerate(topology.tier):
            below = tree and tier == len(topology.tiers) - 1
            # Beside each other: those of a tier, or all.
            beside = tiers[tier] if tree else count
            if beside > (12 if tree and not below else 60):  # no room for their names
                continue
            # Names keep their distance from the largest marker, whatever the node's own.
            axes.annotate(
                topology.nodes[node],
                (float(at[node, 0]), float(at[node, 1])),
                xytext=(0, -13) if below else (0, 12),
                textcoords="offset points",
                ha="right" if below else "center",
                va="top" if below else "bottom",
                rotation=45 if below else 0,
                rotation_mode="anchor",
                fontsize=7.5,
                color=INK,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
                zorder=1.5,
            )
        axes.margins(0.07, 0.14)
        figure.colorbar(drawn, ax=axes, label="requests served here, %", fraction=0.03, pad=0.01)
        if title:
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        return figure


def _tiered(topology: Topology) -> Float:
    """Leaves side by side, every other node above the middle of its children."""
    import networkx

    tree = networkx.Graph(topology.links.tolist())
    root = int(np.argmin(topology.tier))
    children = networkx.dfs_successors(tree, root)
    order = list(networkx.dfs_preorder_nodes(tree, root))
    leaves = [node for node in order if node not in children]
    at = np.zeros((len(topology.nodes), 2))
    at[:, 1] = -topology.tier
    at[leaves, 0] = np.arange(len(leaves))
    for node in reversed(order):
        if node in children:
            at[node, 0] = at[children[node], 0].mean()
    return at


def _spread(topology: Topology) -> Float:
    import networkx

    from inferway.network import to_graph

    graph = to_graph(topology)
    if len(topology.nodes) == 1:
        return np.zeros((1, 2))
    # Of more, all-pairs distances take too long.
    if len(topology.nodes) <= 250 and networkx.is_connected(graph):
        floor = 1e-2 * max(float(topology.rtt_s.max(initial=0.0)), 1e-9)
        for _, _, values in graph.edges(data=True):
            values["length"] = max(values["rtt_s"], floor)
        at = networkx.kamada_kawai_layout(graph, weight="length")
    else:
        at = networkx.spring_layout(graph, weight=None, seed=1)
    return np.array([at[name] for name in topology.nodes])


class Grid(NamedTuple):
    """One heat map."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: NDArray[np.float64]  # (rows, columns), 0 or more


def by_tier(network: DeliveryNetwork, presence: NDArray[np.float64], title: str = "") -> Grid:
    """Count copies of each variant, of all tasks together, on an average node of each tier.

    `presence` is (P,), the share of the time, or the probability, of each useful pair. Repositories
    are left out. Without tiers each node that holds something is a row, or all together are one
    where there are many.
    """
    pairs, models = network.pairs, network.models
    accuracy = np.zeros(len(network.variants))
    accuracy[models.variant] = models.accuracy
    order = np.argsort(accuracy, kind="stable")
    # The row of each node, -1 for repositories.
    hosts, alone = ~network.repository, len(network.tiers) == 1
    group, names = np.full(len(network.nodes), -1), ["all nodes"]
    if not alone:
        tiers, group[hosts] = np.unique(network.tier[hosts], return_inverse=True)
        names = [network.tiers[tier] for tier in tiers]
    elif hosts.sum() > MOST_ROWS:
        group[hosts] = 0
    else:
        group[hosts] = np.arange(hosts.sum())
        names = [network.nodes[v] for v in np.flatnonzero(hosts)]
    counts = np.zeros((len(names), len(order)))
    row = group[pairs.node]
    held = row >= 0
    np.add.at(counts, (row[held], models.variant[pairs.model][held]), presence[held])
    nodes = np.bincount(group[hosts], minlength=len(names))
    values = (counts / np.maximum(nodes, 1)[:, None])[:, order]
    if alone and values.any():  # a node that holds nothing needs no row
        shown = np.flatnonzero(values.any(axis=1))
        names, values = [names[row] for row in shown], values[shown]
    return Grid(title, names, [network.variants[k] for k in order], values)


def heat_maps(
    grids: Sequence[Grid], *, label: str, title: str = "", across: str = "variant"
) -> Figure:
    """Draw heat maps below each other, with one scale for all.

    `label` says what the colors mean, `across` what the columns are.
    """
    top = max(max(float(grid.values.max(initial=0.0)) for grid in grids), 1e-9)
    rows = [len(grid.rows) for grid in grids]
    columns = max(len(grid.columns) for grid in grids)
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    size = min(16.0, max(6.4, 2.2 + 0.52 * columns)), sum(0.34 * n + 1.0 for n in rows) + 0.9
    with canvas(*size, title) as figure:
        every = figure.subplots(len(grids), 1, height_ratios=[n + 2 for n in rows], squeeze=False)
        for axes, grid in zip(every[:, 0], grids, strict=True):
            image = axes.imshow(
                grid.values,
                aspect="auto",
                cmap="Blues",
                vmin=0.0,
                vmax=top,
                interpolation="nearest",
            )
            long = any(len(name) > 3 for name in grid.columns)
            axes.set_yticks(range(len(grid.rows)), grid.rows)
            axes.set_xticks(
                range(len(grid.columns)), grid.columns, fontsize=8, **(turned if long else {})
            )
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            axes.set_title(grid.title, loc="left", fontsize=10)
            for (row, column), value in np.ndenumerate(grid.values):
                if columns * max(rows) <= 400 and value >= 0.05 * top:
                    color = "white" if value > 0.6 * top else "#222222"
                    text = f"{value:.2g}" if value < 10 else f"{value:.0f}"
                    axes.text(column, row, text, ha="center", va="center", color=color, fontsize=7)
        every[-1, 0].set_xlabel(across)
        figure.colorbar(image, ax=list(every[:, 0]), label=label, fraction=0.04, pad=0.02)
        return figure
