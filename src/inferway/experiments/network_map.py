"""A map of a network: nodes, links, and how much of the requests each node serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from inferway.experiments.figure import STYLE

if TYPE_CHECKING:
    from inferway.network import Topology

MOST_NODES: Final = 2000
"""A map of more shows nothing."""
_MOST_NAMES = 60
_ONE_BY_ONE = 250  # above it, all-pairs distances take too long
_CROWDED = 12  # nodes of a tier beside each other that are still named

Points = NDArray[np.float64]


def network_map(topology: Topology, share: NDArray[np.float64], *, title: str = "") -> Figure:
    """Draw a tree tier by tier, any other graph so that distances look like round-trip times.

    Parameters
    ----------
    topology
        Up to `MOST_NODES` nodes.
    share
        (V,) share of all requests that each node serves, 0..1.
    title
        Above it.

    Returns
    -------
    figure
        For `inferway.experiments.figure.save`.

    Raises
    ------
    ValueError
        For a network of more nodes.
    """
    if len(topology.nodes) > MOST_NODES:
        raise ValueError(f"a map shows up to {MOST_NODES} nodes, not {len(topology.nodes)}")
    tree = len(topology.tiers) > 1 and len(topology.links) == len(topology.nodes) - 1
    at = _tiered(topology) if tree else _spread(topology)
    with mpl.rc_context({**STYLE, "font.size": 10}):
        figure = Figure(figsize=(9.0, 5.2 if tree else 6.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_axis_off()
        axes.add_collection(
            LineCollection(at[topology.links].tolist(), colors="#BBBBBB", linewidths=1.0, zorder=1)
        )
        few = len(topology.nodes) <= 300
        top = max(float(share.max(initial=0.0)), 1e-9)
        for repository, marker in ((False, "o"), (True, "s")):
            these = topology.repository == repository
            if these.any():
                drawn = axes.scatter(
                    at[these, 0],
                    at[these, 1],
                    c=100 * share[these],
                    s=(60 if few else 12) + (340 if few else 80) * share[these] / top,
                    marker=marker,
                    cmap="viridis_r",
                    vmin=0.0,
                    vmax=100 * top,
                    edgecolors="#444444",
                    linewidths=0.8,
                    zorder=2,
                )
        # Names keep their distance from the largest marker, whatever the node's own.
        for node in _named(topology, tree):
            below = tree and int(topology.tier[node]) == len(topology.tiers) - 1
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
                color="#333333",
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
                zorder=1.5,
            )
        axes.margins(0.07, 0.14)
        figure.colorbar(drawn, ax=axes, label="requests served here, %", fraction=0.03, pad=0.01)
        if title:
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        return figure


def _named(topology: Topology, tree: bool) -> list[int]:
    if not tree:
        return list(range(len(topology.nodes))) if len(topology.nodes) <= _MOST_NAMES else []
    count = np.bincount(topology.tier, minlength=len(topology.tiers))
    last = len(topology.tiers) - 1
    return [
        node
        for node, tier in enumerate(topology.tier)
        if count[tier] <= (_MOST_NAMES if tier == last else _CROWDED)
    ]


def _tiered(topology: Topology) -> Points:
    """Leaves side by side, every other node above the middle of its children."""
    count = len(topology.nodes)
    children: list[list[int]] = [[] for _ in range(count)]
    for one, other in topology.links:
        parent, child = sorted((int(one), int(other)), key=lambda node: topology.tier[node])
        children[parent].append(child)
    at = np.zeros((count, 2))
    at[:, 1] = -topology.tier
    root = int(np.argmin(topology.tier))
    leaves = 0
    order, walk = [], [root]
    while walk:
        node = walk.pop()
        order.append(node)
        walk += children[node][::-1]
    for node in order:
        if not children[node]:
            at[node, 0] = leaves
            leaves += 1
    for node in reversed(order):
        if children[node]:
            at[node, 0] = at[children[node], 0].mean()
    return at


def _spread(topology: Topology) -> Points:
    import networkx

    from inferway.network import to_graph

    graph = to_graph(topology)
    if len(topology.nodes) == 1:
        return np.zeros((1, 2))
    if len(topology.nodes) <= _ONE_BY_ONE and networkx.is_connected(graph):
        floor = 1e-2 * max(float(topology.rtt_s.max(initial=0.0)), 1e-9)
        for _, _, values in graph.edges(data=True):
            values["length"] = max(values["rtt_s"], floor)
        found = networkx.kamada_kawai_layout(graph, weight="length")
    else:
        found = networkx.spring_layout(graph, weight=None, seed=1)
    return np.array([found[name] for name in topology.nodes])
