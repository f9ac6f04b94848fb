"""Gain of all policies against alpha, on both topologies ([SiSalem23], Fig. 7)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.alpha_cost import wrong_way
from inferway.studies.placement.look import POLICIES, curves
from inferway.studies.placement.trial import CODE, every

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings:
    """The paper's, but for the slots, which it does not say."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    policies: tuple[str, ...] = (
        "infida", "infida-coupled", "infida-offline", "static-greedy", "olag", "olag-literal",
        "greedy",
    )  # fmt: skip
    rate_per_s: float = 7500.0
    slots: int = 480
    trials: int = 5


def points(settings: Settings) -> list[Point]:
    """Every policy at every alpha on every topology."""
    return every(
        settings,
        system=settings.systems,
        rate_per_s=[settings.rate_per_s],
        sliding=[True],
        policy=settings.policies,
        alpha=settings.alphas,
    )


def figure(settings: Settings, results: Results) -> Figure:
    """A panel for each topology."""
    from inferway.experiments.curves import Panel, panels

    shown = [
        Panel(
            f"Topology {system}",
            "alpha, ms per point",
            "NTAG, ms",
            curves(results, settings.policies, "alpha", settings.alphas, "ntag_ms", system=system),
        )
        for system in settings.systems
    ]
    return panels(shown, columns=2, title="Gain under sliding popularity")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    found = []
    for system in settings.systems:
        where = f"Sec. VI-A, Fig. 7, Topology {system}"
        here = results.where(system=system)
        ntag = {
            policy: [here.value("ntag_ms", policy=policy, alpha=a) for a in settings.alphas]
            for policy in settings.policies
        }
        found += [
            Claim(
                where,
                "The gain decreases as alpha increases.",
                "largest step upwards of INFIDA's gain",
                wrong_way(ntag["infida"], rising=False),
                at_most=0.5,
                unit="ms",
                why=f"from {ntag['infida'][0]:.1f} to {ntag['infida'][-1]:.1f} ms",
            ),
            _least(
                settings,
                where,
                "INFIDA-offline is consistently better than static greedy.",
                ntag,
                "infida-offline",
                ("static-greedy",),
            ),
            _least(
                settings,
                where,
                "Under sliding popularity the offline policies do worse than INFIDA, which adapts.",
                ntag,
                "infida",
                ("infida-offline", "static-greedy"),
            ),
            _least(settings, where, "INFIDA gains more than OLAG.", ntag, "infida", ("olag",)),
            _least(
                settings,
                "ours, Topology " + system,
                "INFIDA gains more than literal OLAG, where replicas keep their counters.",
                ntag,
                "infida",
                ("olag-literal",),
            ),
            _least(
                settings,
                "ours, Topology " + system,
                "INFIDA gains more than greedy by counters of what is forwarded.",
                ntag,
                "infida",
                ("greedy",),
            ),
            _least(
                settings,
                "ours, Topology " + system,
                "Coupled rounding gains as much as the paper's.",
                ntag,
                "infida-coupled",
                ("infida",),
                at_least=-0.04,
            ),
        ]
    return found


def _least(
    settings: Settings,
    where: str,
    says: str,
    ntag: dict[str, list[float]],
    policy: str,
    others: tuple[str, ...],
    at_least: float = 0.0,
) -> Claim:
    """The least gain of a policy over the best of others."""
    margins = [
        mine / max(theirs) - 1
        for mine, *theirs in zip(ntag[policy], *(ntag[one] for one in others), strict=True)
    ]
    said = ", ".join(
        f"{100 * margin:+.2f} % at alpha {alpha:g}"
        for alpha, margin in zip(settings.alphas, margins, strict=True)
    )
    names = " and ".join(POLICIES[one].label for one in others)
    worst = math.nan if any(math.isnan(one) for one in margins) else min(margins)
    return Claim(
        where,
        says,
        f"least gain over {names}, less 1",
        worst,
        at_least=at_least,
        unit="%",
        why=said,
    )


_PAPER = Settings()
STUDY = Study(
    name="placement-gain",
    source="[SiSalem23], Fig. 7",
    shows="The gain over the cloud alone, of INFIDA and its rivals.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, alphas=(1.0, 4.0), systems=("II",)),
        "quick": replace(_PAPER, slots=240, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper does not say how many slots it ran: 240, each popularity once, at quick scale.",
        "The learning rate, which the paper does not give, tunes itself.",
        "Policies in hindsight know the mean requests of every slot, not their counts.",
    ),
    code=CODE,
)
