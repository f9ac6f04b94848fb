"""Hand-set learning rates against the one that tunes itself (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.long_run import long_run, mean_of, named, seconds, windows
from inferway.studies.placement.trial import CODE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Panel

Case = tuple[str, float, float, bool]
"""System, alpha, requests per second, whether popularity slides."""

_CASES: tuple[Case, ...] = tuple(
    (system, alpha, rate, sliding)
    for system in ("I", "II")
    for alpha, rate in ((0.5, 7500.0), (1.0, 7500.0), (1.0, 15_000.0), (3.0, 7500.0), (4.0, 7500.0))
    for sliding in (False, True)
)
_QUICK = tuple(case for case in _CASES if case[1] in (1.0, 3.0, 4.0) and case[2] == 7500.0)
_RATES = (1e0, 1e1, 1e2, 3e2, 1e3, 3e3, 1e4, 1e5)


@dataclass(frozen=True)
class Settings:
    """Twenty cases, and rates of eta in size (bytes) per cost (ms) and request."""

    cases: tuple[Case, ...] = _CASES
    rates: tuple[float, ...] = _RATES
    slots: int = 4000
    trials: int = 3


def _name(case: Case) -> str:
    system, alpha, rate, sliding = case
    return f"{system}, alpha {alpha:g}, {rate:g}/s, {'sliding' if sliding else 'fixed'}"


def points(settings: Settings) -> list[Point]:
    """Every rate in every case; rate 0 is the one that tunes itself."""
    return [
        Point(
            {"case": _name(case), "eta": eta, "trial": trial},
            long_run,
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
            seconds("infida-coupled", settings.slots, sliding=case[3]),
        )
        for case in settings.cases
        for eta in (0.0, *settings.rates)
        for trial in range(settings.trials)
    ]


def figure(settings: Settings, results: Results) -> Figure:
    """Gain at each rate over that of the one that tunes itself, and gain against slots."""
    from inferway.experiments.curves import Curve, Panel, panels

    shown = []
    last = len(windows(settings.slots)) - 1
    for title, sliding in (("fixed popularity", False), ("sliding popularity", True)):
        drawn = []
        cases = [case for case in settings.cases if case[3] is sliding]
        for color, case in enumerate(cases):
            here = results.where(case=_name(case))
            own = mean_of(here, "windows_ms", last, eta=0.0)
            y = [100 * mean_of(here, "windows_ms", last, eta=eta) / own for eta in settings.rates]
            label = f"{case[0]}, alpha {case[1]:g}, {case[2]:g}/s"
            drawn.append(
                Curve(label, settings.rates, y, (), (), color % 7, "-" if color < 5 else ":")
            )
        shown.append(
            Panel(
                f"{title}, {named(windows(settings.slots)[-1])}",
                "eta, bytes per ms and request",
                "% of the tuning-free gain",
                drawn,
                levels=[("tunes itself", 100.0)],
                scale_across="log",
            )
        )
    case = next((one for one in settings.cases if one[:2] == ("II", 3.0)), settings.cases[0])
    shown.append(_course(settings, results, case))
    return panels(shown, columns=3, title="Hand-set learning rates")


def _course(settings: Settings, results: Results, case: Case) -> Panel:
    """Gain in the course of a case, by rate."""
    from inferway.experiments.curves import Curve, Panel

    drawn, here = [], results.where(case=_name(case))
    for color, eta in enumerate((0.0, *settings.rates)):
        rows = [row["series_ms"] for row in here.where(eta=eta).rows]
        y = np.mean(rows, axis=0) if rows else np.array([math.nan])
        x = (np.arange(len(y)) + 0.5) * settings.slots / len(y)
        label = f"eta {eta:g}" if eta else "tunes itself"
        dash = "-" if not eta else "--" if color < 5 else ":"
        drawn.append(Curve(label, x.tolist(), y.tolist(), (), (), color % 7, dash, markers=False))
    return Panel(_name(case), "slot", "gain, ms", drawn)


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near the tuning-free rate is, early and in the end, and how far a wrong one may be."""
    parts = windows(settings.slots)
    early = min(1, len(parts) - 1)
    return [
        _behind(settings, results, early),
        _behind(settings, results, len(parts) - 1),
        _lost(settings, results),
        _falls_with_any(settings, results),
    ]


def _gains(settings: Settings, results: Results, case: Case, window: int) -> list[float]:
    here = results.where(case=_name(case))
    return [mean_of(here, "windows_ms", window, eta=eta) for eta in settings.rates]


def _known(settings: Settings, results: Results, window: int) -> dict[Case, list[float]]:
    every = {case: _gains(settings, results, case, window) for case in settings.cases}
    return {
        case: gains for case, gains in every.items() if not any(math.isnan(one) for one in gains)
    }


def _behind(settings: Settings, results: Results, window: int) -> Claim:
    behind: dict[str, float] = {}
    best = set()
    for case, gains in _known(settings, results, window).items():
        own = mean_of(results, "windows_ms", window, case=_name(case), eta=0.0)
        behind[_name(case)] = 1 - own / max(gains)
        best.add(settings.rates[gains.index(max(gains))])
    worst = max(behind, key=lambda one: behind[one], default="")
    part = named(windows(settings.slots)[window])
    return Claim(
        "ours",
        f"Without tuning, INFIDA is within 2 % of the best hand-set rate in {part}.",
        f"largest gap over {len(behind)} cases",
        behind.get(worst, math.nan),
        at_most=0.02,
        unit="%",
        why=f"at {worst}; best by case: {', '.join(f'{b:g}' for b in sorted(best))}",
    )


def _lost(settings: Settings, results: Results) -> Claim:
    known = _known(settings, results, len(windows(settings.slots)) - 1)
    lost = {_name(case): 1 - min(gains) / max(gains) for case, gains in known.items()}
    most = max(lost, key=lambda one: lost[one], default="")
    return Claim(
        "ours",
        "A wrong hand-set rate loses a large part of the gain, however long it runs.",
        f"largest loss against the best rate in {named(windows(settings.slots)[-1])}",
        lost.get(most, math.nan),
        at_least=0.2,
        unit="%",
        why=f"at {most}; rates from {settings.rates[0]:g} to {settings.rates[-1]:g}",
    )


def _falls_with_any(settings: Settings, results: Results) -> Claim:
    """Whether it is the self-tuned rate's fault that the gain falls."""
    parts = windows(settings.slots)
    early = min(1, len(parts) - 1)
    change: dict[str, dict[float, tuple[float, float]]] = {}
    for case in settings.cases:
        here = results.where(case=_name(case))
        own = {}
        for eta in (0.0, *settings.rates):
            ends = [mean_of(here, "windows_ms", k, eta=eta) for k in (early, -1)]
            if not any(math.isnan(one) for one in ends):
                own[eta] = (ends[0], ends[1])
        if 0.0 in own and not case[3]:
            change[_name(case)] = own
    worst = min(change, key=lambda one: change[one][0.0][1] / change[one][0.0][0], default="")
    of = change.get(worst, {})
    said = ", ".join(
        f"{f'eta {eta:g}' if eta else 'tunes itself'} {before:.2f} to {after:.2f} ms"
        for eta, (before, after) in of.items()
    )
    ends = [after for eta, (_, after) in of.items() if eta]
    return Claim(
        "ours",
        "Where the gain falls the most under fixed popularity, a hand-set rate ends higher.",
        f"the best rate's gain in {named(parts[-1])} over the self-tuned one's, less 1",
        max(ends) / of[0.0][1] - 1 if ends else math.nan,
        at_least=0.01,
        unit="%",
        why=f"{worst}, from {named(parts[early])} to {named(parts[-1])}: {said}",
    )


_PAPER = Settings()
STUDY = Study(
    name="learning-rate",
    source="ours",
    shows="The learning rate that tunes itself, beside hand-set ones.",
    scales={
        "smoke": replace(_PAPER, slots=60, trials=1, cases=_CASES[10:12], rates=(1e0, 1e2, 1e4)),
        "quick": replace(_PAPER, cases=_QUICK, rates=(1e1, 1e2, 3e2, 1e3, 3e3, 1e4)),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    code=(*CODE, "studies/placement/long_run.py"),
)
