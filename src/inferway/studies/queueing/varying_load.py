"""A load that rises and falls ([Anonymous], Fig. 9)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.study import Study
from inferway.studies.queueing import CODE, varying
from inferway.studies.queueing.varying import Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAPER = Settings(targets=(0.76, 0.76), loads=(0.4, 0.5))


def figure(settings: Settings, results: Results) -> Figure:
    """Accuracy and number in the system over time."""
    low, high = settings.loads
    title = f"{settings.servers} servers, load {low:g} and {high:g} ([Anonymous], Fig. 9)"
    return varying.figure(settings, results, title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.2 says of Fig. 9."""
    return varying.claims(settings, results, "Sec. 7.2, Fig. 9")


STUDY = Study(
    name="varying-load",
    source="[Anonymous], Fig. 9",
    shows="Accuracy and number in the system over time while the load varies, 4096 servers.",
    scales={
        "smoke": replace(_PAPER, servers=256, horizon_s=1_200.0, cycles=2, samples=120, trials=1),
        "quick": replace(_PAPER, horizon_s=12_000.0, trials=3),
        "paper": _PAPER,
    },
    points=varying.points,
    figure=figure,
    claims=claims,
    departures=varying.DEPARTURES,
    code=CODE,
)
