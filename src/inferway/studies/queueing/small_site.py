"""Policies against load on a small site: n = 64 ([Anonymous], Fig. 6)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.study import Study
from inferway.studies.queueing import load_curve
from inferway.studies.queueing.load_curve import PAPERS, Settings, gaps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = Settings(servers=64)


def figure(settings: Settings, results: Results) -> Figure:
    """Accuracy and response time against load."""
    title = f"{settings.servers} servers, exponential service ([Anonymous], Fig. 6)"
    return load_curve.figure(settings, results, title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.1 and the caption say of small systems."""
    where = "Sec. 7.1, Fig. 6"
    return [
        *load_curve.keeps_target(settings, results, where),
        load_curve.most_efficient(settings, results, where),
        _nobody_optimal(settings, results, where),
        _tad_before_r_jiq(settings, results, where),
        *load_curve.unstable(settings, results, where),
        *load_curve.deviation(settings, results, "Fig. 6, caption"),
        *load_curve.priced_against(settings, results),
    ]


def _nobody_optimal(settings: Settings, results: Results, where: str) -> Claim:
    top = max(settings.loads)
    found = [
        (gap, policy)
        for policy in PAPERS
        for gap in gaps(settings, results, policy)
        if gap.load == top
    ]
    least, policy = min(found, default=(load_curve.largest([]), "none"))
    return Claim(
        where,
        "At this size no policy reaches the optimal response time at high load.",
        f"least response time over the bound at load {top:g}, less 1",
        least.value,
        at_least=0.01,
        unit="%",
        why=f"{policy} at target {least.target:g}",
    )


def _tad_before_r_jiq(settings: Settings, results: Results, where: str) -> Claim:
    target, worst, at = max(settings.targets), math.nan, "no point is known"
    here = results.where(servers=settings.servers)
    for gap in gaps(settings, results, "tad"):
        other = here.value("response_s", policy="r-jiq", target=gap.target, load=gap.load)
        if gap.target != target or gap.load > 0.5 or math.isnan(other):
            continue
        if not gap.response_s / other - 1 <= worst:
            worst = gap.response_s / other - 1
            at = f"{gap.where()}: TAD {gap.response_s:.4f} s, R-JIQ {other:.4f} s"
    return Claim(
        where,
        "TAD outperforms R-JIQ at low load where it does not choose a suboptimal pair.",
        f"largest response time over R-JIQ's at loads up to 0.5 and target {target:g}, less 1",
        worst,
        at_most=0.0,
        unit="%",
        why=at,
    )


STUDY = Study(
    name="small-site",
    source="[Anonymous], Fig. 6",
    shows="Accuracy and response time of the policies against load, 64 servers.",
    scales={
        "smoke": replace(
            _PAPER,
            betas=(0.1, 0.45),
            targets=(0.76,),
            queries_per_server=400,
            trials=1,
            warmup=None,
        ),
        "quick": replace(
            _PAPER,
            betas=load_curve.QUICK_BETAS,
            queries_per_server=15_000,
            trials=1,
            warmup=None,
            precision=0.0015,
        ),
        "paper": _PAPER,
    },
    points=load_curve.points,
    figure=figure,
    claims=claims,
    departures=load_curve.DEPARTURES,
)
