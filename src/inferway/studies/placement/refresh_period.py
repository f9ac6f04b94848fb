"""Models fetched and gain against the refresh period ([SiSalem23], Fig. 8, and ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.trial import (
    POLICIES,
    TUNED,
    Settings,
    mean_series,
    pairs,
    placement_study,
    simulated,
)

_DYNAMIC = "B from 1 to 32"
_COUPLED = "coupled, B = 1 (ours)"
_EXCHANGE = "exchange (ours)"
# Policy and look.
_ROUNDINGS = {
    "fresh": ("infida", Look("DepRound, as in the paper", 0, "--")),
    "coupled": ("infida-coupled", Look("coupled rounding (ours)", 1, "-")),
    "exchange": ("exchange", Look("exchange (ours)", 5, "")),
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
            _DYNAMIC: ("infida", {"refresh": "dynamic"}),
            _COUPLED: ("infida-coupled", {}),
            _EXCHANGE: ("exchange", {}),
            "OLAG": ("olag", {}),
            "greedy (forwarded)": ("greedy", {}),
        }


@dataclass(frozen=True)
class MovedSettings(Settings):
    """Fig. 8's, at several alphas: refresh periods by rounding."""

    alphas: tuple[float, ...] = (1.0, 4.0, 5.0)
    fresh: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    coupled: tuple[int, ...] = (1, 4, 16)
    exchange: tuple[int, ...] = (1,)  # It has no other


def _arguments(settings: Settings, run: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    shared = settings.given("system", "rate_per_s", "slots")
    return {**shared, "sliding": True, "policy": run[0], "options": run[1], **more}


def _points(settings: PeriodSettings) -> list[Point]:
    return grid(
        simulated,
        lambda run: _arguments(settings, settings.runs[run], alpha=settings.alpha, series=True),
        lambda run: POLICIES[settings.runs[run][0]].cost(settings.slots),
        run=settings.runs,
        trial=range(settings.trials),
    )


def _moved_points(settings: MovedSettings) -> list[Point]:

    def arguments(alpha: float, rounding: str, period: int) -> dict[str, Any]:
        options = {} if rounding == "exchange" else {"refresh": period}
        return _arguments(settings, (_ROUNDINGS[rounding][0], options), alpha=alpha)

    return [
        point
        for alpha, rounding in product(settings.alphas, _ROUNDINGS)
        for point in grid(
            simulated,
            arguments,
            POLICIES[_ROUNDINGS[rounding][0]].cost(settings.slots),
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
            drawn.append(look.series(slots.tolist(), until.tolist()))
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
                *("mu_mib", "ntag_ms"),
                period=getattr(settings, rounding),
            )
            for rounding, (_, look) in _ROUNDINGS.items()
        ]
        title, across = f"alpha = {alpha:g}", "MiB fetched per slot"
        shown.append(Panel(title, across, "NTAG, ms", drawn, scale_across="log"))
    return panels(shown, columns=3, title="Gain against bytes moved, one point per refresh period")


def _claims(settings: PeriodSettings, results: Results) -> list[Claim]:
    mu, ntag = (results.by(column, run=list(settings.runs)) for column in ("mu_mib", "ntag_ms"))
    fixed = [f"B = {b}" for b in settings.periods]
    fastest, slowest = fixed[0], fixed[-1]
    late = slice(-max(1, settings.slots // 4), None)
    hour = slice(0, min(60, settings.slots))

    def over(run: str, rival: str, column: str, part: slice) -> float:
        ends = (mean_series(results, column, run=name)[part].mean() for name in (run, rival))
        one, other = map(float, ends)
        return one / other

    return claims(f"""
      * [Sec. VI-B, Fig. 8] The longer the refresh period, the fewer bytes are fetched.
        - largest ratio of a period's bytes to the next shorter one's:
          {max(mu[b] / mu[a] for a, b in pairwise(fixed))} (at most 1.0)
        - MiB per slot: {", ".join(f"{label}: {value:,.0f}" for label, value in mu.items())}
      * Even with a long period INFIDA eventually exceeds OLAG.
        - gain with {slowest} over OLAG's in the last quarter, less 1:
          {over(slowest, "OLAG", "gain", late) - 1} (at least 0 %)
        - NTAG in ms: {", ".join(f"{label}: {value:.2f}" for label, value in ntag.items())}
      * OLAG rarely updates its allocation.
        - its bytes per slot over INFIDA's with B = 1: {mu["OLAG"] / mu[fastest]} (at most 0.1)
        - with counters of what is forwarded: {mu["greedy (forwarded)"]:,.0f} MiB per slot
      * A dynamic period converges faster than the one that it ends at.
        - its gain in the first hour over that with B = 32, less 1:
          {over(_DYNAMIC, slowest, "gain", hour) - 1} (at least 0 %)
      * The update cost of the dynamic period becomes that of the one that it ends at.
        - its bytes in the last quarter over those with B = 32:
          {over(_DYNAMIC, slowest, "moved", late)} (0.7 to 1.3)
      * [ours] Coupled rounding fetches less than any of the refresh periods.
        - its bytes over those with B = 32: {mu[_COUPLED] / mu[slowest]} (at most 1.0)
        - gain {ntag[_COUPLED]:.2f} ms against {ntag[slowest]:.2f} ms, and {ntag["B = 1"]:.2f} ms
          with B = 1
      * Exchange, too, fetches less than any of the refresh periods.
        - its bytes over those with B = 32: {mu[_EXCHANGE] / mu[slowest]} (at most 1.0)
        - gain {ntag[_EXCHANGE]:.2f} ms
    """)


def _moved_claims(settings: MovedSettings, results: Results) -> list[Claim]:
    made = []
    for alpha in settings.alphas:
        fresh, coupled, exchanged = (results.where(alpha=alpha, rounding=one) for one in _ROUNDINGS)
        (fresh_mib, own_mib, whole_mib), (fresh_ms, own_ms, whole_ms) = (
            [one.value(column, period=1) for one in (fresh, coupled, exchanged)]
            for column in ("mu_mib", "ntag_ms")
        )

        def better(mib: float, ms: float, there: Results = fresh) -> list[str]:
            return [
                f"B = {period}"
                for period in settings.fresh
                if there.value("mu_mib", period=period) < mib
                and there.value("ntag_ms", period=period) > ms
            ]

        beaten, passed = better(own_mib, own_ms), better(whole_mib, whole_ms)
        fewer, least = ("20.0", "-0.5") if alpha <= 1 else ("5.0", "-4")
        made += claims(f"""
          * [ours, alpha {alpha:g}]
            Coupled rounding moves far fewer bytes than drawing anew in each slot.
            - bytes moved by DepRound over those by coupled rounding:
              {fresh_mib / own_mib} (at least {fewer})
            - {fresh_mib:,.0f} and {own_mib:,.0f} MiB per slot
          * It costs little gain.
            - its gain over DepRound's, less 1: {own_ms / fresh_ms - 1} (at least {least} %)
            - {own_ms:.2f} against {fresh_ms:.2f} ms; DepRound's elastic budgets are exceeded by up
              to a model per node, coupled rounding keeps them
          * No refresh period of DepRound has both fewer bytes and more gain.
            - refresh periods that have: {own_ms if math.isnan(own_ms) else len(beaten)} (at most 0)
            - {", ".join(beaten) or "none"}
          * Nor has any of them both fewer bytes and more gain than exchange.
            - refresh periods that have: {whole_ms if math.isnan(whole_ms) else len(passed)}
              (at most 0)
            - {whole_ms:.2f} ms and {whole_mib:,.0f} MiB per slot
        """)
    return made


STUDY = placement_study(
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
)
MOVED = placement_study(
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
)
