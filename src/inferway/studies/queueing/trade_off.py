"""The trade-off of accuracy and latency: two plain policies and TAD-OP ([Anonymous], Fig. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferway.experiments.curves import Drawing
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    FOUR_CLASSES,
    LOOKS,
    System,
    common,
    seconds,
    simulated,
)

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


def figure(settings: Settings, results: Results) -> Drawing:
    """Latency against accuracy, with the least latency for each accuracy at this rate."""
    from inferway.experiments.figure import Mark, trade_off

    marks = []
    for policy in settings.policies:
        accuracy, response = (
            results.measure(column, policy=policy) for column in ("accuracy", "response_s")
        )
        if accuracy.trials:
            half = 2 * accuracy.stderr
            interval = (accuracy.mean - half, accuracy.mean + half)
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
    rate_per_s = settings.load * settings.system.greatest(settings.servers, settings.target)
    low, high = float(fleet.accuracy.min()), float(fleet.accuracy.max())
    frontier = []
    for step in range(_BOUND_POINTS + 1):
        goal = low + (high - low) * step / _BOUND_POINTS
        if max_rate(fleet, goal) < rate_per_s:
            break
        frontier.append((goal, solve(fleet, goal, rate_per_s).response_time_s))
    return frontier


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 1 says of the three."""
    fast, accurate, ours = (
        results.where(policy=policy) for policy in ("jiq-fast", "jiq-accurate", "tad-op")
    )
    balanced_s, bound_s = ours.value("response_s"), ours.value("bound_s")
    stable = accurate.measure("response_s").stable
    slowest_s = accurate.value("response_s") if stable else math.inf
    where = "Sec. 1, Fig. 1"
    return [
        claim(
            where,
            "Prioritizing faster servers does not reach the desired accuracy.",
            "shortfall of its mean accuracy",
            settings.target - fast.value("accuracy"),
            "at least 0.1 %",
            f"accuracy {fast.value('accuracy'):.4f}",
        ),
        claim(
            where,
            "Prioritizing more accurate servers results in large latency.",
            "its response time over TAD-OP's",
            slowest_s / balanced_s,
            "at least 1.5",
            f"{slowest_s:.3g} s at accuracy {accurate.value('accuracy'):.4f}",
        ),
        claim(
            where,
            "The proposed policy keeps the desired accuracy.",
            "shortfall of its mean accuracy",
            settings.target - ours.value("accuracy"),
            "at most 0.02 %",
            f"accuracy {ours.value('accuracy'):.5f}",
        ),
        claim(
            where,
            "The proposed policy has a reasonable latency.",
            "its response time over the bound",
            balanced_s / bound_s,
            "at most 1.25",
            f"{balanced_s:.4f} s, bound {bound_s:.4f} s",
        ),
    ]


STUDY = Study(
    name="trade-off",
    source="[Anonymous], Fig. 1",
    shows="Faster servers first misses the accuracy, accurate servers first the latency.",
    scales=scales(
        Settings(),
        smoke={"queries": 20_000, "trials": 1, "warmup": None},
        quick={"queries": 1_000_000, "trials": 1, "warmup": None, "precision": 0.0015},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper does not say which system Fig. 1 shows: ours is that of Sec. 3.3 with 64 "
        "servers, target 0.76 and load 0.5.",
    ),
)
