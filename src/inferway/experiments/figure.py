"""Figures: latency against accuracy, drawn with matplotlib's objects, no global state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Told apart by color-blind readers, too (M. Okabe and K. Ito, Color Universal Design, 2008)."""

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")

STYLE: Final[Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#222222",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "svg.fonttype": "none",
    "svg.hashsalt": "inferway",
}
"""What all figures have in common, for ``matplotlib.rc_context``."""

_QUIET: Final = "#555555"
_LABEL_HEIGHT: Final = 15.0
_LABEL_WIDTH: Final = 130.0


@dataclass(frozen=True)
class Mark:
    """One policy.

    Attributes
    ----------
    label
        Written beside it.
    accuracy, interval
        Measured accuracy and its interval, 0..1.
    latency_s
        Latency, seconds.
    tail_s
        A higher percentile, drawn as a whisker upwards; None for none.
    """

    label: str
    accuracy: float
    interval: tuple[float, float]
    latency_s: float
    tail_s: float | None = None


def trade_off(
    points: Sequence[Mark],
    *,
    bound: Sequence[tuple[float, float]] = (),
    target: float | None = None,
    title: str = "",
    latency_label: str = "latency",
) -> Figure:
    """Draw latency (logarithmic) against accuracy.

    Parameters
    ----------
    points
        Policies; those without finite numbers are left out.
    bound
        Pairs (accuracy target, least latency in seconds), drawn as a line that nothing can get
        below.
    target
        Accuracy target, drawn as a vertical line.
    title
        Above the axes.
    latency_label
        What the vertical axis shows.

    Returns
    -------
    figure
        For `save`.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_yscale("log")
        axes.grid(axis="y", which="major", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        drawn = [p for p in points if p.accuracy == p.accuracy and p.latency_s > 0]
        for index, point in enumerate(drawn):
            _draw(axes, point, index)
        if bound:
            _bound(axes, bound)
        _limits(axes, drawn, bound, target)
        if target is not None:
            axes.axvline(target, color=_QUIET, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            axes.annotate(
                f"target {target:g}",
                (target, 0.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(-4, 4),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=_QUIET,
            )
        axes.set_xlabel("measured accuracy (95 % interval)")
        axes.set_ylabel(latency_label)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(_time))
        if title:
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        _label(figure, axes, drawn)
        return figure


def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write a figure as PNG and SVG.

    Parameters
    ----------
    figure
        What to write.
    path
        Where, without its suffix or with either; the folder is made if needed.

    Returns
    -------
    png, svg
        The files.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    with mpl.rc_context(STYLE):
        figure.savefig(png, dpi=160)
        figure.savefig(svg, metadata={"Date": None})
    return png, svg


def _draw(axes: Axes, point: Mark, index: int) -> None:
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    low, high = point.interval
    tail = [[0.0], [max((point.tail_s or point.latency_s) - point.latency_s, 0.0)]]
    axes.errorbar(
        [point.accuracy],
        [point.latency_s],
        xerr=[[max(point.accuracy - low, 0.0)], [max(high - point.accuracy, 0.0)]],
        yerr=tail if point.tail_s is not None else None,
        fmt=marker,
        color=color,
        markersize=8,
        elinewidth=1.5,
        capsize=3,
        zorder=3,
    )


def _label(figure: Figure, axes: Axes, points: Sequence[Mark]) -> None:
    """Write each name left of its point, moved up or down where two would overlap."""
    figure.draw_without_rendering()  # settles where the axes are
    scale = 72 / figure.dpi
    at = [axes.transData.transform((p.interval[0], p.latency_s)) * scale for p in points]
    order = sorted(range(len(points)), key=lambda i: float(at[i][1]))
    height: dict[int, float] = {}
    for place, i in enumerate(order):
        near = [j for j in order[:place] if abs(at[j][0] - at[i][0]) < _LABEL_WIDTH]
        height[i] = max([float(at[i][1]), *(height[j] + _LABEL_HEIGHT for j in near)])
    for i, point in enumerate(points):
        axes.annotate(
            point.label,
            (point.interval[0], point.latency_s),
            xytext=(-6, height[i] - at[i][1]),
            textcoords="offset points",
            ha="right",
            va="center",
            color=COLORS[i % len(COLORS)],
            fontweight="bold",
            # A patch and no outline: outlined letters would be shapes in the SVG, not text.
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
            zorder=4,
        )


def _bound(axes: Axes, bound: Sequence[tuple[float, float]]) -> None:
    accuracy, latency = zip(*bound, strict=True)
    axes.plot(accuracy, latency, color="#000000", linewidth=1.5, zorder=2)
    at = len(bound) // 3
    axes.annotate(
        "lower bound (LP)",
        (accuracy[at], latency[at]),
        xytext=(0, 6),
        textcoords="offset points",
        ha="center",
        va="bottom",
    )


def _limits(
    axes: Axes,
    points: Sequence[Mark],
    bound: Sequence[tuple[float, float]],
    target: float | None,
) -> None:
    """Leave room for labels on the left, and let no number touch the frame."""
    across = [end for p in points for end in p.interval] + [a for a, _ in bound]
    across += [] if target is None else [target]
    if across:
        span = max(max(across) - min(across), 0.02)
        axes.set_xlim(min(across) - 0.24 * span, max(across) + 0.08 * span)
    up = [p.latency_s for p in points] + [p.tail_s for p in points if p.tail_s]
    up += [latency for _, latency in bound]
    if up:
        axes.set_ylim(min(up) / 1.6, max(up) * 1.8)


def _time(value: float, _: int | None = None) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.999 * size:
            return f"{value / size:g} {unit}"
    return f"{value * 1e6:g} µs"
