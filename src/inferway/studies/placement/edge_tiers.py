"""INFIDA's allocation per tier on the conference's network ([SiSalem21], Fig. 2)."""

from __future__ import annotations

from dataclasses import replace

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.study import Study
from inferway.studies.placement.tiers import (
    Settings,
    accurate,
    cheaper_than_cloud,
    copies_below,
    figure,
    points,
    small,
)
from inferway.studies.placement.trial import CODE

_EDGE = ("tier 2", "tier 3", "base")
_MIDDLE = ("tier 1", "tier 2", "tier 3")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    where = "Sec. VI-A, Fig. 2"
    low, middle, high = settings.alphas
    limit = 6 * settings.copies  # all variants below 320p
    at_base = [results.value("served by base", alpha=alpha) for alpha in settings.alphas]
    cloud = [results.value("served by cloud", alpha=alpha) for alpha in settings.alphas]
    kept = [copies_below(results, alpha, _MIDDLE) for alpha in settings.alphas]
    rise = accurate(results, middle, _EDGE) - accurate(results, low, _EDGE)
    return [
        Claim(
            where,
            "At alpha = 1 INFIDA allocates a considerable amount of small models near the edge.",
            "share of small models among the copies on tiers 2-4",
            small(results, low, limit, _EDGE),
            at_least=0.5,
            unit="%",
        ),
        Claim(
            where,
            "At alpha = 3 it tends to avoid serving requests at the very edge.",
            "requests served at base stations, over those at alpha = 1",
            at_base[1] / at_base[0],
            at_most=0.8,
            why=", ".join(
                f"alpha {alpha:g}: {100 * share:.1f} %"
                for alpha, share in zip(settings.alphas, at_base, strict=True)
            ),
        ),
        Claim(
            where,
            "At alpha = 3 more accurate models are deployed.",
            "mean accuracy of the copies on tiers 2-4, less that at alpha = 1",
            rise,
            at_least=1.0,
            unit="points",
        ),
        Claim(
            where,
            "At alpha = 4 far fewer models are deployed on tiers 1-3.",
            "copies on a node of each of them, over those at alpha = 3",
            kept[2] / kept[1],
            at_most=0.7,
            why=f"{kept[0]:.1f} at alpha 1, {kept[1]:.1f} at 3, {kept[2]:.1f} at 4",
        ),
        Claim(
            where,
            "At alpha = 4 a significant amount of requests is served in the cloud.",
            "share of the requests",
            cloud[2],
            at_least=0.1,
            unit="%",
            why=f"{100 * cloud[0]:.1f} % at alpha 1, {100 * cloud[1]:.1f} % at 3; "
            + cheaper_than_cloud(settings.system, high, "3.99pruned"),
        ),
    ]


_PAPER = Settings(
    system="conference", alphas=(1.0, 3.0, 4.0), rate_per_s=5000.0, copies=5, slots=480
)
STUDY = Study(
    name="edge-tiers",
    source="[SiSalem21], Fig. 2",
    shows="Where INFIDA puts which models in a network of 86 nodes.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1),
        "quick": replace(_PAPER, slots=120, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "The paper gives neither the budgets, but for 75 % of the base stations, nor the single "
        "round-trip times: budgets are those of [SiSalem23]; 25, 15, 5 and 5 ms add up to the "
        "50 ms that it states.",
        "Values are means over the nodes that requests for the most popular task pass.",
    ),
    code=(*CODE, "studies/placement/tiers.py"),
)
