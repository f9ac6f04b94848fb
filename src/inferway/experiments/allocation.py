"""Which variants are where: a heat map with a row per tier, a column per variant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from inferway.experiments.figure import canvas

if TYPE_CHECKING:
    from inferway.network import DeliveryNetwork

_MOST_ROWS: Final = 40
_MOST_NUMBERS: Final = 400


class Grid(NamedTuple):
    """One heat map.

    Attributes
    ----------
    title
        Above it.
    rows, columns
        Names of n rows and m columns.
    values
        (n, m), 0 or more.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: NDArray[np.float64]


def by_tier(network: DeliveryNetwork, presence: NDArray[np.float64], title: str = "") -> Grid:
    """Count copies of each variant, of all tasks together, on an average node of each tier.

    Parameters
    ----------
    network
        What the copies are on; repositories are left out. Without tiers each node that holds
        something is a row, or all together are one where there are many.
    presence
        (P,) share of the time, or probability, of each useful pair.
    title
        Of the grid.
    """
    pairs, models = network.pairs, network.models
    accuracy = np.zeros(len(network.variants))
    accuracy[models.variant] = models.accuracy
    order = np.argsort(accuracy, kind="stable")
    columns = [network.variants[k] for k in order]
    # The row of each node, -1 for repositories.
    hosts, alone = ~network.repository, len(network.tiers) == 1
    group = np.full(len(network.nodes), -1)
    if not alone:
        tiers, group[hosts] = np.unique(network.tier[hosts], return_inverse=True)
        names = [network.tiers[tier] for tier in tiers]
    elif hosts.sum() <= _MOST_ROWS:
        group[hosts] = np.arange(hosts.sum())
        names = [network.nodes[v] for v in np.flatnonzero(hosts)]
    else:
        group[hosts] = 0
        names = ["all nodes"]
    counts = np.zeros((len(names), len(order)))
    row = group[pairs.node]
    held = row >= 0
    np.add.at(counts, (row[held], models.variant[pairs.model][held]), presence[held])
    nodes = np.bincount(group[hosts], minlength=len(names))
    values = (counts / np.maximum(nodes, 1)[:, None])[:, order]
    if alone and values.any():  # a node that holds nothing needs no row
        shown = np.flatnonzero(values.any(axis=1))
        names, values = [names[row] for row in shown], values[shown]
    return Grid(title, names, columns, values)


def heat_maps(
    grids: Sequence[Grid], *, label: str, title: str = "", across: str = "variant"
) -> Figure:
    """Draw heat maps below each other, with one scale for all.

    Parameters
    ----------
    grids
        At least one.
    label
        What the colors mean.
    title
        Above them all.
    across
        What the columns are.

    Returns
    -------
    figure
        For `inferway.experiments.figure.save`.
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
                if columns * max(rows) <= _MOST_NUMBERS and value >= 0.05 * top:
                    color = "white" if value > 0.6 * top else "#222222"
                    text = f"{value:.2g}" if value < 10 else f"{value:.0f}"
                    axes.text(column, row, text, ha="center", va="center", color=color, fontsize=7)
        every[-1, 0].set_xlabel(across)
        figure.colorbar(image, ax=list(every[:, 0]), label=label, fraction=0.04, pad=0.02)
        return figure
