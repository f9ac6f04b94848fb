"""TAD's preference for fast servers picks the wrong pair at low load ([Anonymous], Example 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferway.experiments.curves import Drawing, Look, Panel, frame, line, lines, panels, series
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    LOOKS,
    THREE_CLASSES,
    System,
    common,
    seconds,
    simulated,
)


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


def figure(settings: Settings, results: Results) -> Drawing:
    """Response time and the parts that the classes get, against load."""
    loads = settings.loads
    looks = {policy: LOOKS[policy] for policy in settings.policies}
    bound = line(results, "bound_s", BOUND, load=loads)
    curves = [bound, *lines(results, "response_s", looks, load=loads)]
    parts = []
    for policy, dash in (("tad", "--"), ("tad-op", "-")):
        shares = [results.one("shares", policy=policy, load=load) for load in loads]
        parts += [
            series(
                Look(f"class {k + 1}, {policy}", k, dash),
                loads,
                [math.nan if one is None else 100 * one[k] for one in shares],
            )
            for k in range(len(settings.system.rate))
        ]
    limits = frame(0.9, 1.6, bound.y)
    return panels(
        [
            Panel("", "load", "mean response time, s", curves, limits_up=limits),
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
        claim(
            where,
            "At low load TAD's response time is 1.5.",
            f"its mean response time at load {low:g}",
            tad_s,
            "1.495 to 1.505 s",
            "shares of the classes " + ", ".join(f"{one:.4f}" for one in shares),
        ),
        claim(
            where,
            "Eleven of twelve requests to class 1, one to class 3: accuracy 45, response time "
            "1.25.",
            f"mean response time of TAD-OP at load {low:g}, which does so",
            best_s,
            "1.245 to 1.255 s",
            f"accuracy {here.value('accuracy', policy='tad-op'):.5f}, bound "
            f"{here.value('bound_s', policy='tad-op'):.4f} s",
        ),
        claim(
            where,
            "That is 16.67 % better than TAD.",
            "1 less the ratio of the two",
            1 - best_s / tad_s,
            "16.17 to 17.17 %",
        ),
    ]


STUDY = Study(
    name="wrong-pair",
    source="[Anonymous], Example 2",
    shows="TAD picks a pair of classes that is a fifth slower than the best.",
    scales=scales(
        Settings(),
        smoke={"loads": (0.02, 0.5), "queries": 40_000},
        quick={"queries": 2_000_000, "precision": 0.0015},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The example names no size and calls the rate small: 300 servers and load 0.02 are ours.",
    ),
)
