"""A sweep's figure: response time and accuracy against its first numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from inferway.report.curves import Curve, Panel, panels
from inferway.report.sweep import Axis, Sweep

_DASHES: Final = ("-", "--", ":", "-.")
_WIDE: Final = 20.0
"""Largest over smallest from which an axis is logarithmic."""
_NAMES: Final = {"load": "load", "rate": "arrival rate, 1/s", "accuracy_target": "accuracy target"}


def figure(sweep: Sweep, title: str = "") -> Figure | None:
    """Draw two panels per task; None where no key has several numbers.

    The first key with numbers goes across, and each combination of the others is a line. The LP's
    bound is black. Points at which the site is unstable are hollow and at the frame at most: their
    means say how long was simulated.
    """
    across = next((one for one in sweep.axes if one.numeric and len(one.values) > 1), None)
    if across is None or "response_time_s.mean" not in sweep.frame:
        return None
    others = [one for one in sweep.axes if one is not across]
    frame = sweep.frame[sweep.frame["response_time_s.mean"].notna()]
    if frame.empty:
        return None
    shown: list[Panel] = []
    tasks = list(dict.fromkeys(frame["task"]))
    for task in tasks:
        rows = frame[frame["task"] == task]
        head = f"{task}: " if len(tasks) > 1 else ""
        shown += [
            _times(head, rows, across, others),
            _accuracies(head, rows, across, others),
        ]
    return panels(shown, columns=2, title=title)


def _times(head: str, rows: pd.DataFrame, across: Axis, others: Sequence[Axis]) -> Panel:
    stable = rows[rows["stable"]]
    known = (stable if len(stable) else rows)["response_time_s.mean"]
    least = rows["bound.response_time_s"].dropna()
    every = np.concatenate([known, least[least > 0]])
    low, high = float(every.min()), float(every.max())
    unit, size = ("s", 1.0) if high >= 1.0 else ("ms", 1e3) if high >= 1e-3 else ("µs", 1e6)
    wide = high > _WIDE * low
    curves = _bounds(rows, across, others, size)
    curves += _lines(rows, across, others, "response_time_s", size)
    margin = 1.3 if wide else 1.06
    bottom = size * low / margin if wide else max(0.0, size * (low - 0.08 * (high - low)))
    top = size * high * margin if high > low else size * high * 1.5
    return Panel(
        title=f"{head}mean response time",
        across=_across(across),
        up=unit,
        curves=curves,
        scale_across=_scale(across),
        scale_up="log" if wide else "linear",
        limits_up=(bottom, top),
    )


def _accuracies(head: str, rows: pd.DataFrame, across: Axis, others: Sequence[Axis]) -> Panel:
    given = rows.get("accuracy_target", pd.Series(dtype=float))
    targets = given.dropna().unique().tolist()
    curves = _lines(rows, across, others, "accuracy", 1.0)
    levels = []
    if across.key == "accuracy_target":
        ends = sorted(float(one) for one in targets)
        curves.insert(0, Curve("target", ends, ends, dash="--"))
    elif len(targets) <= 4:
        levels = [(f"target {one:g}", float(one)) for one in targets]
    return Panel(
        title=f"{head}mean accuracy of the answers",
        across=_across(across),
        up="",
        curves=curves,
        levels=levels,
        scale_across=_scale(across),
    )


def _lines(
    rows: pd.DataFrame, across: Axis, others: Sequence[Axis], what: str, size: float
) -> list[Curve]:
    found = []
    for place, (label, own) in enumerate(_combinations(rows, others)):
        own = own.sort_values(across.key)
        error = 1.96 * size * own[f"{what}.stderr"].astype(float)
        found.append(
            Curve(
                label or "twin",
                own[across.key].tolist(),
                (size * own[f"{what}.mean"]).tolist(),
                error=error.tolist(),
                hollow=(~own["stable"].astype(bool)).tolist(),
                color=place,
                dash=_DASHES[(place // 7) % len(_DASHES)],
                markers=len(across.values) <= 40,
            )
        )
    return found


def _bounds(rows: pd.DataFrame, across: Axis, others: Sequence[Axis], size: float) -> list[Curve]:
    """The bound knows neither policy nor seed; a line for each combination of the rest."""
    rest = [one for one in others if one.key not in ("policy", "seed")]
    found: list[Curve] = []
    for label, own in _combinations(rows, rest):
        own = own.drop_duplicates(across.key).sort_values(across.key)
        own = own[own["bound.response_time_s"].notna()]
        x, y = own[across.key].tolist(), (size * own["bound.response_time_s"]).tolist()
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
