"""Latency against inaccuracy for several alphas ([SiSalem23], Fig. 10)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.results import most, smallest
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.placement.trial import CODE, POLICIES, TUNED, every

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


def figure(settings: Settings, results: Results) -> Drawing:
    """A panel for each rate; a curve's points are the alphas."""
    shown = []
    for rate in settings.rates_per_s:
        drawn = []
        for policy in settings.policies:
            here, look = results.where(policy=policy, rate_per_s=rate), POLICIES[policy].look
            x, y = (
                here.values(column, alpha=settings.alphas)
                for column in ("inaccuracy", "latency_ms")
            )
            drawn.append(Curve(look.label, x, y, color=look.color, dash=look.dash))
        title = f"{rate:g} requests per second"
        shown.append(Panel(title, "inaccuracy, points", "mean latency, ms", drawn))
    return panels(shown, columns=2, title=f"Topology {settings.system}, one point per alpha")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-C."""
    where, mine = "Sec. VI-C, Fig. 10", ("infida", "infida-offline")
    cases = [
        (rate, alpha, results.where(rate_per_s=rate, alpha=alpha))
        for rate in settings.rates_per_s
        for alpha in settings.alphas
    ]
    # INFIDA-offline bounds what INFIDA reaches.
    margins = [
        here.value("ntag_ms", policy="infida-offline") / here.value("ntag_ms", policy="infida") - 1
        for _, _, here in cases
    ]
    return [
        *(_not_beaten(cases, where, policy) for policy in mine),
        *(_least_cost(cases, where, policy) for policy in mine),
        claim(
            where,
            "INFIDA-offline, in hindsight, bounds the latency and inaccuracy that can be reached.",
            "least gain over INFIDA's, less 1",
            smallest(margins),
            "at least 0 %",
            "rounding its average keeps the budgets; INFIDA's elastic ones are exceeded by up to "
            "a model per node",
        ),
    ]


Cases = list[tuple[float, float, Results]]
"""Rate, alpha, and the rows there."""


def _not_beaten(cases: Cases, where: str, policy: str) -> Claim:
    """At how many points a rival has both less latency and less inaccuracy."""
    columns = ("latency_ms", "inaccuracy")
    beaten = [
        f"by {POLICIES[rival].label} at alpha {alpha:g}, {rate:g}/s"
        for rate, alpha, here in cases
        for rival in _RIVALS
        if all(here.value(one, policy=rival) < here.value(one, policy=policy) for one in columns)
    ]
    return claim(
        where,
        f"No other policy has both less latency and less inaccuracy than {POLICIES[policy].label}.",
        "points where one has",
        float(len(beaten)) if any(len(here) for _, _, here in cases) else math.nan,
        "at most 0",
        "; ".join(beaten) or f"of {len(cases)}",
    )


def _least_cost(cases: Cases, where: str, policy: str) -> Claim:
    """How much more it costs than the best rival: latency and alpha times inaccuracy."""
    excess = {}
    for rate, alpha, here in cases:
        costs = {
            one: here.value("latency_ms", policy=one) + alpha * here.value("inaccuracy", policy=one)
            for one in (policy, *_RIVALS)
        }
        best = min(_RIVALS, key=lambda one: costs[one])
        said = f"largest at alpha {alpha:g}, {rate:g}/s: {costs[policy]:.2f} ms against "
        said += f"{costs[best]:.2f} ms of {POLICIES[best].label}"
        excess[said] = costs[policy] / costs[best] - 1
    worst, at = most(excess, "no point is known")
    return claim(
        where,
        f"{POLICIES[policy].label} consistently provides the least latency and inaccuracy.",
        "largest cost over the best rival's, less 1",
        worst,
        "at most 0.2 %",
        at,
    )


STUDY = Study(
    name="latency-inaccuracy",
    source="[SiSalem23], Fig. 10",
    shows="Which pairs of latency and inaccuracy each policy reaches.",
    scales=scales(
        Settings(),
        smoke={"slots": 12, "trials": 1, "alphas": (1.0, 4.0), "rates_per_s": (7500.0,)},
        quick={"slots": 120, "trials": 3},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(TUNED,),
    code=CODE,
)
