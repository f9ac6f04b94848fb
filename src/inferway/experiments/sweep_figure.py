"""A sweep's figure: response time and accuracy against its first numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from inferway.experiments.axis import Axis
from inferway.experiments.curves import Curve, Panel, panels
from inferway.experiments.figure import COLORS

_LOOSE: Final = 0.5
"""Half the 95 % interval over the mean, above which a mean is none."""
_DASHES: Final = ("-", "--", ":", "-.")
_WIDE: Final = 20.0
"""Largest over smallest from which an axis is logarithmic."""
_LEAST_SPAN: Final = 0.01
"""Of accuracies from the bottom of the figure to its top."""
_MOST_TARGETS: Final = 4
_MOST_MARKERS: Final = 40
_NAMES: Final = {"load": "load", "rate": "arrival rate, 1/s", "accuracy_target": "accuracy target"}


def figure(axes: Sequence[Axis], frame: pd.DataFrame, title: str = "") -> Figure | None:
    """Draw two panels per task; None where no key has several numbers.

    The first key with numbers goes across, and each combination of the others is a line. The LP's
    bound is black. Points at which the site is unstable, or so near to it that the mean has not
    settled, are hollow and at the frame at most: their means say how long was simulated.
    """
    across = next((one for one in axes if one.numeric and len(one.values) > 1), None)
    if across is None or "response_time_s.mean" not in frame:
        return None
    others = [one for one in axes if one is not across]
    frame = frame[frame["response_time_s.mean"].notna()]
    if frame.empty:
        return None
    shown: list[Panel] = []
    tasks = list(dict.fromkeys(frame["task"]))
    for task in tasks:
        rows = frame[frame["task"] == task]
        head = f"task {task}" if len(tasks) > 1 else ""
        shown += [_times(head, rows, across, others), _accuracies(head, rows, across, others)]
    return panels(shown, columns=2, title=title)


def _times(head: str, rows: pd.DataFrame, across: Axis, others: Sequence[Axis]) -> Panel:
    told = rows[settled(rows)]
    known = (told if len(told) else rows)["response_time_s.mean"].astype(float)
    least = rows["bound.response_time_s"].dropna().astype(float)
    every = np.concatenate([known, least[least > 0]])
    low, high = float(every.min()), float(every.max())
    unit, size = ("s", 1.0) if high >= 1.0 else ("ms", 1e3) if high >= 1e-3 else ("µs", 1e6)
    wide = high > _WIDE * low
    curves = _bounds(rows, across, others, size)
    curves += _lines(rows, across, others, "response_time_s", size)
    space = 0.08 * max(high - low, 0.1 * high)
    ends = (low / 1.3, high * 1.3) if wide else (max(0.0, low - space), high + space)
    return Panel(
        title=head,
        across=_across(across),
        up=f"mean response time, {unit}",
        curves=curves,
        scale_across=_scale(across),
        scale_up="log" if wide else "linear",
        limits_up=(size * ends[0], size * ends[1]),
    )


def _accuracies(head: str, rows: pd.DataFrame, across: Axis, others: Sequence[Axis]) -> Panel:
    curves = _lines(rows, across, others, "accuracy", 1.0)
    given = rows.get("accuracy_target", pd.Series(dtype=float)).dropna().astype(float)
    targets = sorted(given.unique().tolist())
    x = [value.number for value in across.values if value.number is not None]
    if across.key == "accuracy_target":
        curves.insert(0, Curve("target", targets, targets, dash=":"))
    elif len(targets) <= _MOST_TARGETS:
        curves[:0] = [
            Curve("target", [min(x), max(x)], [target, target], dash=":") for target in targets
        ]
    every = [*rows["accuracy.mean"].dropna().astype(float), *targets]
    # Differences of a thousandth are noise to the eye of whoever promised an accuracy.
    middle, half = (min(every) + max(every)) / 2, (max(every) - min(every)) / 2
    half = max(1.1 * half, _LEAST_SPAN / 2)
    return Panel(
        title=head,
        across=_across(across),
        up="mean accuracy of the answers",
        curves=curves,
        scale_across=_scale(across),
        limits_up=(middle - half, middle + half),
    )


def _lines(
    rows: pd.DataFrame, across: Axis, others: Sequence[Axis], what: str, size: float
) -> list[Curve]:
    found = []
    for place, (label, group) in enumerate(_combinations(rows, others)):
        own = group.sort_values(across.key)
        error = 1.96 * size * own[f"{what}.stderr"].astype(float)
        found.append(
            Curve(
                label or "twin",
                own[across.key].tolist(),
                (size * own[f"{what}.mean"].astype(float)).tolist(),
                error=error.tolist(),
                hollow=(~settled(own)).tolist(),
                color=place,
                dash=_DASHES[(place // len(COLORS)) % len(_DASHES)],
                markers=len(across.values) <= _MOST_MARKERS,
            )
        )
    return found


def _bounds(rows: pd.DataFrame, across: Axis, others: Sequence[Axis], size: float) -> list[Curve]:
    """The bound knows neither policy nor seed; a line for each combination of the rest."""
    rest = [one for one in others if one.key not in ("policy", "seed")]
    found: list[Curve] = []
    for label, group in _combinations(rows, rest):
        own = group.drop_duplicates(across.key).sort_values(across.key)
        own = own[own["bound.response_time_s"].notna()]
        x = own[across.key].tolist()
        y = (size * own["bound.response_time_s"].astype(float)).tolist()
        if not x or any(curve.x == x and curve.y == y for curve in found):
            continue
        name = f"LP bound, {label}" if label else "LP bound"
        found.append(Curve(name, x, y, dash=_DASHES[len(found) % len(_DASHES)]))
    return found


def _combinations(rows: pd.DataFrame, axes: Sequence[Axis]) -> list[tuple[str, pd.DataFrame]]:
    if not axes:
        return [("", rows)]
    groups = rows.groupby([one.key for one in axes], sort=False)
    return [(_label(axes, name), own) for name, own in groups]


def _label(axes: Sequence[Axis], values: Any) -> str:
    """A policy by its name, other keys by both; what has one value in all is left out."""
    parts = []
    for one, value in zip(axes, values, strict=True):
        if len(one.values) == 1:
            continue
        text = f"{value:g}{one.unit}" if isinstance(value, float) else str(value)
        parts.append(text.rpartition("/")[2] if one.key == "policy" else f"{one.key}={text}")
    return ", ".join(parts)


def _across(one: Axis) -> str:
    return _NAMES.get(one.key, f"{one.key}, {one.unit}" if one.unit.strip() else one.key)


def _scale(one: Axis) -> Any:
    numbers = [value.number for value in one.values if value.number is not None]
    if min(numbers) <= 0 or len(numbers) < 3:
        return "linear"
    steps = np.diff(np.log(sorted(numbers)))
    wide = max(numbers) > _WIDE * min(numbers)
    return "log" if wide and math.isclose(steps.max(), steps.min(), rel_tol=0.2) else "linear"


def settled(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which rows have a mean that can be told: stable, and not so near the edge that it drifts."""
    mean = rows["response_time_s.mean"].astype(float)
    spread = 1.96 * rows["response_time_s.stderr"].astype(float).fillna(0.0)
    return rows["stable"].eq(other=True) & (spread <= _LOOSE * mean)
