"""TAD-OP without pairs that shuffle, and without singletons ([Anonymous], Sec. 5.2, 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Measure, Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing import CODE
from inferway.studies.queueing.system import FOUR_CLASSES, System, common, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WHOLE = "nothing"
_LABELS = {
    _WHOLE: ("TAD-OP", 0, "-"),
    "shuffles": ("without pairs that shuffle", 1, "--"),
    "singletons": ("without singletons", 2, "--"),
    "both": ("proper pairs only", 4, ":"),
}


@dataclass(frozen=True)
class Settings:
    """Ours. At 0.78 the bound uses a pair that shuffles from load 0.5 on, at 0.72 a singleton."""

    system: System = FOUR_CLASSES
    servers: int = 1024
    targets: tuple[float, ...] = (0.72, 0.76, 0.78)
    loads: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    without: tuple[str, ...] = (_WHOLE, "shuffles", "singletons", "both")
    queries: int = 100_000_000
    precision: float | None = None


def ablated(*, without: str, **arguments: Any) -> Mapping[str, Any]:
    """Simulate TAD-OP without some of its routing tuples; other arguments as `simulated`."""
    if without == _WHOLE:
        return simulated(policy="tad-op", **arguments)
    from inferway.studies.queueing.ablated import NAME

    return simulated(policy=NAME, options={"without": without}, **arguments)


def points(settings: Settings) -> list[Point]:
    """TAD-OP whole and ablated, at every target and load."""
    return grid(
        ablated,
        {**common(settings, "servers", "queries", "precision"), "seed": 1},
        seconds(settings.queries, settings.precision),
        without=settings.without,
        target=settings.targets,
        load=settings.loads,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Response time against load, a panel for each target."""
    from inferway.experiments.curves import Curve, Panel, panels

    shown, loads = [], settings.loads
    for target in settings.targets:
        here = results.where(target=target)
        bound = [here.measure("bound_s", load=load).mean for load in loads]
        curves = [Curve("bound (LP)", loads, bound)]
        for without in settings.without:
            label, color, dash = _LABELS[without]
            found = [here.measure("response_s", without=without, load=load) for load in loads]
            curves.append(
                Curve(
                    label,
                    loads,
                    [one.mean for one in found],
                    [2 * one.stderr for one in found],
                    [not one.stable for one in found],
                    color,
                    dash,
                )
            )
        known = [one for one in bound if not math.isnan(one)] or [1.0]
        shown.append(
            Panel(
                f"target {100 * target:g} %",
                "load",
                "mean response time, s",
                curves,
                limits_up=(0.9 * min(known), 2.5 * max(known)),
            )
        )
    title = f"TAD-OP without some routing tuples, {settings.servers} servers"
    return panels(shown, columns=3, title=title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What each kind of tuple is worth."""
    return [
        _matters(settings, results, "shuffles", "Sec. 6.1", "Pairs that shuffle are needed."),
        _matters(settings, results, "singletons", "Sec. 5.2", "Singletons are needed."),
    ]


def _matters(settings: Settings, results: Results, without: str, where: str, says: str) -> Claim:
    worst, at = math.nan, "no points are known"
    lost, where_lost = math.nan, ""
    for target in settings.targets:
        for load in settings.loads:
            whole, less = (
                results.where(without=name, target=target, load=load) for name in (_WHOLE, without)
            )
            found = _ratio(whole.measure("response_s"), less.measure("response_s"))
            if found == found and not found <= worst:
                worst = found
                at = f"target {target:g}, load {load:g}: {less.measure('response_s').mean:.4g} s"
                at += f" against {whole.measure('response_s').mean:.4g} s"
            short = target - less.measure("accuracy").mean
            if short == short and not short <= lost:
                lost, where_lost = short, f"target {target:g}, load {load:g}"
    return Claim(
        where,
        says,
        "largest response time without them over TAD-OP's, less 1",
        worst - 1,
        at_least=0.05,
        unit="%",
        why=f"{at}; accuracy falls short by {100 * lost:.2g} points at most ({where_lost})",
    )


def _ratio(whole: Measure, less: Measure) -> float:
    if not whole.trials or not less.trials or not whole.stable:
        return math.nan
    return less.mean / whole.mean if less.stable else math.inf


_PAPER = Settings()
STUDY = Study(
    name="ablation",
    source="[Anonymous], Sec. 5.2 and 6",
    shows="TAD-OP without pairs that shuffle, and without singletons.",
    scales={
        "smoke": replace(_PAPER, servers=64, targets=(0.78,), loads=(0.8,), queries=40_000),
        "quick": replace(
            _PAPER,
            targets=(0.72, 0.78),
            loads=(0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
            queries=1_000_000,
            precision=0.0015,
        ),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=("The paper has no figure of this: system, targets and loads are ours.",),
    code=(*CODE, "studies/queueing/ablated.py"),
)
