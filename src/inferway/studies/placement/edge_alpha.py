"""Latency, inaccuracy and gain against alpha on smaller nodes ([SiSalem21], Fig. 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.study import Study
from inferway.studies.placement import alpha_cost
from inferway.studies.placement.alpha_cost import points, wrong_way
from inferway.studies.placement.look import POLICIES, curves
from inferway.studies.placement.trial import CODE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Settings(alpha_cost.Settings):
    """The paper's, but for the slots, which it does not say."""

    system: str = "conference, smaller"
    alphas: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0)
    policies: tuple[str, ...] = ("infida", "infida-coupled", "greedy", "olag")
    rate_per_s: float = 5000.0
    copies: int = 5


def figure(settings: Settings, results: Results) -> Figure:
    """Inaccuracy and latency of INFIDA, and the gain of all."""
    from inferway.experiments.curves import Panel, panels

    shown = [
        Panel(
            title,
            "alpha, ms per point",
            up,
            curves(results, settings.policies, "alpha", settings.alphas, column),
        )
        for title, up, column in (
            ("inaccuracy", "points", "inaccuracy"),
            ("latency", "mean latency, ms", "latency_ms"),
            ("gain", "NTAG, ms", "ntag_ms"),
        )
    ]
    return panels(shown, columns=3, title="86 nodes with a fifth of the memory")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    where = "Sec. VI-A, Fig. 3"
    here = results.where(policy="infida")
    alphas = settings.alphas
    latency = [here.value("latency_ms", alpha=alpha) for alpha in alphas]
    ntag = [here.value("ntag_ms", alpha=alpha) for alpha in alphas]
    slopes = [
        (latency[k + 1] - latency[k]) / (alphas[k + 1] - alphas[k]) for k in range(len(alphas) - 1)
    ]
    known = [k for k in range(len(slopes)) if not math.isnan(slopes[k])]
    top = max(known, key=lambda k: slopes[k], default=0)

    def over(rival: str) -> tuple[float, float]:
        ratios = [
            (mine / results.value("ntag_ms", policy=rival, alpha=alpha), alpha)
            for mine, alpha in zip(ntag, alphas, strict=True)
        ]
        return max(ratios, default=(math.nan, math.nan))

    literal, reaching = over("greedy"), over("olag")
    return [
        Claim(
            where,
            "With alpha near 0 INFIDA achieves very low latency, a few milliseconds.",
            f"mean latency at alpha = {alphas[0]:g}",
            latency[0],
            at_most=10.0,
            unit="ms",
        ),
        Claim(
            where,
            "At alpha about 4 both curves have a kink, as INFIDA starts to prefer the cloud.",
            "middle of the steepest rise of latency",
            (alphas[top] + alphas[top + 1]) / 2 if known else math.nan,
            at_least=3.5,
            at_most=4.5,
            unit="ms per point",
            why=", ".join(
                f"{a:g}: {100 * here.value('served by cloud', alpha=a):.0f} %" for a in alphas
            )
            + " served in the cloud",
        ),
        Claim(
            where,
            "The gain decreases as alpha increases.",
            "largest step upwards of INFIDA's gain",
            wrong_way(ntag, rising=False),
            at_most=0.5,
            unit="ms",
        ),
        Claim(
            where,
            "INFIDA's gain is up to 2.5 times as high as greedy's.",
            "largest ratio",
            literal[0],
            at_least=2.0,
            at_most=3.0,
            why=f"at alpha {literal[1]:g}, {_pair(results, literal[1])}; "
            f"{reaching[0]:.2f} over {POLICIES['olag'].label}, which counts what reaches a node, "
            f"at alpha {reaching[1]:g}",
        ),
    ]


def _pair(results: Results, alpha: float) -> str:
    mine, theirs = (
        results.value("ntag_ms", policy=policy, alpha=alpha) for policy in ("infida", "greedy")
    )
    return f"{mine:.2f} against {theirs:.2f} ms"


_PAPER = Settings()
STUDY = Study(
    name="edge-alpha",
    source="[SiSalem21], Fig. 3",
    shows="The trade-off that alpha sets where memory is scarce.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, alphas=(0.0, 3.0, 4.0, 5.0)),
        "quick": replace(_PAPER, slots=120, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        "Nodes are smaller by up to 5 times, says the paper: here all budgets are a fifth.",
        "Budgets and single round-trip times are ours, as in edge-tiers.",
    ),
    code=CODE,
)
