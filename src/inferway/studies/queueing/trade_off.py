"""The trade-off of accuracy and latency: two plain policies and TAD-OP ([Anonymous], Fig. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import FOUR_CLASSES, System, common, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BOUND_POINTS = 60


@dataclass(frozen=True)
class Settings:
    """Ours: the paper does not say which system Fig. 1 shows."""

    system: System = FOUR_CLASSES
    servers: int = 64
    target: float = 0.76
    load: float = 0.5
    policies: tuple[str, ...] = ("jiq-fast", "tad-op", "priced", "jiq-accurate")
    queries: int = 6_400_000
    trials: int = 50
    warmup: int | None = 0
    precision: float | None = None


def points(settings: Settings) -> list[Point]:
    """Every policy at the one load."""
    return grid(
        simulated,
        common(settings, "servers", "target", "load", "queries", "warmup", "precision"),
        seconds(settings.queries, settings.precision),
        policy=settings.policies,
        trial=range(settings.trials),
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Latency against accuracy, with the least latency for each accuracy at this rate."""
    from inferway.experiments.figure import Mark, trade_off
    from inferway.studies.queueing.look import LOOKS

    marks = []
    for policy in settings.policies:
        accuracy = results.measure("accuracy", policy=policy)
        if not accuracy.trials:
            continue
        half = 2 * accuracy.stderr
        interval = (accuracy.mean - half, accuracy.mean + half)
        response = results.measure("response_s", policy=policy)
        marks.append(Mark(LOOKS[policy].label, accuracy.mean, interval, response.mean))
    drawn = trade_off(
        marks,
        bound=_frontier(settings),
        target=settings.target,
        title=f"{settings.servers} servers, load {settings.load:g} ([Anonymous], Fig. 1)",
        latency_label="mean response time",
    )
    # Less than a decade: the ticks between need their numbers.
    axis = drawn.axes[0].yaxis
    axis.set_minor_formatter(axis.get_major_formatter())
    return drawn


def _frontier(settings: Settings) -> list[tuple[float, float]]:
    """Least response time for each accuracy, at the rate that all policies get."""
    from inferway.dispatch import max_rate, solve

    fleet = settings.system.fleet(settings.servers)
    rate_per_s = settings.load * max_rate(fleet, settings.target)
    low, high = float(fleet.accuracy.min()), float(fleet.accuracy.max())
    found = []
    for step in range(_BOUND_POINTS + 1):
        goal = low + (high - low) * step / _BOUND_POINTS
        if max_rate(fleet, goal) < rate_per_s:
            break
        found.append((goal, solve(fleet, goal, rate_per_s).response_time_s))
    return found


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 1 says of the three."""
    fast, accurate, ours = (
        results.where(policy=policy) for policy in ("jiq-fast", "jiq-accurate", "tad-op")
    )
    balanced_s, bound_s = ours.value("response_s"), ours.value("bound_s")
    where = "Sec. 1, Fig. 1"
    stable = accurate.measure("response_s").stable
    slowest_s = accurate.value("response_s") if stable else math.inf
    return [
        Claim(
            where,
            "Prioritizing faster servers does not reach the desired accuracy.",
            "shortfall of its mean accuracy",
            settings.target - fast.value("accuracy"),
            at_least=0.001,
            unit="%",
            why=f"accuracy {fast.value('accuracy'):.4f}",
        ),
        Claim(
            where,
            "Prioritizing more accurate servers results in large latency.",
            "its response time over TAD-OP's",
            slowest_s / balanced_s,
            at_least=1.5,
            why=f"{slowest_s:.3g} s at accuracy {accurate.value('accuracy'):.4f}",
        ),
        Claim(
            where,
            "The proposed policy keeps the desired accuracy.",
            "shortfall of its mean accuracy",
            settings.target - ours.value("accuracy"),
            at_most=0.0002,
            unit="%",
            why=f"accuracy {ours.value('accuracy'):.5f}",
        ),
        Claim(
            where,
            "The proposed policy has a reasonable latency.",
            "its response time over the bound",
            balanced_s / bound_s,
            at_most=1.25,
            why=f"{balanced_s:.4f} s, bound {bound_s:.4f} s",
        ),
    ]


_PAPER = Settings()
STUDY = Study(
    name="trade-off",
    source="[Anonymous], Fig. 1",
    shows="Faster servers first misses the accuracy, accurate servers first the latency.",
    scales={
        "smoke": replace(_PAPER, queries=20_000, trials=1, warmup=None),
        "quick": replace(_PAPER, queries=1_000_000, trials=1, warmup=None, precision=0.0015),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper does not say which system Fig. 1 shows: ours is that of Sec. 3.3 with 64 "
        "servers, target 0.76 and load 0.5.",
    ),
)
