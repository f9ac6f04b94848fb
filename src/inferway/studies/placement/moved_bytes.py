"""Gain against bytes moved: coupled rounding beside every refresh period (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.trial import CODE, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Panel

_POLICY = {"fresh": "infida", "coupled": "infida-coupled"}
_LABEL = {"fresh": "DepRound, as in the paper", "coupled": "coupled rounding (ours)"}


@dataclass(frozen=True)
class Settings:
    """Fig. 8's, at several alphas."""

    alphas: tuple[float, ...] = (1.0, 4.0, 5.0)
    fresh: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    coupled: tuple[int, ...] = (1, 4, 16)
    rate_per_s: float = 7500.0
    slots: int = 480
    trials: int = 5

    def periods(self, rounding: str) -> tuple[int, ...]:
        """Refresh periods."""
        return self.fresh if rounding == "fresh" else self.coupled


def points(settings: Settings) -> list[Point]:
    """Every refresh period under both roundings."""
    return [
        Point(
            {"alpha": alpha, "rounding": rounding, "period": period, "trial": trial},
            simulated,
            {
                "system": "I",
                "alpha": alpha,
                "rate_per_s": settings.rate_per_s,
                "sliding": True,
                "policy": policy,
                "slots": settings.slots,
                "seed": trial + 1,
                "options": {"refresh": period},
            },
            seconds(policy, settings.slots),
        )
        for alpha in settings.alphas
        for rounding, policy in _POLICY.items()
        for period in settings.periods(rounding)
        for trial in range(settings.trials)
    ]


def figure(settings: Settings, results: Results) -> Figure:
    """A panel for each alpha; a curve's points are refresh periods."""
    from inferway.experiments.curves import panels

    shown = [_panel(settings, results, alpha) for alpha in settings.alphas]
    return panels(shown, columns=3, title="Gain against bytes moved, one point per refresh period")


def _panel(settings: Settings, results: Results, alpha: float) -> Panel:
    from inferway.experiments.curves import Curve, Panel

    drawn = []
    for color, rounding in ((0, "fresh"), (1, "coupled")):
        here = results.where(alpha=alpha, rounding=rounding)
        periods = settings.periods(rounding)
        x = [here.value("mu_mib", period=period) for period in periods]
        y = [here.value("ntag_ms", period=period) for period in periods]
        drawn.append(Curve(_LABEL[rounding], x, y, (), (), color, "-" if color else "--"))
    return Panel(
        f"alpha = {alpha:g}", "MiB fetched per slot", "NTAG, ms", drawn, scale_across="log"
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What coupled rounding saves, and what it costs."""
    found = []
    for alpha in settings.alphas:
        fresh = results.where(alpha=alpha, rounding="fresh")
        coupled = results.where(alpha=alpha, rounding="coupled")
        bytes_ = [one.value("mu_mib", period=1) for one in (fresh, coupled)]
        gains = [one.value("ntag_ms", period=1) for one in (fresh, coupled)]
        said = f"{gains[1]:.2f} against {gains[0]:.2f} ms"
        beaten: list[Any] = [
            period
            for period in settings.fresh
            if fresh.value("mu_mib", period=period) < bytes_[1]
            and fresh.value("ntag_ms", period=period) > gains[1]
        ]
        found += [
            Claim(
                f"ours, alpha {alpha:g}",
                "Coupled rounding moves far fewer bytes than drawing anew in each slot.",
                "bytes moved by DepRound over those by coupled rounding",
                bytes_[0] / bytes_[1],
                at_least=20.0 if alpha <= 1 else 5.0,
                why=f"{bytes_[0]:,.0f} and {bytes_[1]:,.0f} MiB per slot",
            ),
            Claim(
                f"ours, alpha {alpha:g}",
                "It costs little gain.",
                "its gain over DepRound's, less 1",
                gains[1] / gains[0] - 1,
                at_least=-0.005 if alpha <= 1 else -0.04,
                unit="%",
                why=f"{said}; DepRound's elastic budgets are exceeded by up to a model per node, "
                "coupled rounding keeps them",
            ),
            Claim(
                f"ours, alpha {alpha:g}",
                "No refresh period of DepRound has both fewer bytes and more gain.",
                "refresh periods that have",
                float(len(beaten)) if not math.isnan(gains[1]) else math.nan,
                at_most=0,
                why=", ".join(f"B = {period}" for period in beaten) or "none",
            ),
        ]
    return found


_PAPER = Settings()
STUDY = Study(
    name="moved-bytes",
    source="ours",
    shows="Models need not move for gain: coupled rounding beside every refresh period.",
    scales={
        "smoke": replace(_PAPER, slots=20, trials=1, alphas=(1.0,), fresh=(1, 8), coupled=(1,)),
        "quick": replace(_PAPER, slots=240, trials=3),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    code=CODE,
)
