"""Names and looks of the schedulers, and intervals over few trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from inferway.experiments.curves import Drawing
from inferway.studies import Results

# By row; `hand` and `deadline` are ours.
LABELS = {
    "lw": "LW",
    "hw": "HW",
    "hw-e": "HW-E",
    "rl-po": "RL-PO",
    "rl-po-seed-1": "RL-PO, seed 1",
    "rl-po-seed-2": "RL-PO, seed 2",
    "rl-fo": "RL-FO",
    "rl-po-b": "RL-PO-B",
    "rl-fo-b": "RL-FO-B",
    "paper-rl-po": "RL-PO, the paper's settings",
    "paper-rl-fo": "RL-FO, the paper's settings",
    "sq": "SQ, heavy first",
    "sq-uniform": "SQ, any idle",
    "sa": "SA",
    "infaas": "InFaaS",
    "hand": "hand rule",
    "deadline": "deadline",
}

_TEXT = 8


def half_width(results: Results, column: str, **label: object) -> float:
    """Half the 95 % interval of a mean over trials (Student's t); NaN for fewer than two."""
    values = [float(row[column]) for row in results.where(**label).rows if column in row]
    if len(values) < 2:
        return math.nan
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(stdtrit(len(values) - 1, 0.975)) * error


def written(results: Results, column: str, **label: object) -> str:
    """A mean in percent with its interval."""
    mean, half = results.measure(column, **label).mean, half_width(results, column, **label)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.2f}" if math.isnan(half) else f"{100 * mean:.2f} +- {100 * half:.2f}"


@dataclass(frozen=True)
class Dots:
    """A column of the figure: values by row, measured with half their intervals, and printed."""

    title: str
    measured: Sequence[float]
    error: Sequence[float]
    printed: Sequence[float] = ()  # none where the paper has no such column


def dots(rows: Sequence[str], columns: Sequence[Dots], *, title: str) -> Drawing:
    """Draw values by row: measured filled, printed hollow.

    Parameters
    ----------
    rows
        Their names, from the top.
    columns
        Panels side by side.
    title
        Above them.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    from inferway.experiments.figure import COLORS, STYLE

    with mpl.rc_context({**STYLE, "font.size": _TEXT + 1}):
        figure = Canvas(
            figsize=(3.2 * len(columns) + 1, 0.24 * len(rows) + 1.2), layout="constrained"
        )
        FigureCanvasAgg(figure)
        places = np.arange(len(rows))[::-1]
        for number, column in enumerate(columns):
            axes = figure.add_subplot(1, len(columns), number + 1)
            axes.grid(axis="both", color="#DDDDDD", linewidth=0.6)
            axes.set_axisbelow(True)
            axes.errorbar(
                column.measured,
                places,
                xerr=np.nan_to_num(np.asarray(column.error, float)),
                fmt="o",
                color=COLORS[0],
                markersize=4.5,
                elinewidth=1.0,
                capsize=2,
                label="measured",
            )
            axes.plot(
                column.printed,
                places[: len(column.printed)],
                "D",
                color=COLORS[1],
                fillstyle="none",
                markersize=6.5,
                label="printed",
            )
            axes.set_ylim(-0.6, len(rows) - 0.4)
            axes.set_yticks(places, rows if number == 0 else [""] * len(rows))
            axes.set_title(column.title, loc="left", fontsize=_TEXT + 2)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=_TEXT + 3)
        if any(column.printed for column in columns):
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return figure
