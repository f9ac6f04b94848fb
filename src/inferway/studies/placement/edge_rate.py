"""Gain of INFIDA and greedy against the request rate ([SiSalem21], Fig. 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.request_rate import gains
from inferway.studies.placement.trial import CODE, every

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the slots, which it does not say, and the rates between its ends."""

    system: str = "conference"
    rates_per_s: tuple[float, ...] = (5000.0, 7500.0, 10_000.0, 12_500.0, 15_000.0)
    policies: tuple[str, ...] = ("infida", "infida-coupled", "greedy", "olag")
    alpha: float = 0.5
    copies: int = 5
    slots: int = 480
    trials: int = 5


def points(settings: Settings) -> list[Point]:
    """Every policy at every rate under both popularities."""
    return every(
        settings,
        {"copies": settings.copies},
        system=[settings.system],
        alpha=[settings.alpha],
        sliding=(False, True),
        policy=settings.policies,
        rate_per_s=settings.rates_per_s,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """A panel for each popularity."""
    return gains(settings.policies, settings.rates_per_s, results, "86 nodes")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-B."""
    where = "Sec. VI-B, Fig. 4"
    low, high = settings.rates_per_s[0], settings.rates_per_s[-1]

    def ntag(policy: str, rate: float, sliding: bool = False) -> float:
        return results.value("ntag_ms", policy=policy, rate_per_s=rate, sliding=sliding)

    def falls(policy: str) -> float:
        return 1 - ntag(policy, high) / ntag(policy, low)

    def slides(policy: str) -> float:
        losses = [1 - ntag(policy, r, True) / ntag(policy, r) for r in settings.rates_per_s]
        return math.nan if any(math.isnan(one) for one in losses) else max(losses)

    mine = [ntag("infida", r, s) for r in settings.rates_per_s for s in (False, True)]
    return [
        Claim(
            where,
            "At 5,000 requests per second greedy performs like INFIDA.",
            "INFIDA's gain over greedy's, less 1",
            ntag("infida", low) / ntag("greedy", low) - 1,
            at_least=-0.05,
            at_most=0.05,
            unit="%",
            why="a node that does not count what it serves itself drops what serves well; counting "
            f"what reaches it: {100 * (ntag('infida', low) / ntag('olag', low) - 1):+.1f} %",
        ),
        Claim(
            where,
            "At 15,000 requests per second greedy's gain is about 33 % less.",
            "share of its gain lost",
            falls("greedy"),
            at_least=0.23,
            at_most=0.43,
            unit="%",
            why=f"{ntag('greedy', low):.1f} ms at {low:g}/s, {ntag('greedy', high):.1f} ms at "
            f"{high:g}/s: it drops models that serve well at any rate; counting what reaches a "
            f"node, {100 * falls('olag'):.1f} % are lost",
        ),
        Claim(
            where,
            "INFIDA gains more than greedy in general.",
            "least gain over greedy's, less 1",
            _least(
                [
                    ntag("infida", r, s) / ntag("greedy", r, s) - 1
                    for r in settings.rates_per_s
                    for s in (False, True)
                ]
            ),
            at_least=0.0,
            unit="%",
            why="least over greedy that counts what reaches a node: "
            f"""{
                100
                * _least(
                    [
                        ntag("infida", r, s) / ntag("olag", r, s) - 1
                        for r in settings.rates_per_s
                        for s in (False, True)
                    ]
                ):+.1f} %""",
        ),
        Claim(
            where,
            "Greedy is visibly perturbed when popularity changes.",
            "largest share of its gain that sliding costs",
            slides("greedy"),
            at_least=0.02,
            unit="%",
            why=f"counting what reaches a node: {100 * slides('olag'):.1f} %; INFIDA: "
            f"{100 * slides('infida'):.1f} %",
        ),
        Claim(
            where,
            "INFIDA keeps the same gain at all rates under both popularities.",
            "spread of its gain over its mean",
            (max(mine) - min(mine)) / (sum(mine) / len(mine)),
            at_most=0.05,
            unit="%",
        ),
    ]


def _least(values: list[float]) -> float:
    return math.nan if any(math.isnan(one) for one in values) else min(values)


_PAPER = Settings()
STUDY = Study(
    name="edge-rate",
    source="[SiSalem21], Fig. 4",
    shows="How the gain holds as requests become more, in a network of 86 nodes.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, rates_per_s=(5000.0, 15_000.0)),
        "quick": replace(_PAPER, slots=240, trials=3, rates_per_s=(5000.0, 10_000.0, 15_000.0)),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=("Budgets and single round-trip times are ours, as in edge-tiers.",),
    code=CODE,
)
