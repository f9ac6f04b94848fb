"""Policies against load with deterministic service: n = 256 ([Anonymous], Fig. 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.study import Study
from inferway.studies.queueing import load_curve
from inferway.studies.queueing.load_curve import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = Settings(servers=256, distribution="deterministic")


def figure(settings: Settings, results: Results) -> Figure:
    """Accuracy and response time against load."""
    title = f"{settings.servers} servers, deterministic service ([Anonymous], Fig. 8)"
    return load_curve.figure(settings, results, title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.1 says of this system: the same as of the small one."""
    where = "Sec. 7.1, Fig. 8"
    return [
        *load_curve.keeps_target(settings, results, where),
        load_curve.most_efficient(settings, results, where),
        *load_curve.unstable(settings, results, where),
        *load_curve.priced_against(settings, results),
    ]


STUDY = Study(
    name="deterministic-site",
    source="[Anonymous], Fig. 8",
    shows="Accuracy and response time of the policies against load, 256 servers, "
    "deterministic service.",
    scales={
        "smoke": replace(
            _PAPER,
            servers=64,
            betas=(0.1, 0.45),
            targets=(0.76,),
            queries_per_server=400,
            trials=1,
            warmup=None,
        ),
        "quick": replace(
            _PAPER,
            betas=load_curve.QUICK_BETAS,
            queries_per_server=8_000,
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
