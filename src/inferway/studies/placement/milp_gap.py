"""Distance of the policies from the proven best static allocation, and its duration (ours)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from inferway.experiments.curves import Curve, Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.placement import best_static, minimal, relaxation, serve
from inferway.studies import Claim, Point, Results, Study, claim, scales
from inferway.studies.placement.setting import scenario
from inferway.studies.placement.trial import (
    CODE,
    POLICIES,
    STATIC_SLOTS,
    Settings,
    course,
    long_run,
    mean_of,
    mean_series,
    named,
    windows,
)
from inferway.studies.sentences import ours, percents

_PSI = 1 - 1 / math.e
# How many percent a policy may end from the bound.
_LIMITS = {"infida": 10, "infida-coupled": 10, "infida-offline": 5, "static-greedy": 10}

Case = tuple[str, float]  # system and alpha
_NONE: Case = ("", math.nan)


@dataclass(frozen=True)
class GapSettings(Settings):
    """Topology I and II under fixed popularity, where a static allocation can be the best."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    policies: tuple[str, ...] = (*_LIMITS, "olag", "greedy")
    slots: int = 4000
    trials: int = 3
    time_limit_s: float = 300.0

    @property
    def cases(self) -> list[Case]:
        """Every topology and alpha."""
        return list(itertools.product(self.systems, self.alphas))

    @property
    def windows(self) -> list[tuple[int, int]]:
        """Of a run; the second is early, the last is the end."""
        return windows(self.slots)

    @property
    def early(self) -> int:
        """Number of the window after the one for learning."""
        return min(1, len(self.windows) - 1)


def proven(
    system: str, alpha: float, rate_per_s: float, seed: int, time_limit_s: float, slots: int
) -> dict[str, Any]:
    """Solve the MILP for the mean requests, and serve the first slots by its allocation.

    Returns
    -------
    dict
        ``ntag_ms`` of the allocation, ``bound_ms`` proven, ``relaxed_ms`` of the LP relaxation, per
        request; ``served_ms``, what the allocation gains where requests are served as every policy
        serves them; ``seconds``.
    """
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed)
    network = built.network
    batches = np.array([built.demand.expected(0)])
    found = best_static(network, batches, time_limit_s=time_limit_s)
    each = 1 / float(batches.sum())
    least, served = minimal(network).astype(np.uint8), []
    for slot in range(min(slots, STATIC_SLOTS)):
        requests = built.demand.counts(slot).astype(np.float64)
        saved = serve(network, requests, least) - serve(network, requests, found.allocation)
        served.append(float(network.options.cost @ saved) / float(requests.sum()))
    return {
        "ntag_ms": float(each * found.gain),
        "bound_ms": float(each * found.bound),
        "relaxed_ms": float(each * relaxation(network, batches)),
        "served_ms": float(np.mean(served)),
        "proven": found.proven,
        "seconds": found.seconds,
    }


def _points(settings: GapSettings) -> list[Point]:
    limit_s, slots, made = settings.time_limit_s, settings.slots, []
    for (system, alpha), trial in itertools.product(settings.cases, range(settings.trials)):
        case = {"system": system, "alpha": alpha}
        shared = {**case, "rate_per_s": settings.rate_per_s, "slots": slots, "seed": trial + 1}
        label = {**case, "policy": "exact", "trial": trial}
        made.append(Point(label, proven, {**shared, "time_limit_s": limit_s}, limit_s / 3))
        for policy in settings.policies:
            arguments = {**shared, "sliding": False, "policy": policy}
            cost = POLICIES[policy].cost(slots, 0.0006, sliding=False)
            made.append(Point({**label, "policy": policy}, long_run, arguments, cost))
    return made


def _figure(settings: GapSettings, results: Results) -> Drawing:
    above = [_gaps_panel(settings, results, system) for system in settings.systems]
    below = [_slots_panel(settings, results, system) for system in settings.systems]
    title = "The policies beside the best static allocation, fixed popularity"
    return panels([*above, *below], columns=len(settings.systems), title=title)


def _gaps_panel(settings: GapSettings, results: Results, system: str) -> Panel:
    exact = results.where(system=system, policy="exact")
    relaxed, bound = (
        exact.values(column, alpha=settings.alphas) for column in ("relaxed_ms", "bound_ms")
    )
    gaps = [
        (
            POLICIES[policy].look,
            [_gap(results, (system, alpha), policy, -1) for alpha in settings.alphas],
        )
        for policy in settings.policies
    ]
    above = [one / least_ms - 1 for one, least_ms in zip(relaxed, bound, strict=True)]
    return Panel(
        f"Topology {system}, {named(settings.windows[-1])}",
        "alpha, ms per point",
        "gap to the bound, %",
        [
            Curve(
                look.label,
                settings.alphas,
                np.maximum(100 * np.array(of), 1e-3).tolist(),
                color=look.color,
                dash=look.dash,
            )
            for look, of in (*gaps, (Look("LP relaxation, above it"), above))
        ],
        scale_up="log",
    )


def _slots_panel(settings: GapSettings, results: Results, system: str) -> Panel:
    """Gain in the course of the run at the alpha where INFIDA falls the most."""
    falls = {alpha: _fall(settings, results, (system, alpha)) for alpha in settings.alphas}
    _, alpha = least(falls, settings.alphas[0])
    here = results.where(system=system, alpha=alpha)
    bound = here.value("bound_ms", policy="exact")
    drawn = [
        course(POLICIES[one].look, mean_series(here, "series_ms", policy=one), settings.slots)
        for one in settings.policies
    ]
    unknown = math.isnan(bound)
    return Panel(
        f"Topology {system}, alpha = {alpha:g}",
        "slot",
        "gain, ms",
        drawn,
        levels=[] if unknown else [("proven bound", bound)],
        limits_up=None if unknown else (0.75 * bound, 1.02 * bound),
    )


def _at(results: Results, case: Case) -> Results:
    return results.where(system=case[0], alpha=case[1])


def _gap(results: Results, case: Case, policy: str, window: int) -> float:
    """To the proven bound, as a part of it, in a window of the slots."""
    here = _at(results, case)
    mine = mean_of(here, "windows_ms", window, policy=policy)
    return 1 - mine / here.value("bound_ms", policy="exact")


def _gains(settings: GapSettings, results: Results, case: Case) -> list[float]:
    """INFIDA's, window by window."""
    here = _at(results, case).where(policy="infida")
    return [mean_of(here, "windows_ms", k) for k in range(len(settings.windows))]


def _fall(settings: GapSettings, results: Results, case: Case) -> float:
    """INFIDA's gain in the last window over that in its best one, less 1."""
    gains = _gains(settings, results, case)
    known = [gain for gain in gains if not math.isnan(gain)]
    return gains[-1] / max(known, default=gains[0]) - 1


def _said(values: Mapping[Case, float], digits: str) -> str:
    """Percentages by topology and alpha, of what is known."""
    known = {f"{s} {a:g}": one for (s, a), one in values.items() if not math.isnan(one)}
    return percents(known, digits)


def _claims(settings: GapSettings, results: Results) -> list[Claim]:
    last, early = (named(settings.windows[k]) for k in (-1, settings.early))
    margins = {
        case: mean_of(_at(results, case), "windows_ms", -1, policy="infida")
        / mean_of(_at(results, case), "windows_ms", -1, policy="static-greedy")
        - 1
        for case in settings.cases
    }
    solved = results.where(policy="exact").rows
    slow = max((row["seconds"] for row in solved), default=math.nan)
    ends = ", ".join(str(end) for _, end in settings.windows)
    return [
        *(_near(settings, results, policy, ends) for policy in _LIMITS),
        _settled(settings, results, ends),
        ours(
            "In the end INFIDA gains as much as static greedy.",
            "its least gain over static greedy's in the last window, less 1",
            least(margins, _NONE)[0],
            "at least -1 %",
            _said(margins, "+.1f"),
        ),
        _climbs(settings, results, early, last),
        *_theorem(settings, results),
        ours(
            "The MILP is solved to within 0.1 %.",
            "largest proven gap",
            max((1 - row["ntag_ms"] / row["bound_ms"] for row in solved), default=math.nan),
            "at most 0.1 %",
            f"in up to {slow:.1f} s",
        ),
    ]


def _near(settings: GapSettings, results: Results, policy: str, ends: str) -> Claim:
    gaps = {case: _gap(results, case, policy, -1) for case in settings.cases}
    worst, case = most(gaps, _NONE)
    said = _said(gaps, ".2f")
    if not math.isnan(worst) and policy in ("infida", "infida-coupled"):
        every = [_gap(results, case, policy, k) for k in range(len(settings.windows))]
        said += f"; at the worst by windows that end at {ends}: "
        said += ", ".join(f"{100 * gap:.1f}" for gap in every) + " %"
    return ours(
        f"{POLICIES[policy].label} ends near the best static allocation.",
        f"largest gap to the proven bound in {named(settings.windows[-1])}",
        worst,
        f"at most {_LIMITS[policy]} %",
        f"by topology and alpha: {said}",
    )


def _settled(settings: GapSettings, results: Results, ends: str) -> Claim:
    """Tell whether what a few hours show is what stays."""
    courses = {case: _gains(settings, results, case) for case in settings.cases}
    changes = {case: gains[-1] / gains[settings.early] - 1 for case, gains in courses.items()}
    worst, (system, alpha) = most({case: abs(one) for case, one in changes.items()}, _NONE)
    why = ""
    if not math.isnan(worst):
        gains = ", ".join(f"{one:.2f}" for one in courses[system, alpha])
        why = f"Topology {system}, alpha {alpha:g}: {gains} ms in the windows that end at "
        why += f"{ends}; others {_said(changes, '+.1f')}"
    return ours(
        "INFIDA's gain has settled after 240 slots.",
        f"largest change from {named(settings.windows[settings.early])} to "
        f"{named(settings.windows[-1])}",
        worst,
        "at most 1 %",
        why,
    )


def _climbs(settings: GapSettings, results: Results, early: str, last: str) -> Claim:
    """Reason for which the gain falls: what mirror ascent climbs is not what roundings gain."""
    falls = {case: _fall(settings, results, case) for case in settings.cases}
    _, (system, alpha) = least(falls, settings.cases[0])
    here = _at(results, (system, alpha))
    climbed, gained = (
        [mean_of(here, column, k, policy="infida") for k in (settings.early, -1)]
        for column in ("climbed_ms", "windows_ms")
    )
    bound = here.value("bound_ms", policy="exact")
    return ours(
        "What mirror ascent climbs goes on rising where the gain of its roundings falls the most.",
        f"eq. 16 at the fractional allocation in {last}, less that in {early}",
        climbed[1] - climbed[0],
        "at least 0.0 ms",
        f"Topology {system}, alpha {alpha:g}: eq. 16 from {climbed[0]:.2f} to {climbed[1]:.2f} ms, "
        f"the gain from {gained[0]:.2f} to {gained[1]:.2f} ms; no allocation gains more than "
        f"{bound:.2f} ms. The potential available capacities of eq. 7 count an instance for every "
        "type that could use it, so that the fractional allocation is worth more than any rounding "
        "of it",
    )


def _theorem(settings: GapSettings, results: Results) -> list[Claim]:
    """Theorem V.1 against the optimum as served, over T; and without its factor."""
    first, growth, far, slots = {}, {}, {}, settings.slots
    for case in settings.cases:
        here = _at(results, case)
        best = here.value("served_ms", policy="exact")
        until = mean_series(here, "until_ms", policy="infida")
        if math.isnan(best) or np.isnan(until).any():
            continue
        short = np.flatnonzero(until < _PSI * best)
        first[case] = slots / len(until) * (int(short[-1]) + 1 if short.size else 0)
        middle = max(0, round(len(until) * STATIC_SLOTS / slots) - 1)
        lost = best - until
        growth[case] = float(lost[-1] - lost[min(middle, len(until) - 1)]) / best
        far[case] = float(until[-1] / best)
    return [
        claim(
            "Theorem V.1",
            "INFIDA's mean gain until T is at least 1 - 1/e of the best static allocation's, from "
            "some T on.",
            f"slots, in steps of {slots / min(100, slots):g}, until it stays so",
            most(first, _NONE)[0],
            "at most 30",
            f"against what the MILP's allocation gains as served; at T = {slots} at least "
            f"{100 * least(far, _NONE)[0]:.1f} % of it",
        ),
        ours(
            "Without the factor 1 - 1/e, too, the mean regret falls as T grows.",
            f"largest mean regret at T = {slots} less that at T = {min(STATIC_SLOTS, slots)}, of "
            "the best gain",
            most(growth, _NONE)[0],
            "at most 0 %",
            "the theorem promises it with the factor only; by topology and alpha: "
            + _said(growth, "+.2f"),
        ),
    ]


STUDY = Study(
    name="milp-gap",
    source="ours",
    shows="The policies beside the proven best static allocation, over thousands of slots.",
    scales=scales(
        GapSettings(),
        smoke={
            **{"slots": 60, "trials": 1, "systems": ("I",), "alphas": (1.0,)},
            "time_limit_s": 20.0,
        },
        quick={"alphas": (1.0, 3.0, 5.0), "time_limit_s": 20.0},
    ),
    points=_points,
    figure=_figure,
    claims=_claims,
    departures=(
        f"Policies in hindsight run for {STATIC_SLOTS} slots: under fixed popularity every slot "
        "has the same mean requests, and a static allocation the same mean gain.",
    ),
    code=CODE,
)
