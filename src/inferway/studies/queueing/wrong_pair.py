"""TAD's preference for fast servers picks the wrong pair at low load ([Anonymous], Example 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import THREE_CLASSES, System, common, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """The example's; it names no size, and its rate is small."""

    system: System = THREE_CLASSES
    servers: int = 300
    target: float = 0.45
    loads: tuple[float, ...] = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    policies: tuple[str, ...] = ("tad", "tad-op", "priced")
    queries: int = 30_000_000
    precision: float | None = None


def points(settings: Settings) -> list[Point]:
    """Every policy at every load."""
    return grid(
        simulated,
        {**common(settings, "servers", "target", "queries", "precision"), "seed": 1},
        seconds(settings.queries, settings.precision),
        policy=settings.policies,
        load=settings.loads,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Response time and the parts that the classes get, against load."""
    from inferway.experiments.curves import Curve, Panel, panels
    from inferway.studies.queueing.look import bound_curve, policy_curve

    loads = settings.loads
    bound = [results.measure("bound_s", load=load).mean for load in loads]
    curves = [bound_curve(loads, bound)]
    for policy in settings.policies:
        found = [results.measure("response_s", policy=policy, load=load) for load in loads]
        curves.append(policy_curve(policy, loads, found))
    parts = []
    for policy, dash in (("tad", "--"), ("tad-op", "-")):
        for k in range(len(settings.system.rate)):
            shares = [results.one("shares", policy=policy, load=load) for load in loads]
            share = [math.nan if one is None else 100 * one[k] for one in shares]
            label = f"class {k + 1}, {policy}"
            parts.append(Curve(label, loads, share, color=k, dash=dash, markers=False))
    known = [one for one in bound if not math.isnan(one)] or [1.0]
    return panels(
        [
            Panel(
                "",
                "load",
                "mean response time, s",
                curves,
                limits_up=(0.9 * min(known), 1.6 * max(known)),
            ),
            Panel("", "load", "part of the requests, %", parts),
        ],
        columns=2,
        title="The pair that TAD picks ([Anonymous], Example 2)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The example's three numbers, simulated at the lowest load."""
    where, low = "Sec. 4, Example 2", min(settings.loads)
    here = results.where(load=low)
    tad_s, best_s = (here.value("response_s", policy=name) for name in ("tad", "tad-op"))
    shares = here.one("shares", policy="tad") or [math.nan] * 3
    return [
        Claim(
            where,
            "At low load TAD's response time is 1.5.",
            f"its mean response time at load {low:g}",
            tad_s,
            at_least=1.495,
            at_most=1.505,
            unit="s",
            why="shares of the classes " + ", ".join(f"{one:.4f}" for one in shares),
        ),
        Claim(
            where,
            "Eleven of twelve requests to class 1, one to class 3: accuracy 45, response time "
            "1.25.",
            f"mean response time of TAD-OP at load {low:g}, which does so",
            best_s,
            at_least=1.245,
            at_most=1.255,
            unit="s",
            why=f"accuracy {here.value('accuracy', policy='tad-op'):.5f}, bound "
            f"{here.value('bound_s', policy='tad-op'):.4f} s",
        ),
        Claim(
            where,
            "That is 16.67 % better than TAD.",
            "1 less the ratio of the two",
            1 - best_s / tad_s,
            at_least=0.1617,
            at_most=0.1717,
            unit="%",
        ),
    ]


_PAPER = Settings()
STUDY = Study(
    name="wrong-pair",
    source="[Anonymous], Example 2",
    shows="TAD picks a pair of classes that is a fifth slower than the best.",
    scales={
        "smoke": replace(_PAPER, loads=(0.02, 0.5), queries=40_000),
        "quick": replace(_PAPER, queries=2_000_000, precision=0.0015),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The example names no size and calls the rate small: 300 servers and load 0.02 are ours.",
    ),
)
