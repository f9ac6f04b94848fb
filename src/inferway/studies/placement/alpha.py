"""Latency and inaccuracy against alpha ([SiSalem23], Fig. 6; [SiSalem21], Fig. 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from inferway.experiments.curves import Drawing, Panel, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.placement.trial import CODE, POLICIES, TUNED, curves, every

_PANELS = {
    "inaccuracy": ("inaccuracy", "100 - mAP, points"),
    "latency_ms": ("latency", "mean latency, ms"),
}
_EDGE_PANELS = {**_PANELS, "inaccuracy": ("inaccuracy", "points"), "ntag_ms": ("gain", "NTAG, ms")}


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


_EDGE = Settings(
    system="conference, smaller",
    alphas=(0.0, 0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0),
    policies=("infida", "infida-coupled", "greedy", "olag"),
    rate_per_s=5000.0,
    copies=5,
)


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


def figure(settings: Settings, results: Results) -> Drawing:
    """Inaccuracy and latency beside each other; at the edge, the gain, too."""
    edge = settings.system == _EDGE.system
    shown = [
        Panel(
            title,
            "alpha, ms per point",
            up,
            curves(results, settings.policies, column, alpha=settings.alphas),
        )
        for column, (title, up) in (_EDGE_PANELS if edge else _PANELS).items()
    ]
    title = "86 nodes with a fifth of the memory" if edge else "Latency and inaccuracy of INFIDA"
    return panels(shown, columns=3, title=title)


def wrong_way(values: Sequence[float], *, rising: bool) -> float:
    """The largest step against the direction, 0 if there is none; NaN where a value is."""
    if any(math.isnan(one) for one in values):
        return math.nan
    steps = [after - before for before, after in pairwise(values)]
    return max(0.0, *(-one if rising else one for one in steps))


def _quick(where: str, alpha: float, latency_ms: float, why: str = "") -> Claim:
    return claim(
        where,
        "With alpha near 0 INFIDA achieves very low latency, a few milliseconds.",
        f"mean latency at alpha = {alpha:g}",
        latency_ms,
        "at most 10.0 ms",
        why,
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A."""
    where, alphas = "Sec. VI-A, Fig. 6", settings.alphas
    here = results.where(policy="infida")
    latency, inaccuracy, edges = (
        here.values(column, alpha=alphas)
        for column in ("latency_ms", "inaccuracy", "served by base")
    )
    steps = [b - a for a, b in pairwise(latency)]
    top = max(range(len(steps)), key=lambda k: steps[k])
    return [
        _quick(
            where,
            alphas[0],
            latency[0],
            f"{100 * edges[0]:.1f} % of the requests are served at base stations",
        ),
        claim(
            where,
            "Inaccuracy decreases with alpha.",
            "largest step upwards",
            wrong_way(inaccuracy, rising=False),
            "at most 0.2 points",
            f"from {inaccuracy[0]:.1f} to {inaccuracy[-1]:.1f} points",
        ),
        claim(
            where,
            "Latency increases with alpha.",
            "largest step downwards",
            wrong_way(latency, rising=True),
            "at most 0.5 ms",
            f"from {latency[0]:.1f} to {latency[-1]:.1f} ms",
        ),
        claim(
            where,
            "Where accuracy matters, models close to the cloud lead to a sudden, significant "
            "increase of latency.",
            "largest step over the mean step",
            steps[top] * len(steps) / (latency[-1] - latency[0]),
            "at least 2.0",
            f"the largest is from alpha {alphas[top]:g} to {alphas[top + 1]:g}: "
            f"{steps[top]:.1f} ms",
        ),
    ]


def edge_claims(settings: Settings, results: Results) -> list[Claim]:
    """Sec. VI-A of the conference's paper."""
    where, alphas = "Sec. VI-A, Fig. 3", settings.alphas
    here = results.where(policy="infida")
    latency, ntag, cloud = (
        here.values(column, alpha=alphas) for column in ("latency_ms", "ntag_ms", "served by cloud")
    )
    slopes = {
        (low + high) / 2: (after - before) / (high - low)
        for (low, high), (before, after) in zip(pairwise(alphas), pairwise(latency), strict=True)
    }

    def over(rival: str) -> tuple[float, float]:
        theirs = results.where(policy=rival).values("ntag_ms", alpha=alphas)
        pairs = zip(ntag, theirs, alphas, strict=True)
        return max(((mine / other, alpha) for mine, other, alpha in pairs))

    literal, reaching = over("greedy"), over("olag")
    mine, theirs = (
        results.value("ntag_ms", policy=policy, alpha=literal[1]) for policy in ("infida", "greedy")
    )
    return [
        _quick(where, alphas[0], latency[0]),
        claim(
            where,
            "At alpha about 4 both curves have a kink, as INFIDA starts to prefer the cloud.",
            "middle of the steepest rise of latency",
            most(slopes, math.nan)[1],
            "3.5 to 4.5 ms per point",
            ", ".join(f"{a:g}: {100 * one:.0f} %" for a, one in zip(alphas, cloud, strict=True))
            + " served in the cloud",
        ),
        claim(
            where,
            "The gain decreases as alpha increases.",
            "largest step upwards of INFIDA's gain",
            wrong_way(ntag, rising=False),
            "at most 0.5 ms",
        ),
        claim(
            where,
            "INFIDA's gain is up to 2.5 times as high as greedy's.",
            "largest ratio",
            literal[0],
            "2.0 to 3.0",
            f"at alpha {literal[1]:g}, {mine:.2f} against {theirs:.2f} ms; {reaching[0]:.2f} over "
            f"{POLICIES['olag'].label}, which counts what reaches a node, at alpha "
            f"{reaching[1]:g}",
        ),
    ]


STUDY = Study(
    name="placement-alpha",
    source="[SiSalem23], Fig. 6",
    shows="The trade-off that alpha sets: latency rises as inaccuracy falls.",
    scales=scales(
        Settings(),
        smoke={"slots": 20, "trials": 1, "alphas": (0.0, 2.0, 4.0, 6.0)},
        quick={"slots": 240, "trials": 3},
    ),
    points=points,
    figure=figure,
    claims=claims,
    departures=(TUNED,),
    code=CODE,
)
EDGE = Study(
    name="edge-alpha",
    source="[SiSalem21], Fig. 3",
    shows="The trade-off that alpha sets where memory is scarce.",
    scales=scales(
        _EDGE,
        smoke={"slots": 12, "trials": 1, "alphas": (0.0, 3.0, 4.0, 5.0)},
        quick={"slots": 120, "trials": 3},
    ),
    points=points,
    figure=figure,
    claims=edge_claims,
    departures=(
        "Nodes are smaller by up to 5 times, says the paper: here all budgets are a fifth.",
        "Budgets and single round-trip times are ours, as in edge-tiers.",
    ),
    code=CODE,
)
