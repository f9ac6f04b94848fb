"""A simulation that can be looked at: its frame, its figure, its tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from inferway import twin
from inferway.experiments.text import percent, seconds, shown_as, table, text
from inferway.twin.result import Result

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from inferway.experiments.sweep import Sweep
    from inferway.twin import TaskResult
    from inferway.twin.result import Comparison, Numbers

MOST_ROWS = 60
"""Points of a sweep that are shown; its files hold all."""
_SHOWN: Final = (
    "task",
    "response_time_s.mean",
    "response_time_s.p50",
    "response_time_s.p95",
    "response_time_s.p99",
    "accuracy.mean",
    "accuracy_target",
    "rejected",
    "dropped",
    "late",
    "rate_per_s",
    "queries",
    "stable",
)


@dataclass(frozen=True)
class SimulationResult(Result):
    """What `inferway.simulate` gives."""

    def plot(self) -> Figure:
        """Draw who answered and how quickly, by variant; of a network, its gain over time."""
        if self.network is not None:
            from inferway.experiments.networks import over_time

            return over_time(self.network, title=self.network.policy)
        from inferway.experiments.bars import Bars, bars

        shown = []
        for name, task in self.tasks.items():
            names = list(task.classes)
            of = task.classes.values()
            busy = {"of the answers": [one.share for one in of]}
            busy["of its time busy"] = [one.utilization for one in of]
            times_s = {
                "mean": [one.response_time_s for one in of],
                "p95": [one.p95_s for one in of],
            }
            shown += [
                Bars(f"task {name}", "share", names, busy),
                Bars("", "response time, s", names, times_s),
            ]
        return bars(shown)

    def _repr_html_(self) -> str:
        frame: pd.DataFrame = self.to_frame()
        if self.network is not None:
            return str(frame.describe().to_html())
        return str(frame[[one for one in _SHOWN if one in frame]].T.to_html(header=False))

    def __str__(self) -> str:
        if self.network is not None:
            from inferway.experiments.networks import tables

            return text(*tables(self.network))
        return "\n\n".join(text(*task(name, one)) for name, one in self.tasks.items())


simulate = shown_as(lambda found: SimulationResult(**vars(found)))(twin.simulate)


def task(name: str, result: TaskResult) -> list[RenderableType]:
    """Tables of one task's simulation."""
    from rich.text import Text

    if result.trace is not None:
        return [*trace(name, result.trace), *_notes(result.notes)]
    shown: list[RenderableType] = [_whole(name, result), *_notes(result.notes)]
    shown += [Text(), _variants(result)]
    if len(result.phases) > 1:
        shown += [Text(), _phases(result)]
    return shown


def trace(name: str, found: Comparison) -> list[RenderableType]:
    """Tables of a recording: live against twin."""
    live, twin, profiled = found.live, found.twin, found.profiled
    error, other = found.error, found.profiled_error
    rows = [
        ["mean", seconds(live.mean_s), *_against(twin.mean_s, error.mean, profiled, other.mean)],
        ["p95", seconds(live.p95_s), *_against(twin.p95_s, error.p95, profiled, other.p95, "p95")],
        [
            "accuracy",
            f"{live.accuracy:.4f}",
            f"{twin.accuracy:.4f}",
            points(error.accuracy),
            f"{profiled.accuracy:.4f}",
            points(other.accuracy),
        ],
    ]
    for what in ("rejected", "dropped"):
        parts = [getattr(one, what) for one in (live, twin, profiled)]
        if any(part > 0 for part in parts):
            shown = [percent(part, 2) for part in parts]
            rows.append([what, shown[0], shown[1], "", shown[2], ""])
    sent = [name for name in twin.shares if max(_shares(name, live, twin, profiled)) >= 0.0005]
    for variant in sent:
        shown = [percent(part, 1) for part in _shares(variant, live, twin, profiled)]
        rows.append([f"by {variant}", shown[0], shown[1], "", shown[2], ""])
    laid = table(
        f"Task {name}, live against twin",
        ["", "live", "twin", "error", "by profiles", "error"],
        rows,
        caption=(
            f"{live.queries:,} recorded requests, from dispatch to answer. The twin has their "
            "arrivals and draws service times from those of the very same recording; by profiles, "
            "it has those of the file."
        ),
    )
    return [laid, *_notes(found.notes)]


def sweep(found: Sweep) -> list[RenderableType]:
    """A table of a sweep's points, the first of them where there are many."""
    # Imported here: other tables need no pandas.
    from inferway.experiments.sweep_figure import settled

    keys = [one.key for one in found.axes]
    several = found.frame["task"].nunique() > 1
    simulated = "response_time_s.mean" in found.frame
    sure = settled(found.frame).tolist() if simulated else [False] * len(found.frame)
    known = found.frame["response_time_s.mean"].median() if simulated else 1.0
    unit, size = ("s", 1.0) if known >= 1.0 else ("ms", 1e3)
    rows = []
    for row, told in zip(found.frame.head(MOST_ROWS).to_dict("records"), sure, strict=False):
        cells = [
            f"{row[one.key]:.12g}{one.unit}" if one.numeric else str(row[one.key])
            for one in found.axes
        ]
        cells += [str(row["task"])] if several else []
        if isinstance(row.get("error"), str):
            rows.append([*cells, "failed", "", "", ""])
            continue
        times = (row[f"response_time_s.{what}"] for what in ("mean", "p95"))
        mean, p95, bound = (_scaled(time, size) for time in (*times, row["bound.response_time_s"]))
        mark = "" if told else "*"
        rows.append([*cells, f"{mark}{mean}", p95, bound, f"{row['accuracy.mean']:.5f}"])
    notes = []
    if len(found.frame) > MOST_ROWS:
        notes.append(f"{len(found.frame) - MOST_ROWS} more rows are in {found.file}.")
    if not all(sure) and simulated:
        notes.append("* unstable or nearly so: this mean says how long was simulated.")
    columns = [*keys, *(["task"] if several else [])]
    columns += [f"mean, {unit}", f"p95, {unit}", f"LP bound, {unit}", "accuracy"]
    left = [i for i, one in enumerate(found.axes) if not one.numeric]
    left += [len(keys)] if several else []
    return [table("Sweep", columns, rows, caption=" ".join(notes) or None, left=left)]


def points(difference: float) -> str:
    """Write a difference of accuracies in points: 0.0012 is `+0.12 pt`."""
    return f"{difference * 100:+.2f} pt" if math.isfinite(difference) else "-"


def relative(error: float) -> str:
    """Write a relative error: 0.034 is `+3.4 %`."""
    return f"{error * 100:+.1f} %" if math.isfinite(error) else "-"


def _against(
    twin_s: float, error: float, profiled: Numbers, other: float, what: str = "mean"
) -> list[str]:
    by_profiles_s = getattr(profiled, f"{what}_s")
    return [seconds(twin_s), relative(error), seconds(by_profiles_s), relative(other)]


def _shares(variant: str, *of: Numbers) -> list[float]:
    return [one.shares.get(variant, 0.0) for one in of]


def _scaled(value: object, size: float) -> str:
    if not isinstance(value, float) or not math.isfinite(value):
        return "-"
    return f"{value * size:.3f}" if size == 1.0 else f"{value * size:.2f}"


def _notes(notes: Sequence[str]) -> list[RenderableType]:
    from rich.text import Text

    return [Text(f"Note: {note}.", style="yellow") for note in notes]


def _whole(name: str, result: TaskResult) -> RenderableType:
    accuracy, response = result.accuracy, result.response_time_s
    rows = [
        ["response time, mean", f"{seconds(response.mean)} ± {seconds(1.96 * response.stderr)}"],
        ["response time, p50", seconds(result.p50_s)],
        ["response time, p95", seconds(result.p95_s)],
        ["response time, p99", seconds(result.p99_s)],
        ["accuracy", f"{accuracy.mean:.5f} ± {1.96 * accuracy.stderr:.1g}"],
    ]
    if result.accuracy_target is not None:
        rows.append(["accuracy target", f"{result.accuracy_target:g}"])
    lost = {"rejected": result.rejected, "dropped": result.dropped, "late": result.late}
    rows += [[what, percent(part, 3)] for what, part in lost.items() if part > 0]
    rows += [
        ["goodput", percent(result.goodput, 2)],
        ["in the system, mean", f"{result.in_system:.4g}"],
        ["arrival rate", f"{result.rate_per_s:.6g}/s"],
        ["requests", f"{result.queries:,}"],
        ["and before, to warm up", f"{result.warmup:,}"],
        ["per CPU second", f"{result.queries_per_cpu_s / 1e6:.2g} M ({result.engine})"],
    ]
    nothing = "" if any(part > 0 for part in lost.values()) else "None rejected, dropped or late."
    return table(f"Task {name}, simulated", ["", "twin"], rows, caption=nothing or None)


def _variants(result: TaskResult) -> RenderableType:
    used = {name: one for name, one in result.classes.items() if one.share > 0}
    idle = [name for name in result.classes if name not in used]
    rows = [
        [
            name,
            percent(one.share, 2),
            percent(one.utilization, 1),
            seconds(one.response_time_s),
            seconds(one.p95_s),
        ]
        for name, one in used.items()
    ]
    return table(
        "By variant",
        ["variant", "share", "busy", "mean", "p95"],
        rows,
        caption=f"No answer from {', '.join(idle)}." if idle else None,
    )


def _phases(result: TaskResult) -> RenderableType:
    targets = any(one.accuracy_target is not None for one in result.phases)
    lost = any(one.violation_ratio > 0 for one in result.phases)
    columns = ["phase", "rate", *(["target"] if targets else []), "accuracy", "mean", "p95"]
    rows = []
    for number, one in enumerate(result.phases, 1):
        row = [str(number), "" if one.rate_per_s is None else f"{one.rate_per_s:.4g}/s"]
        if targets:
            row.append("" if one.accuracy_target is None else f"{one.accuracy_target:g}")
        row += [f"{one.accuracy:.4f}", seconds(one.response_time_s), seconds(one.p95_s)]
        rows.append([*row, percent(one.violation_ratio, 2)] if lost else row)
    return table("By phase of arrival", [*columns, *(["lost or late"] if lost else [])], rows)
