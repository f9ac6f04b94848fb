"""Policies against load on a large site: n = 4096 ([Anonymous], Fig. 7)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.study import Study
from inferway.studies.queueing import load_curve
from inferway.studies.queueing.load_curve import Settings, gaps, largest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = Settings(servers=4096, smaller=64)


def figure(settings: Settings, results: Results) -> Figure:
    """Accuracy and response time against load."""
    title = f"{settings.servers} servers, exponential service ([Anonymous], Fig. 7)"
    return load_curve.figure(settings, results, title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.1 and the caption say of large systems."""
    where = "Sec. 7.1, Fig. 7"
    found = gaps(settings, results, "tad-op")
    worst, within = largest(found), sum(gap.value <= 0.002 for gap in found)
    by_target = ", ".join(
        f"{100 * largest([gap for gap in found if gap.target == target]).value:.2g} % at target "
        f"{target:g}"
        for target in settings.targets
    )
    slowest = load_curve.slowest_share(settings, results, "tad-op", worst)
    said = (
        f"at most {by_target}; within 0.2 % at {within} of {len(found)} points. At the worst, "
        f"{worst.where()}, {slowest}: an idle server is taken before any queue, however slow it is"
    )
    return [
        *load_curve.keeps_target(settings, results, where),
        Claim(
            where,
            "TAD-OP always matches the lower bound.",
            "largest response time over the bound, less 1",
            worst.value,
            at_most=0.002,
            unit="%",
            why=said,
        ),
        Claim(
            "Sec. 8",
            "TAD-OP is near-optimal in large systems.",
            "largest response time over the bound, less 1",
            worst.value,
            at_most=0.03,
            unit="%",
            why=said,
        ),
        load_curve.most_efficient(settings, results, where),
        _r_jiq_better(settings, results, where),
        *load_curve.unstable(settings, results, where),
        *load_curve.priced_against(settings, results),
    ]


def _r_jiq_better(settings: Settings, results: Results, where: str) -> Claim:
    smaller = settings.smaller or settings.servers
    here = {(gap.target, gap.load): gap for gap in gaps(settings, results, "r-jiq")}
    there = {
        (gap.target, gap.load): gap for gap in gaps(settings, results, "r-jiq", servers=smaller)
    }
    both = sorted(set(here) & set(there))
    better = [place for place in both if here[place].value < there[place].value]
    mean = [sum(gap[p].value for p in both) / max(len(both), 1) for gap in (here, there)]
    return Claim(
        where,
        "R-JIQ is noticeably better than in the small system.",
        "part of the points where its gap to the bound is smaller",
        len(better) / len(both) if both else float("nan"),
        at_least=1.0,
        unit="%",
        why=f"mean gap {100 * mean[0]:.1f} % at n = {settings.servers}, "
        f"{100 * mean[1]:.1f} % at n = {smaller}",
    )


STUDY = Study(
    name="large-site",
    source="[Anonymous], Fig. 7",
    shows="Accuracy and response time of the policies against load, 4096 servers.",
    scales={
        "smoke": replace(
            _PAPER,
            servers=256,
            smaller=16,
            betas=(0.1, 0.45),
            targets=(0.76,),
            queries_per_server=100,
            trials=1,
            warmup=None,
        ),
        "quick": replace(
            _PAPER,
            betas=load_curve.QUICK_BETAS,
            queries_per_server=1_000,
            trials=1,
            warmup=None,
            precision=0.0015,
            most_priced=4_096_000,
            brief_priced=(0.97, 100),
        ),
        "paper": _PAPER,
    },
    points=load_curve.points,
    figure=figure,
    claims=claims,
    departures=(
        *load_curve.DEPARTURES,
        "At quick scale priced has 1000 queries per server at most, for an error near 0.2 %, and "
        "100 from load 0.97 on, for one of some percent: with few servers idle it looks through "
        "all queues, some 10,000 decisions a second.",
    ),
)
