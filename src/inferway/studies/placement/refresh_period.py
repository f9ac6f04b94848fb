"""Models fetched and gain against the refresh period ([SiSalem23], Fig. 8, and ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels, series
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.placement.trial import (
    CODE,
    POLICIES,
    TUNED,
    Settings,
    mean_series,
    pairs,
    simulated,
)
from inferway.studies.sentences import ours

_DYNAMIC = "B from 1 to 32"
_COUPLED = "coupled, B = 1 (ours)"
# Policy and look.
_ROUNDINGS = {
    "fresh": ("infida", Look("DepRound, as in the paper", 0, "--")),
    "coupled": ("infida-coupled", Look("coupled rounding (ours)", 1, "-")),
}


@dataclass(frozen=True)
class PeriodSettings(Settings):
    """The paper's: its caption says B in 4, 8, 16, its text 4, 8, 32. All are run."""

    periods: tuple[int, ...] = (1, 4, 8, 16, 32)

    @property
    def runs(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Policy and options of each curve, by its label."""
        return {
            **{f"B = {b}": ("infida", {"refresh": b}) for b in self.periods},
            _DYNAMIC: ("infida", {"refresh": [1.0, 32.0, 60.0]}),
            _COUPLED: ("infida-coupled", {}),
            "OLAG": ("olag", {}),
            "greedy (forwarded)": ("greedy", {}),
        }


@dataclass(frozen=True)
class MovedSettings(Settings):
    """Fig. 8's, at several alphas: refresh periods by rounding."""

    alphas: tuple[float, ...] = (1.0, 4.0, 5.0)
    fresh: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    coupled: tuple[int, ...] = (1, 4, 16)


def _arguments(settings: Settings, **more: Any) -> dict[str, Any]:
    return {**settings.given("system", "rate_per_s", "slots"), "sliding": True, **more}


def _points(settings: PeriodSettings) -> list[Point]:
    shared = _arguments(settings, alpha=settings.alpha, series=True)

    def arguments(run: str) -> dict[str, Any]:
        policy, options = settings.runs[run]
        return {**shared, "policy": policy, "options": options}

    return grid(
        simulated,
        arguments,
        lambda run: POLICIES[settings.runs[run][0]].cost(settings.slots),
        run=settings.runs,
        trial=range(settings.trials),
    )


def _moved_points(settings: MovedSettings) -> list[Point]:

    def arguments(alpha: float, rounding: str, period: int) -> dict[str, Any]:
        policy, _ = _ROUNDINGS[rounding]
        return _arguments(settings, policy=policy, options={"refresh": period}, alpha=alpha)

    return [
        point
        for alpha in settings.alphas
        for rounding, (policy, _) in _ROUNDINGS.items()
        for point in grid(
            simulated,
            arguments,
            POLICIES[policy].cost(settings.slots),
            alpha=[alpha],
            rounding=[rounding],
            period=getattr(settings, rounding),
            trial=range(settings.trials),
        )
    ]


def _figure(settings: PeriodSettings, results: Results) -> Drawing:

    def averages(column: str) -> list[Curve]:
        drawn = []
        for k, label in enumerate(settings.runs):
            values = mean_series(results, column, run=label)
            slots = np.arange(1, len(values) + 1)
            until = np.cumsum(values) / slots
            until[until <= 0] = math.nan
            look = Look(label, k % 7, "-" if label.startswith("B") else "--")
            drawn.append(series(look, slots.tolist(), until.tolist()))
        return drawn

    fetched, up = averages("moved"), "MU until then, MiB per slot"
    return panels(
        [
            Panel("models fetched", "slot", up, fetched, scale_up="log"),
            Panel("gain", "slot", "NTAG until then, ms", averages("gain")),
        ],
        columns=2,
        title="Refresh periods under sliding popularity",
    )


def _moved_figure(settings: MovedSettings, results: Results) -> Drawing:
    shown = []
    for alpha in settings.alphas:
        drawn = [
            pairs(
                look,
                results.where(alpha=alpha, rounding=rounding),
                "mu_mib",
                "ntag_ms",
                period=getattr(settings, rounding),
            )
            for rounding, (_, look) in _ROUNDINGS.items()
        ]
        title, across = f"alpha = {alpha:g}", "MiB fetched per slot"
        shown.append(Panel(title, across, "NTAG, ms", drawn, scale_across="log"))
    return panels(shown, columns=3, title="Gain against bytes moved, one point per refresh period")


def _claims(settings: PeriodSettings, results: Results) -> list[Claim]:
    paper, runs = partial(claim, "Sec. VI-B, Fig. 8"), list(settings.runs)
    mu, ntag = (
        dict(zip(runs, results.values(column, run=runs), strict=True))
        for column in ("mu_mib", "ntag_ms")
    )
    fixed = [f"B = {b}" for b in settings.periods]
    fastest, slowest = fixed[0], fixed[-1]
    late = slice(-max(1, settings.slots // 4), None)
    hour = slice(0, min(60, settings.slots))

    def over(run: str, rival: str, column: str, part: slice) -> float:
        """The mean of a part of one run over another's."""
        one, other = (
            float(mean_series(results, column, run=name)[part].mean()) for name in (run, rival)
        )
        return one / other

    return [
        paper(
            "The longer the refresh period, the fewer bytes are fetched.",
            "largest ratio of a period's bytes to the next shorter one's",
            max(mu[b] / mu[a] for a, b in pairwise(fixed)),
            "at most 1.0",
            "MiB per slot: " + ", ".join(f"{label}: {value:,.0f}" for label, value in mu.items()),
        ),
        paper(
            "Even with a long period INFIDA eventually exceeds OLAG.",
            f"gain with {slowest} over OLAG's in the last quarter, less 1",
            over(slowest, "OLAG", "gain", late) - 1,
            "at least 0 %",
            "NTAG in ms: " + ", ".join(f"{label}: {value:.2f}" for label, value in ntag.items()),
        ),
        paper(
            "OLAG rarely updates its allocation.",
            "its bytes per slot over INFIDA's with B = 1",
            mu["OLAG"] / mu[fastest],
            "at most 0.1",
            f"with counters of what is forwarded: {mu['greedy (forwarded)']:,.0f} MiB per slot",
        ),
        paper(
            "A dynamic period converges faster than the one that it ends at.",
            "its gain in the first hour over that with B = 32, less 1",
            over(_DYNAMIC, slowest, "gain", hour) - 1,
            "at least 0 %",
        ),
        paper(
            "The update cost of the dynamic period becomes that of the one that it ends at.",
            "its bytes in the last quarter over those with B = 32",
            over(_DYNAMIC, slowest, "moved", late),
            "0.7 to 1.3",
        ),
        ours(
            "Coupled rounding fetches less than any of the refresh periods.",
            "its bytes over those with B = 32",
            mu[_COUPLED] / mu[slowest],
            "at most 1.0",
            f"gain {ntag[_COUPLED]:.2f} ms against {ntag[slowest]:.2f} ms, and "
            f"{ntag['B = 1']:.2f} ms with B = 1",
        ),
    ]


def _moved_claims(settings: MovedSettings, results: Results) -> list[Claim]:
    made = []
    for alpha in settings.alphas:
        fresh, coupled = (results.where(alpha=alpha, rounding=one) for one in _ROUNDINGS)
        (fresh_mib, own_mib), (fresh_ms, own_ms) = (
            [one.value(column, period=1) for one in (fresh, coupled)]
            for column in ("mu_mib", "ntag_ms")
        )
        beaten = [
            f"B = {period}"
            for period in settings.fresh
            if fresh.value("mu_mib", period=period) < own_mib
            and fresh.value("ntag_ms", period=period) > own_ms
        ]
        here = partial(claim, f"ours, alpha {alpha:g}")
        made += [
            here(
                "Coupled rounding moves far fewer bytes than drawing anew in each slot.",
                "bytes moved by DepRound over those by coupled rounding",
                fresh_mib / own_mib,
                "at least 20.0" if alpha <= 1 else "at least 5.0",
                f"{fresh_mib:,.0f} and {own_mib:,.0f} MiB per slot",
            ),
            here(
                "It costs little gain.",
                "its gain over DepRound's, less 1",
                own_ms / fresh_ms - 1,
                "at least -0.5 %" if alpha <= 1 else "at least -4 %",
                f"{own_ms:.2f} against {fresh_ms:.2f} ms; DepRound's elastic budgets are "
                "exceeded by up to a model per node, coupled rounding keeps them",
            ),
            here(
                "No refresh period of DepRound has both fewer bytes and more gain.",
                "refresh periods that have",
                math.nan if math.isnan(own_ms) else float(len(beaten)),
                "at most 0",
                ", ".join(beaten) or "none",
            ),
        ]
    return made


STUDY = Study(
    name="refresh-period",
    source="[SiSalem23], Fig. 8",
    shows="What it costs in gain to move models less often.",
    scales=scales(
        PeriodSettings(), smoke={"slots": 70, "trials": 1}, quick={"slots": 480, "trials": 3}
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(TUNED,),
    code=CODE,
)
MOVED = Study(
    name="moved-bytes",
    source="ours",
    shows="Models need not move for gain: coupled rounding beside every refresh period.",
    scales=scales(
        MovedSettings(),
        smoke={"slots": 20, "trials": 1, "alphas": (1.0,), "fresh": (1, 8), "coupled": (1,)},
        quick={"slots": 240, "trials": 3},
    ),
    points=_moved_points,
    figure=_moved_figure,
    claims=_moved_claims,
    code=CODE,
)
