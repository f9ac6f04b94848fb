"""Runs of thousands of slots: hand-set learning rates, and the best static allocation (ours)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from inferway.experiments.claim import percents
from inferway.experiments.curves import Drawing, Look, Panel, panels
from inferway.experiments.results import least, most
from inferway.placement import best_static, minimal, relaxation, serve
from inferway.studies import Claim, Point, Results, claims, grid, scales
from inferway.studies.placement.trial import (
    POLICIES,
    STATIC_SLOTS,
    Settings,
    course,
    long_run,
    mean_of,
    mean_series,
    placement_study,
    scenario,
    windows,
)

_EACH_S = 0.0006  # about how long a slot takes
# How many percent a policy may end from the bound.
_LIMITS = {"infida": 10, "infida-coupled": 10, "infida-offline": 5, "static-greedy": 10}

Case = tuple[str, float]  # system and alpha
_NONE: Case = ("", math.nan)
# System, alpha, requests per second, whether popularity slides.
RateCase = tuple[str, float, float, bool]
_CASES: tuple[RateCase, ...] = tuple(
    (system, alpha, rate, sliding)
    for system in ("I", "II")
    for alpha, rate in ((0.5, 7500.0), (1.0, 7500.0), (1.0, 15_000.0), (3.0, 7500.0), (4.0, 7500.0))
    for sliding in (False, True)
)
_QUICK = tuple(case for case in _CASES if case[1] in (1.0, 3.0, 4.0) and case[2] == 7500.0)


@dataclass(frozen=True)
class LongSettings(Settings):
    """Of runs that are looked at by windows; the second is early, the last is the end."""

    slots: int = 4000
    trials: int = 3

    @property
    def windows(self) -> list[tuple[int, int]]:
        """First slot and end of each window."""
        return windows(self.slots)

    @property
    def early(self) -> int:
        """Number of the window after the one for learning."""
        return min(1, len(self.windows) - 1)

    def named(self, window: int) -> str:
        """A window in words."""
        return "slots {} to {}".format(*self.windows[window])

    def means(self, results: Results, column: str = "windows_ms", **label: Any) -> list[float]:
        """Means over the trials, window by window."""
        return [mean_of(results, column, k, **label) for k in range(len(self.windows))]


@dataclass(frozen=True)
class RateSettings(LongSettings):
    """Twenty cases, and rates of eta in size (bytes) per cost (ms) and request."""

    cases: tuple[RateCase, ...] = _CASES
    rates: tuple[float, ...] = (1e0, 1e1, 1e2, 3e2, 1e3, 3e3, 1e4, 1e5)

    @property
    def every_rate(self) -> tuple[float, ...]:
        """All rates; rate 0 is the one that tunes itself."""
        return (0.0, *self.rates)

    def gains(self, results: Results, case: RateCase, window: int) -> list[float]:
        """Gain in a window at every rate, first at the one that tunes itself."""
        here = results.where(case=_name(case))
        return [mean_of(here, "windows_ms", window, eta=eta) for eta in self.every_rate]

    def known(self, results: Results, window: int) -> dict[str, list[float]]:
        """`gains` of the cases whose hand-set rates are all known."""
        every = {_name(case): self.gains(results, case, window) for case in self.cases}
        return {name: of for name, of in every.items() if not any(map(math.isnan, of[1:]))}


def _name(case: RateCase) -> str:
    system, alpha, rate, sliding = case
    return f"{system}, alpha {alpha:g}, {rate:g}/s, {'sliding' if sliding else 'fixed'}"


def _rate(eta: float) -> str:
    return f"eta {eta:g}" if eta else "tunes itself"


def _rate_points(settings: RateSettings) -> list[Point]:
    policy, slots = "infida-coupled", settings.slots
    cases = {_name(case): case for case in settings.cases}

    def arguments(case: str, eta: float) -> dict[str, Any]:
        of_case = zip(("system", "alpha", "rate_per_s", "sliding"), cases[case], strict=True)
        options = {"learning_rate": eta} if eta else {}
        return {**dict(of_case), "policy": policy, "slots": slots, "options": options}

    cost, trials = POLICIES[policy].cost(slots, _EACH_S), range(settings.trials)
    return grid(long_run, arguments, cost, case=cases, eta=settings.every_rate, trial=trials)


def _rate_figure(settings: RateSettings, results: Results) -> Drawing:
    shown, last = [], settings.named(-1)
    for popularity in ("fixed", "sliding"):
        drawn, sliding = [], popularity == "sliding"
        for color, case in enumerate(case for case in settings.cases if case[3] is sliding):
            own, *gains = settings.gains(results, case, -1)
            label = f"{case[0]}, alpha {case[1]:g}, {case[2]:g}/s"
            look = Look(label, color % 7, "-" if color < 5 else ":")
            drawn.append(look.curve(settings.rates, [100 * one / own for one in gains]))
        shown.append(
            Panel(
                f"{popularity} popularity, {last}",
                *("eta, bytes per ms and request", "% of the tuning-free gain", drawn),
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


def _rate_claims(settings: RateSettings, results: Results) -> list[Claim]:
    early, last = (settings.named(window) for window in (settings.early, -1))
    known, rates = settings.known(results, -1), settings.rates
    lost, at = most({name: 1 - min(of[1:]) / max(of[1:]) for name, of in known.items()}, "")
    # By case of fixed popularity and rate, the early and the last gain.
    change: dict[str, dict[float, tuple[float, float]]] = {}
    for case in (case for case in settings.cases if not case[3]):
        ends = (settings.gains(results, case, window) for window in (settings.early, -1))
        both = zip(settings.every_rate, *ends, strict=True)
        of_case = {eta: (a, b) for eta, a, b in both if not math.isnan(a + b)}
        if 0.0 in of_case:
            change[_name(case)] = of_case
    _, worst = least({name: of[0.0][1] / of[0.0][0] for name, of in change.items()}, "")
    of = change.get(worst, {})
    said = ", ".join(f"{_rate(eta)} {a:.2f} to {b:.2f} ms" for eta, (a, b) in of.items())
    ends_ms = [after for eta, (_, after) in of.items() if eta]
    return claims(f"""
      * [ours] {_behind(settings, results, settings.early)}
      * {_behind(settings, results, len(settings.windows) - 1)}
      * A wrong hand-set rate loses a large part of the gain, however long it runs.
        - largest loss against the best rate in {last}: {lost} (at least 20 %)
        - at {at}; rates from {rates[0]:g} to {rates[-1]:g}
      * Where the gain falls the most under fixed popularity, a hand-set rate ends higher.
        - the best rate's gain in {last} over the self-tuned one's, less 1:
          {max(ends_ms) / of[0.0][1] - 1 if ends_ms else math.nan} (at least 1 %)
        - {worst}, from {early} to {last}: {said}
    """)


def _behind(settings: RateSettings, results: Results, window: int) -> str:
    known = settings.known(results, window)
    behind = {name: 1 - own / max(gains) for name, (own, *gains) in known.items()}
    best = {settings.rates[gains.index(max(gains))] for _, *gains in known.values()}
    worst, at = most(behind, "")
    return f"""
        Without tuning, INFIDA is within 2 % of the best hand-set rate in {settings.named(window)}.
        - largest gap over {len(behind)} cases: {worst} (at most 2 %)
        - at {at}; best by case: {", ".join(f"{one:g}" for one in sorted(best))}""".strip()


@dataclass(frozen=True)
class GapSettings(LongSettings):
    """Topology I and II under fixed popularity, where a static allocation can be the best."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    policies: tuple[str, ...] = (*_LIMITS, "olag", "greedy")
    time_limit_s: float = 300.0

    @property
    def cases(self) -> list[Case]:
        """Every topology and alpha."""
        return list(product(self.systems, self.alphas))


def proven(
    system: str, alpha: float, rate_per_s: float, seed: int, time_limit_s: float, slots: int
) -> dict[str, Any]:
    """Solve the MILP for the mean requests, and serve the first slots by its allocation.

    Per request: ``ntag_ms`` of the allocation, ``bound_ms`` proven, ``relaxed_ms`` of the LP
    relaxation, and ``served_ms``, what the allocation gains where requests are served as every
    policy serves them.
    """
    built = scenario(system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed)
    network = built.network
    batches = np.array([built.demand.expected(0)])
    best = best_static(network, batches, time_limit_s=time_limit_s)
    each = 1 / float(batches.sum())
    nowhere, served = minimal(network).astype(np.uint8), []
    for slot in range(min(slots, STATIC_SLOTS)):
        requests = built.demand.counts(slot).astype(np.float64)
        saved = serve(network, requests, nowhere) - serve(network, requests, best.allocation)
        served.append(float(network.options.cost @ saved) / float(requests.sum()))
    return {
        "ntag_ms": float(each * best.gain),
        "bound_ms": float(each * best.bound),
        "relaxed_ms": float(each * relaxation(network, batches)),
        "served_ms": float(np.mean(served)),
        "proven": best.proven,
        "seconds": best.seconds,
    }


def _gap_points(settings: GapSettings) -> list[Point]:
    limit_s, slots, made = settings.time_limit_s, settings.slots, []
    for (system, alpha), trial in product(settings.cases, range(settings.trials)):
        case = {"system": system, "alpha": alpha}
        shared = {**case, "rate_per_s": settings.rate_per_s, "slots": slots, "seed": trial + 1}
        label = {**case, "policy": "exact", "trial": trial}
        made.append(Point(label, proven, {**shared, "time_limit_s": limit_s}, limit_s / 3))
        for policy in settings.policies:
            arguments = {**shared, "sliding": False, "policy": policy}
            cost = POLICIES[policy].cost(slots, _EACH_S, sliding=False)
            made.append(Point({**label, "policy": policy}, long_run, arguments, cost))
    return made


class _Gaps:
    """Gains of the policies, beside the proven bound, by case."""

    def __init__(self, settings: GapSettings, results: Results) -> None:
        self.settings, self.results = settings, results

    def at(self, case: Case) -> Results:
        return self.results.where(system=case[0], alpha=case[1])

    def gains(self, case: Case, policy: str = "infida", column: str = "windows_ms") -> list[float]:
        return self.settings.means(self.at(case), column, policy=policy)

    def bound(self, case: Case) -> float:
        return self.at(case).value("bound_ms", policy="exact")

    def gaps(self, case: Case, policy: str) -> list[float]:
        """To the proven bound, as a part of it, window by window."""
        return [1 - gain / self.bound(case) for gain in self.gains(case, policy)]

    def falls(self) -> dict[Case, float]:
        """INFIDA's gain in the last window over that in its best one, less 1."""
        falls = {}
        for case in self.settings.cases:
            gains = self.gains(case)
            known = [gain for gain in gains if not math.isnan(gain)]
            falls[case] = gains[-1] / max(known, default=gains[0]) - 1
        return falls


def _gap_figure(settings: GapSettings, results: Results) -> Drawing:
    systems, of = settings.systems, _Gaps(settings, results)
    return panels(
        [part(of, system) for part in (_gaps_panel, _slots_panel) for system in systems],
        columns=len(systems),
        title="The policies beside the best static allocation, fixed popularity",
    )


def _gaps_panel(of: _Gaps, system: str) -> Panel:
    settings = of.settings
    alphas, exact = settings.alphas, of.results.where(system=system, policy="exact")
    relaxed, bound = (exact.values(column, alpha=alphas) for column in ("relaxed_ms", "bound_ms"))
    above = [one / least_ms - 1 for one, least_ms in zip(relaxed, bound, strict=True)]
    gaps = [
        (POLICIES[policy].look, [of.gaps((system, alpha), policy)[-1] for alpha in alphas])
        for policy in settings.policies
    ]
    return Panel(
        f"Topology {system}, {settings.named(-1)}",
        *("alpha, ms per point", "gap to the bound, %"),
        [
            look.curve(alphas, np.maximum(100 * np.array(parts), 1e-3).tolist())
            for look, parts in (*gaps, (Look("LP relaxation, above it"), above))
        ],
        scale_up="log",
    )


def _slots_panel(of: _Gaps, system: str) -> Panel:
    """Gain in the course of the run at the alpha where INFIDA falls the most."""
    settings = of.settings
    falls = {case: one for case, one in of.falls().items() if case[0] == system}
    _, (_, alpha) = least(falls, (system, settings.alphas[0]))
    here, bound = of.at((system, alpha)), of.bound((system, alpha))
    drawn = [
        course(POLICIES[one].look, mean_series(here, "series_ms", policy=one), settings.slots)
        for one in settings.policies
    ]
    known = not math.isnan(bound)
    return Panel(
        f"Topology {system}, alpha = {alpha:g}",
        *("slot", "gain, ms", drawn),
        levels=[("proven bound", bound)] if known else [],
        limits_up=(0.75 * bound, 1.02 * bound) if known else None,
    )


def _said(values: Mapping[Case, float], digits: str) -> str:
    """Percentages by topology and alpha, of what is known."""
    known = {f"{s} {a:g}": one for (s, a), one in values.items() if not math.isnan(one)}
    return percents(known, digits)


def _gap_claims(settings: GapSettings, results: Results) -> list[Claim]:
    of, cases = _Gaps(settings, results), settings.cases
    last, early = (settings.named(k) for k in (-1, settings.early))
    ends = ", ".join(str(end) for _, end in settings.windows)
    gains = {case: of.gains(case) for case in cases}
    margins = {case: gains[case][-1] / of.gains(case, "static-greedy")[-1] - 1 for case in cases}
    changes = {case: own[-1] / own[settings.early] - 1 for case, own in gains.items()}
    change, moved = most({case: abs(one) for case, one in changes.items()}, _NONE)
    why = ""
    if not math.isnan(change):
        course_ms = ", ".join(f"{one:.2f}" for one in gains[moved])
        why = f"Topology {moved[0]}, alpha {moved[1]:g}: {course_ms} ms in the windows that end at "
        why += f"{ends}; others {_said(changes, '+.1f')}"
    # The gain falls, since what mirror ascent climbs is not what roundings gain.
    _, fallen = least(of.falls(), cases[0])
    climbed, gained = (
        [of.gains(fallen, column=column)[k] for k in (settings.early, -1)]
        for column in ("climbed_ms", "windows_ms")
    )
    near = "\n* ".join(_near(of, policy, ends) for policy in _LIMITS)
    solved = results.where(policy="exact").rows
    slow = max((row["seconds"] for row in solved), default=math.nan)
    return claims(f"""
      * [ours] {near}
      * INFIDA's gain has settled after 240 slots.
        - largest change from {early} to {last}: {change} (at most 1 %)
        - {why}
      * In the end INFIDA gains as much as static greedy.
        - its least gain over static greedy's in the last window, less 1:
          {least(margins, _NONE)[0]} (at least -1 %)
        - {_said(margins, "+.1f")}
      * What mirror ascent climbs goes on rising where the gain of its roundings falls the most.
        - eq. 16 at the fractional allocation in {last}, less that in {early}:
          {climbed[1] - climbed[0]} (at least 0.0 ms)
        - Topology {fallen[0]}, alpha {fallen[1]:g}: eq. 16 from {climbed[0]:.2f} to
          {climbed[1]:.2f} ms, the gain from {gained[0]:.2f} to {gained[1]:.2f} ms; no allocation
          gains more than {of.bound(fallen):.2f} ms. The potential available capacities of eq. 7
          count an instance for every type that could use it, so that the fractional allocation is
          worth more than any rounding of it
      * {_theorem(of)}
      * The MILP is solved to within 0.1 %.
        - largest proven gap:
          {max((1 - row["ntag_ms"] / row["bound_ms"] for row in solved), default=math.nan)}
          (at most 0.1 %)
        - in up to {slow:.1f} s
    """)


def _near(of: _Gaps, policy: str, ends: str) -> str:
    settings = of.settings
    gaps = {case: of.gaps(case, policy) for case in settings.cases}
    lasts = {case: one[-1] for case, one in gaps.items()}
    worst, case = most(lasts, _NONE)
    said = _said(lasts, ".2f")
    if not math.isnan(worst) and policy in ("infida", "infida-coupled"):
        said += f"; at the worst by windows that end at {ends}: "
        said += ", ".join(f"{100 * gap:.1f}" for gap in gaps[case]) + " %"
    return f"""{POLICIES[policy].label} ends near the best static allocation.
        - largest gap to the proven bound in {settings.named(-1)}:
          {worst} (at most {_LIMITS[policy]} %)
        - by topology and alpha: {said}"""


def _theorem(of: _Gaps) -> str:
    first, growth, far, slots = {}, {}, {}, of.settings.slots
    for case in of.settings.cases:
        here = of.at(case)
        best, until = (
            here.value("served_ms", policy="exact"),
            mean_series(here, "until_ms", policy="infida"),
        )
        if math.isnan(best) or np.isnan(until).any():
            continue
        short = np.flatnonzero(until < (1 - 1 / math.e) * best)
        first[case] = slots / len(until) * (int(short[-1]) + 1 if short.size else 0)
        middle = max(0, round(len(until) * STATIC_SLOTS / slots) - 1)
        growth[case] = float(until[min(middle, len(until) - 1)] - until[-1]) / best
        far[case] = float(until[-1] / best)
    return f"""[Theorem V.1]
        INFIDA's mean gain until T is at least 1 - 1/e of the best static allocation's, from some T
        on.
        - slots, in steps of {slots / min(100, slots):g}, until it stays so:
          {most(first, _NONE)[0]} (at most 30)
        - against what the MILP's allocation gains as served; at T = {slots} at least
          {100 * least(far, _NONE)[0]:.1f} % of it
      * [ours] Without the factor 1 - 1/e, too, the mean regret falls as T grows.
        - largest mean regret at T = {slots} less that at T = {min(STATIC_SLOTS, slots)}, of the
          best gain: {most(growth, _NONE)[0]} (at most 0 %)
        - the theorem promises it with the factor only; by topology and alpha:
          {_said(growth, "+.2f")}"""


RATE = placement_study(
    name="learning-rate",
    source="ours",
    shows="The learning rate that tunes itself, beside hand-set ones.",
    scales=scales(
        RateSettings(),
        smoke={"slots": 60, "trials": 1, "cases": _CASES[10:12], "rates": (1e0, 1e2, 1e4)},
        quick={"cases": _QUICK, "rates": (1e1, 1e2, 3e2, 1e3, 3e3, 1e4)},
    ),
    points=_rate_points,
    figure=_rate_figure,
    claims=_rate_claims,
)
GAP = placement_study(
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
    points=_gap_points,
    figure=_gap_figure,
    claims=_gap_claims,
    departures=(
        f"Policies in hindsight run for {STATIC_SLOTS} slots: under fixed popularity every slot "
        "has the same mean requests, and a static allocation the same mean gain.",
    ),
)
