"""Bars by name, several of them beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from inferway.experiments.figure import COLORS, STYLE

_WIDTH: Final = 0.8
"""Of all bars of a name, where the next name is 1 away."""
_MARK: Final[Any] = {
    "linestyle": "none",
    "marker": "D",
    "markersize": 6,
    "markerfacecolor": "white",
    "markeredgecolor": "black",
}
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
    marks
        For some of these labels, what is marked beside each bar, such as a prediction.
    marked
        Label of the marks.
    top
        Upper end of the axis; None for the data's.
    """

    title: str
    up: str
    names: Sequence[str]
    heights: Mapping[str, Sequence[float]]
    marks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    marked: str = ""
    top: float | None = None


def bars(shown: Sequence[Bars], *, columns: int = 2, width: float = 3.6) -> Figure:
    """Draw them in rows, each `width` inches wide and with a legend if it has several labels."""
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    with mpl.rc_context({**STYLE, "font.size": 10}):
        figure = Figure(figsize=(width * columns + 0.4, 2.9 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        for place, one in enumerate(shown):
            axes = figure.add_subplot(rows, columns, place + 1)
            each = _WIDTH / len(one.heights)
            across = np.arange(len(one.names))
            for index, (label, heights) in enumerate(one.heights.items()):
                shift = (index - (len(one.heights) - 1) / 2) * each
                color = COLORS[index % len(COLORS)]
                axes.bar(across + shift, np.nan_to_num(heights), each, color=color, label=label)
                if label in one.marks:
                    named = one.marked if label == list(one.marks)[-1] else None
                    axes.plot(across + shift, one.marks[label], label=named, **_MARK)
            axes.set_xticks(across, one.names)
            if len(one.names) > _MOST_LEVEL:
                axes.tick_params("x", rotation=90)
            axes.set_title(one.title, loc="left", fontsize=10)
            axes.set_ylabel(one.up)
            if one.top is not None:
                axes.set_ylim(0.0, one.top)
            if len(one.heights) > 1:
                axes.legend(frameon=False, fontsize=9)
        return figure
