"""Figures with matplotlib's objects, no global state: their look, trade-offs, and bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from inferway.look import colors

# The look's, so that a page can show them in its own light.
INK: Final = colors()["--ink"]
SOFT: Final = colors()["--soft"]
GRID: Final = colors()["--line"]
COLORS: Final = tuple(colors()[f"--mark-{place}"] for place in range(7))
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
# What all figures have in common, for `matplotlib.rc_context`.
STYLE: Final[Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    # Named with each text of an SVG, so that matplotlib's own list of ten is a third of the file.
    "font.sans-serif": ["DejaVu Sans", "Verdana"],
    "svg.fonttype": "none",
    "svg.hashsalt": "inferway",
}


@contextmanager
def canvas(width: float, height: float, title: str = "", font: float = 10) -> Iterator[Figure]:
    """Yield a figure of so many inches to draw on; a title gets the size that fits its width."""
    with mpl.rc_context({**STYLE, "font.size": font}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        if title:
            size = min(12.0, 105 * width / len(title))
            figure.suptitle(title, fontsize=size, fontweight="bold", x=0.01, ha="left")


def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write a figure as PNG and SVG, whatever suffix `path` has; its folder is made if needed.

    The PNG has 256 colors, which such figures do not use up, and so less than half of the bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    with mpl.rc_context(STYLE):
        figure.savefig(png, dpi=160)
        figure.savefig(svg, metadata={"Date": None})
    with Image.open(png) as drawn:
        few = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(png, optimize=True)
    return png, svg


class Mark(NamedTuple):
    """One policy: measured accuracy with its interval, 0..1, and latency."""

    label: str
    accuracy: float
    interval: tuple[float, float]
    latency_s: float
    tail_s: float | None = None  # a higher percentile, drawn as a whisker upwards


def trade_off(
    points: Sequence[Mark],
    *,
    bounds: Mapping[str, Sequence[tuple[float, float]]] = MappingProxyType({}),
    target: float | None = None,
    title: str = "",
    latency_label: str = "latency",
) -> Figure:
    """Draw latency (logarithmic) against accuracy.

    Points without finite numbers are left out. `bounds` has lines by what they are called: pairs of
    an accuracy target and the least latency in seconds. The first is solid, others are dashed.
    `target` is a vertical line.
    """
    drawn = [one for one in points if one.accuracy == one.accuracy and one.latency_s > 0]
    lines = {label: line for label, line in bounds.items() if line}
    across = [end for one in drawn for end in one.interval]
    across += [goal for line in lines.values() for goal, _ in line]
    across += [] if target is None else [target]
    up = [one.latency_s for one in drawn] + [one.tail_s for one in drawn if one.tail_s]
    up += [latency_s for line in lines.values() for _, latency_s in line]
    with canvas(7.2, 4.6, font=STYLE["font.size"]) as figure:
        axes = figure.add_subplot()
        axes.set(yscale="log", xlabel="measured accuracy (95 % interval)", ylabel=latency_label)
        axes.grid(axis="y", which="major", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        for index, one in enumerate(drawn):
            low, high = one.interval
            tail_s = one.tail_s or one.latency_s
            axes.errorbar(
                [one.accuracy],
                [one.latency_s],
                xerr=[[max(one.accuracy - low, 0.0)], [max(high - one.accuracy, 0.0)]],
                yerr=None if one.tail_s is None else [[0.0], [max(tail_s - one.latency_s, 0.0)]],
                fmt=MARKERS[index % len(MARKERS)],
                color=COLORS[index % len(COLORS)],
                markersize=8,
                elinewidth=1.5,
                capsize=3,
                zorder=3,
            )
        for index, (label, line) in enumerate(lines.items()):
            dash: Any = (0, (5, 2)) if index else "-"
            axes.plot(*zip(*line, strict=True), color=INK, linewidth=1.5, linestyle=dash, zorder=2)
            axes.annotate(
                label,
                line[len(line) // 3],
                xytext=(0, -6 if index else 6),
                textcoords="offset points",
                ha="center",
                va="top" if index else "bottom",
            )
        if across:  # room for labels on the left, and no number touches the frame
            span = max(max(across) - min(across), 0.02)
            axes.set_xlim(min(across) - 0.3 * span, max(across) + 0.08 * span)
        if up:
            axes.set_ylim(min(up) / (1.6 if len(lines) < 2 else 3.0), max(up) * 1.8)
        if target is not None:
            axes.axvline(target, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
            axes.annotate(
                f"target {target:g}",
                (target, 0.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(-4, 4),
                textcoords="offset points",
                ha="right",
                va="bottom",
                color=SOFT,
            )
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(_time))
        if title:
            axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        _label(figure, axes, drawn)
        return figure


def _label(figure: Figure, axes: Axes, points: Sequence[Mark]) -> None:
    """Write each name left of its point, moved up or down where two would overlap."""
    figure.draw_without_rendering()  # settles where the axes are
    scale = 72 / figure.dpi
    at = [axes.transData.transform((p.interval[0], p.latency_s)) * scale for p in points]
    height: dict[int, float] = {}
    for i in sorted(range(len(points)), key=lambda i: float(at[i][1])):
        near = [height[j] for j in height if abs(at[j][0] - at[i][0]) < 130.0]
        height[i] = max([float(at[i][1]), *(one + 15.0 for one in near)])
    for i, point in enumerate(points):
        axes.annotate(
            point.label,
            (point.interval[0], point.latency_s),
            xytext=(-6, height[i] - at[i][1]),
            textcoords="offset points",
            ha="right",
            va="center",
            color=INK,
            fontweight="bold",
            # A patch and no outline: outlined letters would be shapes in the SVG, not text.
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1.0},
            zorder=4,
        )


def _time(value: float, _: int | None = None) -> str:
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
    size, unit = next((one for one in units if value >= 0.999 * one[0]), units[-1])
    return f"{value / size:g} {unit}"


class Bars(NamedTuple):
    """One pair of axes.

    Attributes
    ----------
    title, up
        Text above it, beside it.
    names
        Text below it.
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
    marks: Mapping[str, Sequence[float]] = {}
    marked: str = ""
    top: float | None = None


def bars(shown: Sequence[Bars], *, columns: int = 2, width: float = 3.6) -> Figure:
    """Draw them in rows, each `width` inches wide and with a legend if it has several labels."""
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    mark: Any = {"linestyle": "none", "marker": "D", "markersize": 6}
    mark |= {"markerfacecolor": "white", "markeredgecolor": INK}
    with canvas(width * columns + 0.4, 2.9 * rows) as figure:
        for place, one in enumerate(shown, 1):
            axes = figure.add_subplot(rows, columns, place)
            each = 0.8 / len(one.heights)  # where the next name is 1 away
            for index, (label, heights) in enumerate(one.heights.items()):
                across = np.arange(len(one.names)) + (index - (len(one.heights) - 1) / 2) * each
                color = COLORS[index % len(COLORS)]
                axes.bar(across, np.nan_to_num(heights), each, color=color, label=label)
                if label in one.marks:
                    named = one.marked if label == list(one.marks)[-1] else None
                    axes.plot(across, one.marks[label], label=named, **mark)
            axes.set_xticks(np.arange(len(one.names)), one.names)
            if len(one.names) > 6:  # more do not stand beside each other
                axes.tick_params("x", rotation=90)
            axes.set_title(one.title, loc="left", fontsize=10)
            axes.set_ylabel(one.up)
            if one.top is not None:
                axes.set_ylim(0.0, one.top)
            if len(one.heights) > 1:
                axes.legend(frameon=False, fontsize=9)
        return figure
