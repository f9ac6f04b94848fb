"""Hand-set learning rates against the one that tunes itself (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.placement.long_run import long_run, mean_of, named, seconds, windows
from inferway.studies.placement.trial import CODE, course, mean_series

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

    @property
    def every(self) -> tuple[float, ...]:
        """All rates; rate 0 is the one that tunes itself."""
        return (0.0, *self.rates)

    @property
    def early(self) -> int:
        """Number of the window after the one for learning."""
        return min(1, len(windows(self.slots)) - 1)


def _name(case: Case) -> str:
    system, alpha, rate, sliding = case
    return f"{system}, alpha {alpha:g}, {rate:g}/s, {'sliding' if sliding else 'fixed'}"


def _rate(eta: float) -> str:
    return f"eta {eta:g}" if eta else "tunes itself"


def points(settings: Settings) -> list[Point]:
    """Every rate in every case."""
    cases = {_name(case): case for case in settings.cases}

    def arguments(case: str, eta: float) -> dict[str, Any]:
        system, alpha, rate_per_s, sliding = cases[case]
        return {
            **{"system": system, "alpha": alpha, "rate_per_s": rate_per_s, "sliding": sliding},
            **{"policy": "infida-coupled", "slots": settings.slots},
            "options": {"learning_rate": eta} if eta else {},
        }

    def cost(case: str, **_: Any) -> float:
        return seconds("infida-coupled", settings.slots, sliding=cases[case][3])

    trials = range(settings.trials)
    return grid(long_run, arguments, cost, case=cases, eta=settings.every, trial=trials)


def figure(settings: Settings, results: Results) -> Drawing:
    """Gain at each rate over that of the one that tunes itself, and gain against slots."""
    shown, last = [], len(windows(settings.slots)) - 1
    for title, sliding in (("fixed popularity", False), ("sliding popularity", True)):
        drawn = []
        cases = [case for case in settings.cases if case[3] is sliding]
        for color, case in enumerate(cases):
            own, *gains = _gains(settings, results, case, last)
            y = [100 * one / own for one in gains]
            label = f"{case[0]}, alpha {case[1]:g}, {case[2]:g}/s"
            dash = "-" if color < 5 else ":"
            drawn.append(Curve(label, settings.rates, y, color=color % 7, dash=dash))
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
    here, drawn = results.where(case=_name(case)), []
    for color, eta in enumerate(settings.every):
        look = Look(_rate(eta), color % 7, "-" if not eta else "--" if color < 5 else ":")
        drawn.append(course(look, mean_series(here, "series_ms", eta=eta).tolist(), settings.slots))
    shown.append(Panel(_name(case), "slot", "gain, ms", drawn))
    return panels(shown, columns=3, title="Hand-set learning rates")


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near the tuning-free rate is, early and in the end, and how far a wrong one may be."""
    parts = windows(settings.slots)
    last, known = len(parts) - 1, _known(settings, results, len(parts) - 1)
    lost, at = most({name: 1 - min(of[1:]) / max(of[1:]) for name, of in known.items()}, "")
    return [
        _behind(settings, results, settings.early),
        _behind(settings, results, last),
        claim(
            "ours",
            "A wrong hand-set rate loses a large part of the gain, however long it runs.",
            f"largest loss against the best rate in {named(parts[-1])}",
            lost,
            "at least 20 %",
            f"at {at}; rates from {settings.rates[0]:g} to {settings.rates[-1]:g}",
        ),
        _falls_with_any(settings, results),
    ]


def _gains(settings: Settings, results: Results, case: Case, window: int) -> list[float]:
    """Gain in a window at every rate, first at the one that tunes itself."""
    here = results.where(case=_name(case))
    return [mean_of(here, "windows_ms", window, eta=eta) for eta in settings.every]


def _known(settings: Settings, results: Results, window: int) -> dict[str, list[float]]:
    """`_gains` of the cases whose hand-set rates are all known."""
    every = {_name(case): _gains(settings, results, case, window) for case in settings.cases}
    return {name: of for name, of in every.items() if not any(map(math.isnan, of[1:]))}


def _behind(settings: Settings, results: Results, window: int) -> Claim:
    known = _known(settings, results, window)
    behind = {name: 1 - own / max(gains) for name, (own, *gains) in known.items()}
    best = {settings.rates[gains.index(max(gains))] for _, *gains in known.values()}
    worst, at = most(behind, "")
    return claim(
        "ours",
        "Without tuning, INFIDA is within 2 % of the best hand-set rate in "
        f"{named(windows(settings.slots)[window])}.",
        f"largest gap over {len(behind)} cases",
        worst,
        "at most 2 %",
        f"at {at}; best by case: {', '.join(f'{b:g}' for b in sorted(best))}",
    )


def _falls_with_any(settings: Settings, results: Results) -> Claim:
    """Whether it is the self-tuned rate's fault that the gain falls."""
    parts = windows(settings.slots)
    change: dict[str, dict[float, tuple[float, float]]] = {}
    for case in (case for case in settings.cases if not case[3]):
        ends = zip(
            _gains(settings, results, case, settings.early),
            _gains(settings, results, case, -1),
            strict=True,
        )
        known = {
            eta: end
            for eta, end in zip(settings.every, ends, strict=True)
            if not any(map(math.isnan, end))
        }
        if 0.0 in known:
            change[_name(case)] = known
    _, worst = least({name: of[0.0][1] / of[0.0][0] for name, of in change.items()}, "")
    of = change.get(worst, {})
    said = ", ".join(
        f"{_rate(eta)} {before:.2f} to {after:.2f} ms" for eta, (before, after) in of.items()
    )
    ends_ms = [after for eta, (_, after) in of.items() if eta]
    return claim(
        "ours",
        "Where the gain falls the most under fixed popularity, a hand-set rate ends higher.",
        f"the best rate's gain in {named(parts[-1])} over the self-tuned one's, less 1",
        max(ends_ms) / of[0.0][1] - 1 if ends_ms else math.nan,
        "at least 1 %",
        f"{worst}, from {named(parts[settings.early])} to {named(parts[-1])}: {said}",
    )


STUDY = Study(
    name="learning-rate",
    source="ours",
    shows="The learning rate that tunes itself, beside hand-set ones.",
    scales=scales(
        Settings(),
        smoke={"slots": 60, "trials": 1, "cases": _CASES[10:12], "rates": (1e0, 1e2, 1e4)},
        quick={"cases": _QUICK, "rates": (1e1, 1e2, 3e2, 1e3, 3e3, 1e4)},
    ),
    points=points,
    figure=figure,
    claims=claims,
    code=(*CODE, "studies/placement/long_run.py"),
)
