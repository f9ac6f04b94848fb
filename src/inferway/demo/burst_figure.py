"""The burst demo's figure: goodput and violation ratio by scheduler and phase, live and twin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from inferway.demo.burst_load import PHASES
from inferway.demo.burst_result import SchedulerResult
from inferway.experiments.figure import COLORS, STYLE, save

_WIDTH = 0.38


def draw(path: Path, schedulers: Sequence[SchedulerResult]) -> tuple[Path, Path]:
    """Draw and save it; PNG and SVG."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        above, below = figure.subplots(2, 1, sharex=True)
        _bars(above, schedulers, "goodput")
        _bars(below, schedulers, "violation_ratio")
        above.set_ylabel("goodput ratio")
        below.set_ylabel("violation ratio")
        below.set_xticks(range(len(schedulers)), [one.scheduler for one in schedulers])
        above.set_title("Schedulers live, calm and under bursts, the same requests", fontsize=11)
        handles, labels = above.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return save(figure, path)


def _bars(axes: Axes, schedulers: Sequence[SchedulerResult], what: str) -> None:
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylim(0.0, 1.0)
    for place, phase in enumerate(PHASES):
        at = [number + (place - 0.5) * _WIDTH for number in range(len(schedulers))]
        heights = [getattr(one.phases[phase], what) for one in schedulers]
        axes.bar(at, heights, _WIDTH, color=COLORS[place], label=phase)
        twins = [(x, one.twin) for x, one in zip(at, schedulers, strict=True) if one.twin]
        axes.plot(
            [x for x, _ in twins],
            [getattr(twin[phase], what) for _, twin in twins],
            linestyle="none",
            marker="D",
            markersize=6,
            markerfacecolor="white",
            markeredgecolor="black",
            label="twin" if place else None,
        )
