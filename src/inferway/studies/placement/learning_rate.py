"""Hand-set learning rates against the one that tunes itself (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from inferway.studies.placement.trial import CODE, seconds, simulated
from inferway.studies.results import Results
from inferway.studies.study import Claim, Point, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Case = tuple[str, float, float, bool]
"""System, alpha, requests per second, whether popularity slides."""

_CASES: tuple[Case, ...] = tuple(
    (system, alpha, rate, sliding)
    for system in ("I", "II")
    for alpha, rate in ((0.5, 7500.0), (1.0, 7500.0), (1.0, 15_000.0), (3.0, 7500.0), (4.0, 7500.0))
    for sliding in (False, True)
)
_RATES = (1e0, 1e1, 1e2, 3e2, 1e3, 3e3, 1e4, 1e5)


@dataclass(frozen=True)
class Settings:
    """Twenty cases, and rates of eta in size (bytes) per cost (ms) and request."""

    cases: tuple[Case, ...] = _CASES
    rates: tuple[float, ...] = _RATES
    slots: int = 480
    trials: int = 3


def _name(case: Case) -> str:
    system, alpha, rate, sliding = case
    return f"{system}, alpha {alpha:g}, {rate:g}/s, {'sliding' if sliding else 'fixed'}"


def points(settings: Settings) -> list[Point]:
    """Every rate in every case; rate 0 is the one that tunes itself."""
    return [
        Point(
            {"case": _name(case), "eta": eta, "trial": trial},
            simulated,
            {
                "system": case[0],
                "alpha": case[1],
                "rate_per_s": case[2],
                "sliding": case[3],
                "policy": "infida-coupled",
                "slots": settings.slots,
                "seed": trial + 1,
                "options": {"learning_rate": eta} if eta else {},
            },
            seconds("infida-coupled", settings.slots),
        )
        for case in settings.cases
        for eta in (0.0, *settings.rates)
        for trial in range(settings.trials)
    ]


def figure(settings: Settings, results: Results) -> Figure:
    """Gain at each rate, over the gain of the one that tunes itself."""
    from inferway.report.curves import Curve, Panel, panels

    shown = []
    for title, sliding in (("fixed popularity", False), ("sliding popularity", True)):
        drawn = []
        cases = [case for case in settings.cases if case[3] is sliding]
        for color, case in enumerate(cases):
            here = results.where(case=_name(case))
            own = here.value("ntag_ms", eta=0.0)
            y = [100 * here.value("ntag_ms", eta=eta) / own for eta in settings.rates]
            label = f"{case[0]}, alpha {case[1]:g}, {case[2]:g}/s"
            drawn.append(
                Curve(label, settings.rates, y, (), (), color % 7, "-" if color < 5 else ":")
            )
        shown.append(
            Panel(
                title,
                "eta, bytes per ms and request",
                "% of the tuning-free gain",
                drawn,
                levels=[("tunes itself", 100.0)],
                scale_across="log",
            )
        )
    return panels(shown, columns=2, title="Hand-set learning rates")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near the tuning-free rate is, and how far a wrong one may be."""
    behind: dict[str, float] = {}
    lost: dict[str, float] = {}
    for case in settings.cases:
        here = results.where(case=_name(case))
        gains = [here.value("ntag_ms", eta=eta) for eta in settings.rates]
        if any(math.isnan(one) for one in gains):
            continue
        behind[_name(case)] = 1 - here.value("ntag_ms", eta=0.0) / max(gains)
        lost[_name(case)] = 1 - min(gains) / max(gains)
    worst = max(behind, key=lambda one: behind[one], default="")
    most = max(lost, key=lambda one: lost[one], default="")
    best = {
        results.where(case=case).distinct("eta")[1:][k]
        for case in behind
        for gains in [[results.value("ntag_ms", case=case, eta=eta) for eta in settings.rates]]
        for k in [gains.index(max(gains))]
    }
    return [
        Claim(
            "ours",
            "Without tuning, INFIDA is within 2 % of the best hand-set rate.",
            f"largest gap over {len(behind)} cases",
            behind.get(worst, math.nan),
            at_most=0.02,
            unit="%",
            why=f"at {worst}; best by case: {', '.join(f'{b:g}' for b in sorted(best))}",
        ),
        Claim(
            "ours",
            "A wrong hand-set rate loses a large part of the gain.",
            "largest loss against the best rate",
            lost.get(most, math.nan),
            at_least=0.2,
            unit="%",
            why=f"at {most}; rates from {settings.rates[0]:g} to {settings.rates[-1]:g}",
        ),
    ]


_PAPER = Settings()
STUDY = Study(
    name="learning-rate",
    source="ours",
    shows="The learning rate that tunes itself, beside hand-set ones.",
    scales={
        "smoke": replace(_PAPER, slots=12, trials=1, cases=_CASES[10:12], rates=(1e0, 1e2, 1e4)),
        "quick": replace(_PAPER, slots=120, trials=1),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    code=CODE,
)
