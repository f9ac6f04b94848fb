"""TAD-OP without some of its routing tuples ([Anonymous], Sec. 5.2, 6 and Example 3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferway.experiments.curves import Drawing, Look, Panel, frame, line, lines, panels, series
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    FOUR_CLASSES,
    System,
    common,
    seconds,
    simulated,
)

_WHOLE = "nothing"
_LOOKS = {
    _WHOLE: Look("TAD-OP", 0, "-"),
    "shuffles": Look("without pairs that shuffle", 1, "--"),
    "singletons": Look("without singletons", 2, "--"),
    "both": Look("proper pairs only", 4, ":"),
}
_PAIR_LOOKS = {
    _WHOLE: Look("TAD-OP", 3, "--"),
    "shuffles": Look("TAD-OP without pairs that shuffle", 4, "--"),
}
_CODE = (*CODE, "studies/queueing/ablated.py")
_PAIR_SYSTEM = System((1.0, 0.5, 0.25), (0.40, 0.50, 1.00), (0.025, 0.95, 0.025))
_STEPS = 80


@dataclass(frozen=True)
class Settings:
    """Ours. At 0.78 the bound uses a pair that shuffles from load 0.5 on, at 0.72 a singleton."""

    system: System = FOUR_CLASSES
    servers: int = 1024
    targets: tuple[float, ...] = (0.72, 0.76, 0.78)
    loads: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
    without: tuple[str, ...] = tuple(_LOOKS)
    queries: int = 100_000_000
    precision: float | None = None


@dataclass(frozen=True)
class PairSettings:
    """Example 3's; it names no size."""

    system: System = _PAIR_SYSTEM
    servers: int = 400
    target: float = 0.52
    loads: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    queries: int = 40_000_000
    precision: float | None = None

    @property
    def greatest(self) -> float:
        """Greatest rate per server, 1/s."""
        return self.system.greatest(self.servers, self.target) / self.servers


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


def pair_points(settings: PairSettings) -> list[Point]:
    """TAD-OP with and without the pairs that shuffle."""
    return grid(
        ablated,
        {**common(settings, "servers", "target", "queries", "precision"), "seed": 1},
        seconds(settings.queries, settings.precision),
        without=(_WHOLE, "shuffles"),
        load=settings.loads,
    )


def figure(settings: Settings, results: Results) -> Drawing:
    """Response time against load, a panel for each target."""
    shown = []
    looks = {without: _LOOKS[without] for without in settings.without}
    for target in settings.targets:
        here = results.where(target=target)
        bound = line(here, "bound_s", BOUND, load=settings.loads)
        shown.append(
            Panel(
                f"target {100 * target:g} %",
                "load",
                "mean response time, s",
                [bound, *lines(here, "response_s", looks, by="without", load=settings.loads)],
                limits_up=frame(0.9, 2.5, bound.y),
            )
        )
    title = f"TAD-OP without some routing tuples, {settings.servers} servers"
    return panels(shown, columns=3, title=title)


def pair_figure(settings: PairSettings, results: Results) -> Drawing:
    """Traffic by class as waterfilling places it, and TAD-OP with and without the shuffle."""
    from inferway.dispatch import waterfill

    system, loads = settings.system, settings.loads
    fleet = system.fleet(settings.servers)
    rates = [settings.greatest * (step + 1) / (_STEPS + 1) for step in range(_STEPS)]
    shares = [waterfill(fleet, settings.target, rate * settings.servers).shares for rate in rates]
    traffic = [
        series(
            Look(f"class {k + 1}", k),
            rates,
            [
                100 * rate * float(share[k]) / system.share[k] / system.rate[k]
                for rate, share in zip(rates, shares, strict=True)
            ],
        )
        for k in range(len(system.rate))
    ]
    bound = line(results, "bound_s", BOUND, load=loads)
    curves = [bound, *lines(results, "response_s", _PAIR_LOOKS, by="without", load=loads)]
    limits = frame(0.9, 1.5, bound.y)
    part = "part of the class that is busy, %"
    return panels(
        [
            Panel("waterfilling", "rate per server, 1/s", part, traffic),
            Panel("simulated", "load", "mean response time, s", curves, limits_up=limits),
        ],
        columns=2,
        title="A pair that shuffles ([Anonymous], Example 3)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What each kind of tuple is worth."""
    return [
        _matters(settings, results, "shuffles", "Sec. 6.1", "Pairs that shuffle are needed."),
        _matters(settings, results, "singletons", "Sec. 5.2", "Singletons are needed."),
    ]


def _matters(settings: Settings, results: Results, without: str, where: str, says: str) -> Claim:
    ratios, short = {}, {}
    for target in settings.targets:
        for load in settings.loads:
            here = results.where(target=target, load=load)
            whole, less = (
                here.measure("response_s", without=name).mean for name in (_WHOLE, without)
            )
            place = f"target {target:g}, load {load:g}"
            ratios[f"{place}: {less:.4g} s against {whole:.4g} s"] = _ratio(here, without)
            short[place] = target - here.measure("accuracy", without=without).mean
    worst, at = most(ratios, "no points are known")
    lost, where_lost = most(short, "")
    return claim(
        where,
        says,
        "largest response time without them over TAD-OP's, less 1",
        worst - 1,
        "at least 5 %",
        f"{at}; accuracy falls short by {100 * lost:.2g} points at most ({where_lost})",
    )


def _ratio(results: Results, without: str) -> float:
    """Response time without some tuples over that with all; infinite where it is unstable."""
    whole, less = (results.measure("response_s", without=name) for name in (_WHOLE, without))
    if not whole.trials or not less.trials or not whole.stable:
        return math.nan
    return less.mean / whole.mean if less.stable else math.inf


def pair_claims(settings: PairSettings, results: Results) -> list[Claim]:
    """The example's numbers."""
    from inferway.dispatch import routing_tuples, waterfill

    where, system = "Sec. 6, Example 3", settings.system
    fleet = system.fleet(settings.servers)
    tuples = {one.classes: one for one in routing_tuples(fleet, settings.target)}
    best = next(one for one in tuples.values() if one.proper)
    # Rate per server at which each pair fills each of its classes.
    rooms = {
        pair: {k: system.share[k] * system.rate[k] / float(tuples[pair].routing[k]) for k in pair}
        for pair in ((0, 2), (1, 2))
    }
    limits = {pair: min(room.values()) for pair, room in rooms.items()}
    full = {
        pair: "alpha mu / q: "
        + ", ".join(f"class {k + 1} is full at {rate:.5f}" for k, rate in room.items())
        for pair, room in rooms.items()
    }
    last = waterfill(fleet, settings.target, 0.999 * settings.greatest * settings.servers)
    # Of several unstable loads the highest is named.
    loads = sorted(settings.loads, reverse=True)
    ratios = {load: _ratio(results.where(load=load), "shuffles") for load in loads}
    ratio, load = most(ratios, math.nan)
    capacity = "least capacity over routing entry of its classes, per server"
    return [
        claim(
            where,
            "The optimal pair is {1, 3} with routing (0.8, 0, 0.2).",
            "part of class 1 in the cheapest proper tuple",
            float(best.routing[0]) if best.classes == (0, 2) else 0.0,
            "0.799 to 0.801",
            f"classes {[k + 1 for k in best.classes]}",
        ),
        claim(
            where,
            "With that pair the greatest rate is 0.0625.",
            capacity,
            limits[0, 2],
            "0.0624 to 0.0626",
            full[0, 2],
        ),
        claim(
            where,
            "The pair {2, 3} allows 0.25.",
            capacity,
            limits[1, 2],
            "0.2495 to 0.2505",
            full[1, 2],
        ),
        claim(
            where,
            "Choosing {2, 3} allows a larger rate than {1, 3}.",
            "ratio of the two",
            limits[1, 2] / limits[0, 2],
            "at least 1.01",
        ),
        claim(
            where,
            "Class 3 is full, and class 1 becomes empty in the end: as if never used.",
            "share of class 1 that waterfilling gives at 0.999 of the greatest rate",
            float(last.shares[0]),
            "at most 0.002",
            f"shares {', '.join(f'{one:.4f}' for one in last.shares)}; greatest rate "
            f"{settings.greatest:.5f} per server",
        ),
        claim(
            "ours",
            "In the queueing system, too, the shuffle is needed.",
            "largest response time of TAD-OP without it over with it",
            ratio,
            "at least 1.02",
            f"at load {load:g}; where no tuple is routable TAD-OP takes the idle class of the "
            "highest number, and while class 3 is busy that is class 2, as the shuffle would have "
            "it",
        ),
    ]


STUDY = Study(
    name="ablation",
    source="[Anonymous], Sec. 5.2 and 6",
    shows="TAD-OP without pairs that shuffle, and without singletons.",
    scales=scales(
        Settings(),
        smoke={"servers": 64, "targets": (0.78,), "loads": (0.8,), "queries": 40_000},
        quick={
            "targets": (0.72, 0.78),
            "loads": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95),
            "queries": 1_000_000,
            "precision": 0.0015,
        },
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=("The paper has no figure of this: system, targets and loads are ours.",),
    code=_CODE,
)
PAIR = Study(
    name="shuffle-pair",
    source="[Anonymous], Example 3",
    shows="Why pairs that shuffle traffic between two classes are needed.",
    scales=scales(
        PairSettings(),
        smoke={"loads": (0.9,), "queries": 60_000},
        quick={"queries": 2_000_000, "precision": 0.0015},
    ),
    points=pair_points,
    figure=pair_figure,
    claims=pair_claims,
    departures=("The example names no size: 400 servers are ours.",),
    code=_CODE,
)
