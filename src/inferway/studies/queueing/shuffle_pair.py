"""A pair that shuffles reverts a bad decision ([Anonymous], Example 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing import CODE
from inferway.studies.queueing.ablation import ablated
from inferway.studies.queueing.system import System, common, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SYSTEM = System((1.0, 0.5, 0.25), (0.40, 0.50, 1.00), (0.025, 0.95, 0.025))
_STEPS = 80


@dataclass(frozen=True)
class Settings:
    """The example's; it names no size."""

    system: System = _SYSTEM
    servers: int = 400
    target: float = 0.52
    loads: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    queries: int = 40_000_000
    precision: float | None = None


def points(settings: Settings) -> list[Point]:
    """TAD-OP with and without the pairs that shuffle."""
    return grid(
        ablated,
        {**common(settings, "servers", "target", "queries", "precision"), "seed": 1},
        seconds(settings.queries, settings.precision),
        without=("nothing", "shuffles"),
        load=settings.loads,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Traffic by class as waterfilling places it, and TAD-OP with and without the shuffle."""
    from inferway.dispatch import waterfill
    from inferway.experiments.curves import Curve, Panel, panels

    fleet = settings.system.fleet(settings.servers)
    greatest = _greatest(settings)
    rates = [greatest * (step + 1) / (_STEPS + 1) for step in range(_STEPS)]
    filled = [waterfill(fleet, settings.target, rate * settings.servers) for rate in rates]
    traffic = [
        Curve(
            f"class {k + 1}",
            rates,
            [
                100
                * rate
                * float(one.shares[k])
                / settings.system.share[k]
                / settings.system.rate[k]
                for rate, one in zip(rates, filled, strict=True)
            ],
            color=k,
            markers=False,
        )
        for k in range(len(settings.system.rate))
    ]
    loads = settings.loads
    bound = [results.measure("bound_s", load=load).mean for load in loads]
    curves = [Curve("bound (LP)", loads, bound)]
    for color, without, label in (
        (3, "nothing", "TAD-OP"),
        (4, "shuffles", "TAD-OP without pairs that shuffle"),
    ):
        found = [results.measure("response_s", without=without, load=load) for load in loads]
        curves.append(
            Curve(
                label,
                loads,
                [one.mean for one in found],
                [2 * one.stderr for one in found],
                [not one.stable for one in found],
                color,
                "--",
            )
        )
    known = [one for one in bound if not math.isnan(one)] or [1.0]
    return panels(
        [
            Panel(
                "waterfilling", "rate per server, 1/s", "part of the class that is busy, %", traffic
            ),
            Panel(
                "simulated",
                "load",
                "mean response time, s",
                curves,
                limits_up=(0.9 * min(known), 1.5 * max(known)),
            ),
        ],
        columns=2,
        title="A pair that shuffles ([Anonymous], Example 3)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The example's numbers."""
    from inferway.dispatch import routing_tuples, waterfill

    where = "Sec. 6, Example 3"
    fleet = settings.system.fleet(settings.servers)
    tuples = {one.classes: one for one in routing_tuples(fleet, settings.target)}
    best = next(one for one in tuples.values() if one.proper)
    limits = {pair: _limit(settings, pair) for pair in ((0, 2), (1, 2))}
    last = waterfill(fleet, settings.target, 0.999 * _greatest(settings) * settings.servers)
    ratio, load = _without_shuffle(settings, results)
    return [
        Claim(
            where,
            "The optimal pair is {1, 3} with routing (0.8, 0, 0.2).",
            "part of class 1 in the cheapest proper tuple",
            float(best.routing[0]) if best.classes == (0, 2) else 0.0,
            at_least=0.799,
            at_most=0.801,
            why=f"classes {[k + 1 for k in best.classes]}",
        ),
        Claim(
            where,
            "With that pair the greatest rate is 0.0625.",
            "least capacity over routing entry of its classes, per server",
            limits[0, 2],
            at_least=0.0624,
            at_most=0.0626,
            why=_both(settings, (0, 2)),
        ),
        Claim(
            where,
            "The pair {2, 3} allows 0.25.",
            "least capacity over routing entry of its classes, per server",
            limits[1, 2],
            at_least=0.2495,
            at_most=0.2505,
            why=_both(settings, (1, 2)),
        ),
        Claim(
            where,
            "Choosing {2, 3} allows a larger rate than {1, 3}.",
            "ratio of the two",
            limits[1, 2] / limits[0, 2],
            at_least=1.01,
        ),
        Claim(
            where,
            "Class 3 is full, and class 1 becomes empty in the end: as if never used.",
            "share of class 1 that waterfilling gives at 0.999 of the greatest rate",
            float(last.shares[0]),
            at_most=0.002,
            why=f"shares {', '.join(f'{one:.4f}' for one in last.shares)}; greatest rate "
            f"{_greatest(settings):.5f} per server",
        ),
        Claim(
            "ours",
            "In the queueing system, too, the shuffle is needed.",
            "largest response time of TAD-OP without it over with it",
            ratio,
            at_least=1.02,
            why=f"at load {load:g}; where no tuple is routable TAD-OP takes the idle class of the "
            "highest number, and while class 3 is busy that is class 2, as the shuffle would have "
            "it",
        ),
    ]


def _without_shuffle(settings: Settings, results: Results) -> tuple[float, float]:
    """The largest ratio of response times without and with the shuffle, and its load."""
    found = []
    for load in settings.loads:
        whole, less = (
            results.where(load=load).measure("response_s", without=without)
            for without in ("nothing", "shuffles")
        )
        if whole.trials and less.trials and whole.stable:
            found.append((less.mean / whole.mean if less.stable else math.inf, load))
    return max(found, default=(math.nan, math.nan))


def _greatest(settings: Settings) -> float:
    from inferway.dispatch import max_rate

    fleet = settings.system.fleet(settings.servers)
    return max_rate(fleet, settings.target) / settings.servers


def _rooms(settings: Settings, pair: tuple[int, int]) -> dict[int, float]:
    """Rate per server at which the pair fills each of its classes."""
    from inferway.dispatch import routing_tuples

    fleet = settings.system.fleet(settings.servers)
    found = next(one for one in routing_tuples(fleet, settings.target) if one.classes == pair)
    return {
        k: settings.system.share[k] * settings.system.rate[k] / float(found.routing[k])
        for k in pair
    }


def _limit(settings: Settings, pair: tuple[int, int]) -> float:
    return min(_rooms(settings, pair).values())


def _both(settings: Settings, pair: tuple[int, int]) -> str:
    rooms = _rooms(settings, pair)
    said = ", ".join(f"class {k + 1} is full at {rate:.5f}" for k, rate in rooms.items())
    return f"alpha mu / q: {said}"


_PAPER = Settings()
STUDY = Study(
    name="shuffle-pair",
    source="[Anonymous], Example 3",
    shows="Why pairs that shuffle traffic between two classes are needed.",
    scales={
        "smoke": replace(_PAPER, loads=(0.9,), queries=60_000),
        "quick": replace(_PAPER, queries=2_000_000, precision=0.0015),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=("The example names no size: 400 servers are ours.",),
    code=(*CODE, "studies/queueing/ablated.py"),
)
