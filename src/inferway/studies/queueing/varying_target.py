"""A target that rises and falls ([Anonymous], Fig. 10)."""

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

_PAPER = Settings(targets=(0.76, 0.80), loads=(0.5, 0.5))


def figure(settings: Settings, results: Results) -> Figure:
    """Accuracy and number in the system over time."""
    low, high = settings.targets
    title = f"{settings.servers} servers, target {low:g} and {high:g} ([Anonymous], Fig. 10)"
    return varying.figure(settings, results, title)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What Sec. 7.2 says of Fig. 10."""
    where = "Sec. 7.2, Fig. 10"
    rates = results.one("rate_per_s") or [float("nan"), float("nan")]
    return [
        Claim(
            where,
            "Though the load is fixed, the arrival rate changes with the target.",
            "rate at the higher target over that at the lower",
            rates[1] / rates[0],
            at_most=0.99,
            why=f"{rates[0]:.4g}/s and {rates[1]:.4g}/s: the greatest feasible rate falls",
        ),
        *varying.claims(settings, results, where),
    ]


STUDY = Study(
    name="varying-target",
    source="[Anonymous], Fig. 10",
    shows="Accuracy and number in the system over time while the target varies, 4096 servers.",
    scales={
        "smoke": replace(_PAPER, servers=256, horizon_s=1_200.0, cycles=2, samples=120, trials=1),
        "quick": replace(_PAPER, horizon_s=12_000.0, trials=3),
        "paper": _PAPER,
    },
    points=varying.points,
    figure=figure,
    claims=claims,
    departures=(
        "The figure's loads and targets did not survive in the text: load 0.5 in both phases "
        "(the text says that it is fixed), targets 0.76 and 0.80.",
        *varying.DEPARTURES,
    ),
    code=CODE,
)
