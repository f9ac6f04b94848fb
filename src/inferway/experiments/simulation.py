"""A simulation that can be looked at: its frame, its figure, its tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from inferway import twin
from inferway.experiments.text import (
    Drawing,
    Laid,
    Shown,
    noted,
    number,
    percent,
    points,
    relative,
    seconds,
    shown_as,
    table,
    text,
    totals,
)
from inferway.twin.result import AssignResult, Comparison, TaskResult, TwinResult

_LAST: Final = 5  # Decisions of a placement policy that are shown
_SHOWN: Final = (
    *("task", *(f"response_time_s.{name}" for name in ("mean", "p50", "p95", "p99"))),
    *("accuracy.mean", "accuracy_target", "rejected", "dropped", "late", "rate_per_s", "queries"),
    "stable",
)


@dataclass(frozen=True)
class SimulationResult(TwinResult, Shown):
    """The simulation that `inferway.simulate` gives."""

    def plot(self) -> Drawing:
        """Draw who answered and how quickly, by variant; of a network, its gain over time."""
        if self.network is not None:
            from inferway.experiments.networks import over_time

            return over_time(self.network, title=self.network.policy)
        from inferway.experiments.figure import Bars, bars

        shown = []
        for name, one in self.tasks.items():
            names, of = list(one.classes), one.classes.values()
            busy = {
                "of the answers": [part.share for part in of],
                "of its time busy": [part.utilization for part in of],
            }
            times_s = {
                "mean": [part.response_time_s for part in of],
                "p95": [part.p95_s for part in of],
            }
            shown += [
                Bars(f"task {name}", "share", names, busy),
                Bars("", "response time, s", names, times_s),
            ]
        return bars(shown)

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        if self.network is not None:
            return str(frame.describe().to_html())
        return str(frame[[one for one in _SHOWN if one in frame]].T.to_html(header=False))

    def __str__(self) -> str:
        if self.network is not None:
            from inferway.experiments import networks

            return text(*networks.tables(self.network))
        return text(*tables(self))


simulate = shown_as(SimulationResult, twin.simulate)


def tables(result: TwinResult) -> Iterator[Laid]:
    """Tables of each task's simulation, and of all tasks together."""
    from rich.text import Text

    parts = [task(name, one) for name, one in result.tasks.items()]
    parts += [totals(result.totals), _moved(result.placement)]
    if result.not_begun:
        named = ", ".join(result.not_begun)
        parts.append(noted([f"interrupted before these had begun, so nothing is totaled: {named}"]))
    for place, part in enumerate(one for one in parts if one):
        yield from [*([Text()] if place else []), *part]


def _moved(result: AssignResult | None) -> list[Laid]:
    """Lay out which devices have changed hands."""
    from rich.text import Text

    if result is None:
        return []
    told = f"{result.slots} slots of {seconds(result.slot_s)}"
    rows = [
        ["goodput of any copies, at most", percent(result.bound, 2)],
        *([f"copies of {name}, mean", f"{mean:.3g}"] for name, mean in result.copies.items()),
    ]
    laid: list[Laid] = [table("Devices", ["", "twin"], rows, caption=f"Over {told}.")]
    moves = [
        [seconds(one["at_s"]), f"{_side(move['from'])} to {_side(move['to'])}", one["reason"]]
        for one in result.decisions[-_LAST:]
        for move in one["moves"]
    ]
    if moves:
        name = "Would be moved" if result.dry_run else "Moved"
        count = len(result.decisions)
        caption = f"The last {_LAST} of {count} decisions." if count > _LAST else None
        laid += [Text(), table(name, ["at", "device", "why"], moves, caption=caption)]
    return laid


def _side(copy: dict[str, str] | None) -> str:
    return "nothing" if copy is None else f"{copy['variant']} on {copy['device']}"


def task(name: str, result: TaskResult) -> list[Laid]:
    """Tables of one task's simulation."""
    from rich.text import Text

    if result.trace is not None:
        return [_trace(name, result.trace), *noted(result.trace.notes), *noted(result.notes)]
    phases = [Text(), _phases(result)] if len(result.phases) > 1 else []
    return [_whole(name, result), *noted(result.notes), Text(), _variants(result), *phases]


def _trace(name: str, found: Comparison) -> Laid:
    live, twin, profiled = found.live, found.twin, found.profiled
    error, other = found.error, found.profiled_error
    rows = [
        [what, *(seconds(s) for s in of_live), relative(one), seconds(by_profiles_s), relative(two)]
        for what, *of_live, one, by_profiles_s, two in (
            ("mean", live.mean_s, twin.mean_s, error.mean, profiled.mean_s, other.mean),
            ("p95", live.p95_s, twin.p95_s, error.p95, profiled.p95_s, other.p95),
        )
    ]
    correct = [number(one.accuracy, "{:.4f}") for one in (live, twin, profiled)]
    wrong = [points(one.accuracy) for one in (error, other)]
    rows.append(["accuracy", *correct[:2], wrong[0], correct[2], wrong[1]])
    sides = (live, twin, profiled)
    parts = {
        (what, 2, 0.0): [getattr(one, what) for one in sides] for what in ("rejected", "dropped")
    }
    parts |= {
        (f"by {variant}", 1, 0.0005): [one.shares.get(variant, 0.0) for one in sides]
        for variant in twin.shares
    }
    for (what, digits, least), values in parts.items():
        if max(values) >= least and max(values) > 0:
            shown = [percent(part, digits) for part in values]
            rows.append([what, *shown[:2], "", shown[2], ""])
    return table(
        f"Task {name}, live against twin",
        ["", "live", "twin", "error", "by profiles", "error"],
        rows,
        caption=(
            f"{live.queries:,} recorded requests, from dispatch to answer. The twin has their "
            "arrivals and draws service times from those of the very same recording; by profiles, "
            "it has those of the file."
        ),
    )


def _whole(name: str, result: TaskResult) -> Laid:
    accuracy, response = result.accuracy, result.response_time_s
    lost = {"rejected": result.rejected, "dropped": result.dropped, "late": result.late}
    target = result.accuracy_target
    rows = [
        ["response time, mean", f"{seconds(response.mean)} ± {seconds(1.96 * response.stderr)}"],
        ["response time, p50", seconds(result.p50_s)],
        ["response time, p95", seconds(result.p95_s)],
        ["response time, p99", seconds(result.p99_s)],
        ["accuracy", number(accuracy.mean, f"{{:.5f}} ± {1.96 * accuracy.stderr:.1g}")],
        *([] if target is None else [["accuracy target", f"{target:g}"]]),
        *_drifted(result),
        *([what, percent(part, 3)] for what, part in lost.items() if part > 0),
        ["goodput", percent(result.goodput, 2)],
        ["in the system, mean", f"{result.in_system:.4g}"],
        *([f"{name}, in use", percent(used, 1)] for name, used in (result.devices or {}).items()),
        *(
            [f"{name}, changes of its variant", f"{rate:.4g}/s"]
            for name, rate in (result.changes_per_s or {}).items()
        ),
        ["arrival rate", f"{result.rate_per_s:.6g}/s"],
        ["requests", f"{result.queries:,}"],
        ["and before, to warm up", f"{result.warmup:,}"],
        ["per CPU second", f"{result.queries_per_cpu_s / 1e6:.2g} M ({result.engine})"],
    ]
    nothing = None if any(part > 0 for part in lost.values()) else "None rejected, dropped or late."
    return table(f"Task {name}, simulated", ["", "twin"], rows, caption=nothing)


def _drifted(result: TaskResult) -> list[list[str]]:
    """Lay out what is true of the answers where a variant's accuracy has changed."""
    found = result.drift
    if found is None:
        return []
    last = f"{number(found.last_mean, '{:.4f}')} ± {number(found.half_width, '{:.2g}')}"
    return [
        ["promise by", found.by],
        [f"true accuracy until {found.at_s:g} s", number(found.before, "{:.5f}")],
        [f"and after, {found.variant} drifted", number(found.after, "{:.5f}")],
        *([["compared", f"{found.compared:,}"]] if found.compared else []),
        [f"by the last {found.last_labels:,} labels", last],
        ["alarm after, s", number(found.alarm_s, "{:.0f}")],
    ]


def _variants(result: TaskResult) -> Laid:
    rows = [
        [
            name,
            percent(one.share, 2),
            percent(one.utilization, 1),
            seconds(one.response_time_s),
            seconds(one.p95_s),
        ]
        for name, one in result.classes.items()
        if one.share > 0
    ]
    idle = ", ".join(name for name, one in result.classes.items() if not one.share > 0)
    return table(
        "By variant",
        ["variant", "share", "busy", "mean", "p95"],
        rows,
        caption=f"No answer from {idle}." if idle else None,
    )


def _phases(result: TaskResult) -> Laid:
    columns = ["phase", "rate", "target", "accuracy", "mean", "p95", "lost or late"]
    rows = [
        [
            str(place),
            "" if one.rate_per_s is None else f"{one.rate_per_s:.4g}/s",
            "" if one.accuracy_target is None else f"{one.accuracy_target:g}",
            number(one.accuracy, "{:.4f}"),
            seconds(one.response_time_s),
            seconds(one.p95_s),
            percent(one.violation_ratio, 2),
        ]
        for place, one in enumerate(result.phases, 1)
    ]
    blank = {
        "target": all(one.accuracy_target is None for one in result.phases),
        "lost or late": not any(one.violation_ratio > 0 for one in result.phases),
    }
    kept = [place for place, column in enumerate(columns) if not blank.get(column)]
    shown = [[row[place] for place in kept] for row in rows]
    return table("By phase of arrival", [columns[place] for place in kept], shown)
