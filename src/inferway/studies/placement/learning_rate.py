"""Hand-set learning rates against the one that tunes itself (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.studies import Claim, Point, Results, Study, grid, scales
from inferway.studies.placement.trial import (
    CODE,
    POLICIES,
    Settings,
    course,
    long_run,
    mean_of,
    mean_series,
    named,
    windows,
)
from inferway.studies.sentences import ours

# System, alpha, requests per second, whether popularity slides.
Case = tuple[str, float, float, bool]

_CASES: tuple[Case, ...] = tuple(
    (system, alpha, rate, sliding)
    for system in ("I", "II")
    for alpha, rate in ((0.5, 7500.0), (1.0, 7500.0), (1.0, 15_000.0), (3.0, 7500.0), (4.0, 7500.0))
    for sliding in (False, True)
)
_QUICK = tuple(case for case in _CASES if case[1] in (1.0, 3.0, 4.0) and case[2] == 7500.0)


@dataclass(frozen=True)
class RateSettings(Settings):
    """Twenty cases, and rates of eta in size (bytes) per cost (ms) and request."""

    cases: tuple[Case, ...] = _CASES
    rates: tuple[float, ...] = (1e0, 1e1, 1e2, 3e2, 1e3, 3e3, 1e4, 1e5)
    slots: int = 4000
    trials: int = 3

    @property
    def every_rate(self) -> tuple[float, ...]:
        """All rates; rate 0 is the one that tunes itself."""
        return (0.0, *self.rates)


def _name(case: Case) -> str:
    system, alpha, rate, sliding = case
    return f"{system}, alpha {alpha:g}, {rate:g}/s, {'sliding' if sliding else 'fixed'}"


def _rate(eta: float) -> str:
    return f"eta {eta:g}" if eta else "tunes itself"


def _points(settings: RateSettings) -> list[Point]:
    policy, slots = "infida-coupled", settings.slots
    cases = {_name(case): case for case in settings.cases}

    def arguments(case: str, eta: float) -> dict[str, Any]:
        of_case = zip(("system", "alpha", "rate_per_s", "sliding"), cases[case], strict=True)
        options = {"learning_rate": eta} if eta else {}
        return {**dict(of_case), "policy": policy, "slots": slots, "options": options}

    cost, trials = POLICIES[policy].cost(slots, 0.0006), range(settings.trials)
    return grid(long_run, arguments, cost, case=cases, eta=settings.every_rate, trial=trials)


def _figure(settings: RateSettings, results: Results) -> Drawing:
    shown, last = [], named(windows(settings.slots)[-1])
    for title, sliding in (("fixed popularity", False), ("sliding popularity", True)):
        drawn = []
        for color, case in enumerate(case for case in settings.cases if case[3] is sliding):
            own, *gains = _gains(settings, results, case, -1)
            y = [100 * one / own for one in gains]
            label = f"{case[0]}, alpha {case[1]:g}, {case[2]:g}/s"
            dash = "-" if color < 5 else ":"
            drawn.append(Curve(label, settings.rates, y, color=color % 7, dash=dash))
        shown.append(
            Panel(
                f"{title}, {last}",
                "eta, bytes per ms and request",
                "% of the tuning-free gain",
                drawn,
                levels=[("tunes itself", 100.0)],
                scale_across="log",
            )
        )
    case = next((one for one in settings.cases if one[:2] == ("II", 3.0)), settings.cases[0])
    here, drawn = results.where(case=_name(case)), []
    for color, eta in enumerate(settings.every_rate):
        look = Look(_rate(eta), color % 7, "-" if not eta else "--" if color < 5 else ":")
        drawn.append(course(look, mean_series(here, "series_ms", eta=eta), settings.slots))
    shown.append(Panel(_name(case), "slot", "gain, ms", drawn))
    return panels(shown, columns=3, title="Hand-set learning rates")


def _claims(settings: RateSettings, results: Results) -> list[Claim]:
    parts = windows(settings.slots)
    early, last = min(1, len(parts) - 1), len(parts) - 1
    known = _known(settings, results, last)
    lost, at = most({name: 1 - min(of[1:]) / max(of[1:]) for name, of in known.items()}, "")
    return [
        _behind(settings, results, early),
        _behind(settings, results, last),
        ours(
            "A wrong hand-set rate loses a large part of the gain, however long it runs.",
            f"largest loss against the best rate in {named(parts[-1])}",
            lost,
            "at least 20 %",
            f"at {at}; rates from {settings.rates[0]:g} to {settings.rates[-1]:g}",
        ),
        _falls_with_any(settings, results, early),
    ]


def _gains(settings: RateSettings, results: Results, case: Case, window: int) -> list[float]:
    """Gain in a window at every rate, first at the one that tunes itself."""
    here = results.where(case=_name(case))
    return [mean_of(here, "windows_ms", window, eta=eta) for eta in settings.every_rate]


def _known(settings: RateSettings, results: Results, window: int) -> dict[str, list[float]]:
    """`_gains` of the cases whose hand-set rates are all known."""
    every = {_name(case): _gains(settings, results, case, window) for case in settings.cases}
    return {name: of for name, of in every.items() if not any(map(math.isnan, of[1:]))}


def _behind(settings: RateSettings, results: Results, window: int) -> Claim:
    known = _known(settings, results, window)
    behind = {name: 1 - own / max(gains) for name, (own, *gains) in known.items()}
    best = {settings.rates[gains.index(max(gains))] for _, *gains in known.values()}
    worst, at = most(behind, "")
    return ours(
        "Without tuning, INFIDA is within 2 % of the best hand-set rate in "
        f"{named(windows(settings.slots)[window])}.",
        f"largest gap over {len(behind)} cases",
        worst,
        "at most 2 %",
        f"at {at}; best by case: {', '.join(f'{b:g}' for b in sorted(best))}",
    )


def _falls_with_any(settings: RateSettings, results: Results, early: int) -> Claim:
    """Tell whether it is the self-tuned rate's fault that the gain falls."""
    parts = windows(settings.slots)
    change: dict[str, dict[float, tuple[float, float]]] = {}
    for case in (case for case in settings.cases if not case[3]):
        begun, ended = (_gains(settings, results, case, window) for window in (early, -1))
        of_case = {
            eta: (before, after)
            for eta, before, after in zip(settings.every_rate, begun, ended, strict=True)
            if not math.isnan(before + after)
        }
        if 0.0 in of_case:
            change[_name(case)] = of_case
    _, worst = least({name: of[0.0][1] / of[0.0][0] for name, of in change.items()}, "")
    of = change.get(worst, {})
    said = ", ".join(
        f"{_rate(eta)} {before:.2f} to {after:.2f} ms" for eta, (before, after) in of.items()
    )
    ends_ms = [after for eta, (_, after) in of.items() if eta]
    return ours(
        "Where the gain falls the most under fixed popularity, a hand-set rate ends higher.",
        f"the best rate's gain in {named(parts[-1])} over the self-tuned one's, less 1",
        max(ends_ms) / of[0.0][1] - 1 if ends_ms else math.nan,
        "at least 1 %",
        f"{worst}, from {named(parts[early])} to {named(parts[-1])}: {said}",
    )


STUDY = Study(
    name="learning-rate",
    source="ours",
    shows="The learning rate that tunes itself, beside hand-set ones.",
    scales=scales(
        RateSettings(),
        smoke={"slots": 60, "trials": 1, "cases": _CASES[10:12], "rates": (1e0, 1e2, 1e4)},
        quick={"cases": _QUICK, "rates": (1e1, 1e2, 3e2, 1e3, 3e3, 1e4)},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    code=CODE,
)
