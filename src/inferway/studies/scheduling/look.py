"""Names and looks of the schedulers, and intervals over few trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def half_width(results: Results, column: str, **label: object) -> float:
    """Half the 95 % interval of a mean over trials (Student's t); NaN for fewer than two."""
    values = [float(row[column]) for row in results.where(**label).rows if column in row]
    return half_interval(values, 1 / max(len(values), 1))


def half_interval(values: Sequence[float], variances: float) -> float:
    """Half a 95 % interval of so many of the values' variances (Student's t); NaN below two."""
    if len(values) < 2:
        return math.nan
    error = float(np.std(values, ddof=1)) * math.sqrt(variances)
    return float(stdtrit(len(values) - 1, 0.975)) * error


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Difference of two means, and half its 95 % interval; NaN for fewer than two values of either.

    It is that of B. L. Welch (Biometrika 34, 1947, doi 10.1093/biomet/34.1-2.28), as the variances
    may differ.
    """
    both = [np.array(one, float) for one in (first, second)]
    if min(map(len, both)) < 2:
        return math.nan, math.nan
    errors = [float(one.var(ddof=1)) / len(one) for one in both]
    difference, error = float(both[0].mean() - both[1].mean()), sum(errors)
    if not error:
        return difference, 0.0
    freedom = error**2 / sum(e**2 / (len(one) - 1) for e, one in zip(errors, both, strict=True))
    return difference, float(stdtrit(freedom, 0.975)) * math.sqrt(error)


def interval(low: float, high: float, method: str) -> dict[str, Any]:
    """An interval that a claim brings; nothing where its ends are no numbers."""
    known = not math.isnan(low + high)
    return {"low": low, "high": high, "method": method} if known else {}


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
    """Draw values by row, from the top, in panels side by side: measured filled, printed hollow."""
    from inferway.experiments.figure import COLORS, GRID, canvas

    places = np.arange(len(rows))[::-1]
    measured = {"fmt": "o", "markersize": 4.5, "elinewidth": 1.0, "capsize": 2}
    printed = {"marker": "D", "linestyle": "", "fillstyle": "none", "markersize": 6.5}
    with canvas(3.2 * len(columns) + 1, 0.24 * len(rows) + 1.2, title, 9) as figure:
        for number, column in enumerate(columns):
            axes = figure.add_subplot(1, len(columns), number + 1)
            axes.grid(axis="both", color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
            error = np.nan_to_num(np.asarray(column.error, float))
            look = {"xerr": error, "color": COLORS[0], "label": "measured", **measured}
            axes.errorbar(column.measured, places, **look)
            look = {"color": COLORS[1], "label": "printed", **printed}
            axes.plot(column.printed, places[: len(column.printed)], **look)
            axes.set_ylim(-0.6, len(rows) - 0.4)
            axes.set_yticks(places, rows if number == 0 else [""] * len(rows))
            axes.set_title(column.title, loc="left", fontsize=10)
        if any(column.printed for column in columns):
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        return figure
