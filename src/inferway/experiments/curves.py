"""Figures of several panels with curves: measured points with their errors, and lines of theory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from inferway.experiments.results import Results
from inferway.experiments.text import Drawing as Drawing  # for all that draw
from inferway.look import colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

Axis = Literal["linear", "log"]
_SOFT: Final = colors()["--soft"]
_THEORY: Final = colors()["--ink"]


class Look(NamedTuple):
    """The look of one thing: legend, number of its color (-1 is theory's black), and line."""

    label: str
    color: int = -1
    dash: str = "-"

    def curve(self, x: Sequence[float], y: Sequence[float], **more: Any) -> Curve:
        """Make a curve of it."""
        return Curve(self.label, x, y, color=self.color, dash=self.dash, **more)

    def series(self, x: Sequence[float], y: Any) -> Curve:
        """Draw a dense curve, without markers."""
        return self.curve(x, list(y), markers=False)

    def flat(self, x: Sequence[float], level: float) -> Curve:
        """Draw the same level everywhere, without markers."""
        return self.series(x, [level] * len(x))

    def line(
        self,
        results: Results,
        column: str,
        *,
        scale: float = 1.0,
        stretch: float = 1.0,
        errors: bool = True,
        **axis: Sequence[Any],
    ) -> Curve:
        """Draw a column's means over the trials against one axis, with twice their standard errors.

        The column is multiplied by `scale`, the axis by `stretch`. Theory, and a curve without
        errors, has no points that are only marked.
        """
        ((across, values),) = axis.items()
        measured = [results.measure(column, **{across: value}) for value in values]
        x = values if stretch == 1.0 else [stretch * value for value in values]
        y = [scale * one.mean for one in measured]
        if self.color < 0 or not errors:
            return self.curve(x, y)
        unstable = [not one.stable for one in measured]
        return self.curve(x, y, error=[2 * scale * one.stderr for one in measured], hollow=unstable)


@dataclass(frozen=True)
class Curve:
    """Points of one thing, joined in the order given.

    Attributes
    ----------
    label
        In the legend, once for all panels.
    x, y
        Of equal length.
    error
        Half the whisker of each point; empty for none.
    hollow
        True for points that are only marked, with a hollow marker and unjoined: an unstable system
        has no mean. Empty for none.
    color
        Number of the color and marker; -1 is the black line of theory, without markers.
    dash
        matplotlib's line style.
    markers
        False for dense curves. A point alone is always marked, as it has no line.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] = ()
    hollow: Sequence[bool] = ()
    color: int = -1
    dash: str = "-"
    markers: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes
    ----------
    title, across, up
        Text above it, below it, beside it.
    curves
        Lines and points that it shows.
    levels
        Horizontal lines by name, such as a target.
    scale_across, scale_up
        Linear or logarithmic.
    limits_up, limits_across
        Ends of the vertical and the horizontal axis, where the data should not choose them.
    ticks_across
        Where to write numbers on the horizontal axis; empty for matplotlib's choice.
    """

    title: str
    across: str
    up: str
    curves: Sequence[Curve]
    levels: Sequence[tuple[str, float]] = ()
    scale_across: Axis = "linear"
    scale_up: Axis = "linear"
    limits_up: tuple[float, float] | None = None
    limits_across: tuple[float, float] | None = None
    ticks_across: Sequence[float] = ()


def lines(
    results: Results,
    column: str,
    looks: Mapping[Any, Look],
    by: str = "policy",
    **drawn: Any,
) -> list[Curve]:
    """Draw a `Look.line` for each value of the label `by` that has a look."""
    return [
        look.line(results.where(**{by: value}), column, **drawn) for value, look in looks.items()
    ]


def steady_values(curves: Sequence[Curve]) -> list[float]:
    """The values at all points that are known and not hollow."""
    return [
        y
        for curve in curves
        for y, hollow in zip(curve.y, curve.hollow or [False] * len(curve.y), strict=True)
        if not hollow and not math.isnan(y)
    ]


def frame(low: float, high: float, values: Sequence[float]) -> tuple[float, float]:
    """Limits at these multiples of the smallest and largest number; those of 1 without any."""
    known = [value for value in values if not math.isnan(value)] or [1.0]
    return low * min(known), high * max(known)


def panels(shown: Sequence[Panel], *, columns: int = 3, title: str = "") -> Drawing:
    """Draw panels in rows of so many columns, with one legend below them, and a title above."""
    from inferway.experiments.figure import canvas

    columns = min(columns, max(len(shown), 1))
    rows = max(1, math.ceil(len(shown) / columns))
    width = 3.6 * columns + 0.4
    keys: dict[str, Line2D] = {}
    with canvas(width, 2.9 * rows + 0.9, title) as figure:
        for place, panel in enumerate(shown, 1):
            _draw(figure.add_subplot(rows, columns, place), panel, keys)
        if keys:
            letters = max(map(len, keys)) + 8  # the line and the gap before it
            # Theory first, what is only marked last.
            figure.legend(
                handles=sorted(
                    keys.values(),
                    key=lambda key: (key.get_linestyle() == "None", key.get_color() != _THEORY),
                ),
                loc="outside lower center",
                ncols=max(1, min(len(keys), int(13.5 * width / letters))),
                frameon=False,
            )
        return figure


def _draw(axes: Axes, panel: Panel, keys: dict[str, Line2D]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, ScalarFormatter

    axes.set(xscale=panel.scale_across, yscale=panel.scale_up, xlabel=panel.across, ylabel=panel.up)
    axes.set_title(panel.title, loc="left", fontsize=10)
    axes.grid(axis="y", which="major", color=colors()["--line"], linewidth=0.8)
    axes.set_axisbelow(True)
    top = math.inf if panel.limits_up is None else panel.limits_up[1]
    for curve in panel.curves:
        _curve(axes, curve, top, keys)
    for name, level in panel.levels:
        axes.axhline(level, color=_SOFT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            name,
            (1.0, level),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color=_SOFT,
            fontsize=9,
        )
    limits = {"ylim": panel.limits_up, "xlim": panel.limits_across}
    axes.set(**{name: ends for name, ends in limits.items() if ends is not None})
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    for scale, axis in ((panel.scale_across, axes.xaxis), (panel.scale_up, axes.yaxis)):
        if scale == "linear":
            # Ticks that count from an offset are read wrongly.
            axis.set_major_formatter(ScalarFormatter(useOffset=False))
        else:
            axis.set_major_formatter(plain)
            axis.set_minor_formatter(NullFormatter())
    if panel.ticks_across:
        axes.set_xticks(list(panel.ticks_across))
        axes.xaxis.set_major_formatter(plain)


def _curve(axes: Axes, curve: Curve, top: float, keys: dict[str, Line2D]) -> None:
    from matplotlib.lines import Line2D

    from inferway.experiments.figure import COLORS, MARKERS

    theory = curve.color < 0
    color = _THEORY if theory else COLORS[curve.color % len(COLORS)]
    x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
    hollow = np.asarray(curve.hollow, bool) if len(curve.hollow) else np.zeros(len(x), bool)
    solid = ~hollow & np.isfinite(y)
    alone = solid.sum() == 1
    marked = alone or (curve.markers and not theory)
    look: dict[str, Any] = {
        "color": color,
        "linestyle": curve.dash,
        "linewidth": 1.5,
        "markersize": 4.5,
        "marker": MARKERS[curve.color % len(MARKERS)] if marked else "",
    }
    # Clipped, a marker alone would be half a one at 0.
    axes.plot(x[solid], y[solid], zorder=2 if theory else 3, clip_on=not alone, **look)
    if len(curve.error):
        error = np.nan_to_num(np.asarray(curve.error, float)[solid], posinf=0.0, neginf=0.0)
        axes.errorbar(
            x[solid], y[solid], yerr=error, fmt="none", ecolor=color, elinewidth=1.0, capsize=2
        )
    if hollow.any():
        axes.plot(
            x[hollow],
            np.fmin(y[hollow], top),  # what would lie above the frame is marked at it
            linestyle="none",
            marker=look["marker"] or "o",
            markersize=5.5,
            markerfacecolor="white",
            markeredgecolor=color,
            clip_on=False,
            zorder=4,
        )
        keys.setdefault(
            "unstable (hollow)",
            Line2D([], [], linestyle="none", marker="o", mfc="white", mec=_SOFT, label="unstable"),
        )
    keys.setdefault(curve.label, Line2D([], [], label=curve.label, **look))
