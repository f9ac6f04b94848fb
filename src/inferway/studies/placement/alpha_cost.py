"""Latency and inaccuracy against alpha ([SiSalem23], Fig. 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.look import curves
from inferway.studies.placement.trial import CODE, every

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """The paper's; the alphas are read off its figure, how many slots it does not say."""

    system: str = "I"
    alphas: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0)
    policies: tuple[str, ...] = ("infida", "infida-coupled")
    rate_per_s: float = 7500.0
    slots: int = 480
    trials: int = 5
    copies: int = 3


def points(settings: Settings) -> list[Point]:
    """Every policy at every alpha."""
    return every(
        settings,
        {"copies": settings.copies},
        system=[settings.system],
        rate_per_s=[settings.rate_per_s],
        sliding=[False],
        policy=settings.policies,
        alpha=settings.alphas,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """Inaccuracy and latency beside each other."""
    from inferway.experiments.curves import Panel, panels

    shown = [
        Panel(
            title,
            "alpha, ms per point",
            up,
            curves(results, settings.policies, "alpha", settings.alphas, column),
        )
        for title, up, column in (
            ("inaccuracy", "100 - mAP, points", "inaccuracy"),
            ("latency", "mean latency, ms", "latency_ms"),
        )
    ]
    return panels(shown, columns=2, title="Latency and inaccuracy of INFIDA")


def wrong_way(values: Sequence[float], *, rising: bool) -> float:
    """The largest step against the direction, 0 if there is none; NaN where a value is."""
    if any(math.isnan(one) for one in values):
        return math.nan
    steps = [after - before for before, after in pairwise(values)]
    return max(0.0, *(-one if rising else one for one in steps))


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    where = "Sec. VI-A, Fig. 6"
    here = results.where(policy="infida")
    latency = [here.value("latency_ms", alpha=alpha) for alpha in settings.alphas]
    inaccuracy = [here.value("inaccuracy", alpha=alpha) for alpha in settings.alphas]
    steps = [b - a for a, b in pairwise(latency)]
    top = max(range(len(steps)), key=lambda k: steps[k])
    edges = [here.value("served by base", alpha=alpha) for alpha in settings.alphas]
    return [
        Claim(
            where,
            "With alpha near 0 INFIDA achieves very low latency, a few milliseconds.",
            f"mean latency at alpha = {settings.alphas[0]:g}",
            latency[0],
            at_most=10.0,
            unit="ms",
            why=f"{100 * edges[0]:.1f} % of the requests are served at base stations",
        ),
        Claim(
            where,
            "Inaccuracy decreases with alpha.",
            "largest step upwards",
            wrong_way(inaccuracy, rising=False),
            at_most=0.2,
            unit="points",
            why=f"from {inaccuracy[0]:.1f} to {inaccuracy[-1]:.1f} points",
        ),
        Claim(
            where,
            "Latency increases with alpha.",
            "largest step downwards",
            wrong_way(latency, rising=True),
            at_most=0.5,
            unit="ms",
            why=f"from {latency[0]:.1f} to {latency[-1]:.1f} ms",
        ),
        Claim(
            where,
            "Where accuracy matters, models close to the cloud lead to a sudden, significant "
            "increase of latency.",
            "largest step over the mean step",
            steps[top] * len(steps) / (latency[-1] - latency[0]),
            at_least=2.0,
            why=f"the largest is from alpha {settings.alphas[top]:g} to "
            f"{settings.alphas[top + 1]:g}: {steps[top]:.1f} ms",
        ),
    ]


_PAPER = Settings()
STUDY = Study(
    name="placement-alpha",
    source="[SiSalem23], Fig. 6",
    shows="The trade-off that alpha sets: latency rises as inaccuracy falls.",
    scales={
        "smoke": replace(_PAPER, slots=20, trials=1, alphas=(0.0, 2.0, 4.0, 6.0)),
        "quick": replace(_PAPER, slots=240, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=("The learning rate, which the paper does not give, tunes itself.",),
    code=CODE,
)
