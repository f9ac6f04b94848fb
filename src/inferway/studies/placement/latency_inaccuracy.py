"""Latency against inaccuracy for several alphas ([SiSalem23], Fig. 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.look import POLICIES
from inferway.studies.placement.trial import CODE, every

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Panel

_RIVALS = ("static-greedy", "olag")


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the slots, which it does not say."""

    system: str = "II"
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    rates_per_s: tuple[float, ...] = (7500.0, 10_000.0)
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "infida-offline", "static-greedy", "olag",
    )  # fmt: skip
    slots: int = 480
    trials: int = 5


def points(settings: Settings) -> list[Point]:
    """Every policy at every alpha and rate."""
    return every(
        settings,
        system=[settings.system],
        sliding=[False],
        rate_per_s=settings.rates_per_s,
        policy=settings.policies,
        alpha=settings.alphas,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """A panel for each rate; a curve's points are the alphas."""
    from inferway.experiments.curves import panels

    shown = [_panel(settings, results, rate) for rate in settings.rates_per_s]
    return panels(shown, columns=2, title=f"Topology {settings.system}, one point per alpha")


def _panel(settings: Settings, results: Results, rate: float) -> Panel:
    from inferway.experiments.curves import Curve, Panel

    drawn = []
    for policy in settings.policies:
        here = results.where(policy=policy, rate_per_s=rate)
        x = [here.value("inaccuracy", alpha=alpha) for alpha in settings.alphas]
        y = [here.value("latency_ms", alpha=alpha) for alpha in settings.alphas]
        look = POLICIES[policy]
        drawn.append(Curve(look.label, x, y, (), (), look.color, look.dash))
    return Panel(f"{rate:g} requests per second", "inaccuracy, points", "mean latency, ms", drawn)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-C."""
    where = "Sec. VI-C, Fig. 10"
    return [
        *(_not_beaten(settings, results, where, policy) for policy in ("infida", "infida-offline")),
        *(_least_cost(settings, results, where, policy) for policy in ("infida", "infida-offline")),
        _bound(settings, results, where),
    ]


def _not_beaten(settings: Settings, results: Results, where: str, policy: str) -> Claim:
    """At how many points a rival has both less latency and less inaccuracy."""
    beaten = []
    for rate in settings.rates_per_s:
        for alpha in settings.alphas:
            here = results.where(rate_per_s=rate, alpha=alpha)
            mine = (
                here.value("latency_ms", policy=policy),
                here.value("inaccuracy", policy=policy),
            )
            for rival in _RIVALS:
                theirs = (
                    here.value("latency_ms", policy=rival),
                    here.value("inaccuracy", policy=rival),
                )
                if theirs[0] < mine[0] and theirs[1] < mine[1]:
                    beaten.append(f"by {POLICIES[rival].label} at alpha {alpha:g}, {rate:g}/s")
    return Claim(
        where,
        f"No other policy has both less latency and less inaccuracy than {POLICIES[policy].label}.",
        "points where one has",
        float(len(beaten)) if len(results) else math.nan,
        at_most=0,
        why="; ".join(beaten) or f"of {len(settings.rates_per_s) * len(settings.alphas)}",
    )


def _least_cost(settings: Settings, results: Results, where: str, policy: str) -> Claim:
    """How much more it costs than the best rival: latency and alpha times inaccuracy."""
    worst, at = math.nan, "no point is known"
    for rate in settings.rates_per_s:
        for alpha in settings.alphas:
            here = results.where(rate_per_s=rate, alpha=alpha)
            costs = {
                one: here.value("latency_ms", policy=one)
                + alpha * here.value("inaccuracy", policy=one)
                for one in (policy, *_RIVALS)
            }
            best = min(_RIVALS, key=lambda one: costs[one])
            excess = costs[policy] / costs[best] - 1
            if not math.isnan(excess) and not excess <= worst:
                worst = excess
                at = (
                    f"largest at alpha {alpha:g}, {rate:g}/s: {costs[policy]:.2f} ms against "
                    f"{costs[best]:.2f} ms of {POLICIES[best].label}"
                )
    return Claim(
        where,
        f"{POLICIES[policy].label} consistently provides the least latency and inaccuracy.",
        "largest cost over the best rival's, less 1",
        worst,
        at_most=0.002,
        unit="%",
        why=at,
    )


def _bound(settings: Settings, results: Results, where: str) -> Claim:
    """INFIDA-offline bounds what INFIDA reaches."""
    margins = []
    for rate in settings.rates_per_s:
        for alpha in settings.alphas:
            here = results.where(rate_per_s=rate, alpha=alpha)
            margins.append(
                here.value("ntag_ms", policy="infida-offline")
                / here.value("ntag_ms", policy="infida")
                - 1
            )
    worst = math.nan if any(math.isnan(one) for one in margins) else min(margins)
    return Claim(
        where,
        "INFIDA-offline, in hindsight, bounds the latency and inaccuracy that can be reached.",
        "least gain over INFIDA's, less 1",
        worst,
        at_least=0.0,
        unit="%",
        why="rounding its average keeps the budgets; INFIDA's elastic ones are exceeded by up to a "
        "model per node",
    )


_PAPER = Settings()
STUDY = Study(
    name="latency-inaccuracy",
    source="[SiSalem23], Fig. 10",
    shows="Which pairs of latency and inaccuracy each policy reaches.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, alphas=(1.0, 4.0), rates_per_s=(7500.0,)),
        "quick": replace(_PAPER, slots=120, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=("The learning rate, which the paper does not give, tunes itself.",),
    code=CODE,
)
