"""Bars by name, several of them beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from inferway.experiments.figure import COLORS, STYLE

__all__ = ["Bars", "bars"]

_WIDTH: Final = 0.8
"""Of all bars of a name, where the next name is 1 away."""
_MOST_LEVEL: Final = 6
"""So many names stand beside each other without being turned."""


@dataclass(frozen=True)
class Bars:
    """One pair of axes.

    Attributes
    ----------
    title, up
        Above it, beside it.
    names
        Below it.
    heights
        For each label in the legend, one number a name; NaN draws nothing.
    """

    title: str
    up: str
    names: Sequence[str]
    heights: Mapping[str, Sequence[float]]


def bars(shown: Sequence[Bars], *, columns: int = 2) -> Figure:
    """Draw them in rows, each with its own legend if it has several labels."""
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    with mpl.rc_context({**STYLE, "font.size": 10}):
        figure = Figure(figsize=(3.6 * columns + 0.4, 2.9 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        for place, one in enumerate(shown):
            axes = figure.add_subplot(rows, columns, place + 1)
            width = _WIDTH / len(one.heights)
            across = np.arange(len(one.names))
            for index, (label, heights) in enumerate(one.heights.items()):
                shift = (index - (len(one.heights) - 1) / 2) * width
                color = COLORS[index % len(COLORS)]
                axes.bar(across + shift, np.nan_to_num(heights), width, color=color, label=label)
            axes.set_xticks(across, one.names)
            if len(one.names) > _MOST_LEVEL:
                axes.tick_params("x", rotation=90)
            axes.set_title(one.title, loc="left", fontsize=10)
            axes.set_ylabel(one.up)
            if len(one.heights) > 1:
                axes.legend(frameon=False, fontsize=9)
        return figure
