"""How far the policies are from the proven best static allocation, and for how long (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.experiments.claim import Claim
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.placement.long_run import (
    STATIC_SLOTS,
    best_window,
    long_run,
    mean_of,
    named,
    seconds,
    windows,
)
from inferway.studies.placement.look import POLICIES
from inferway.studies.placement.setting import scenario
from inferway.studies.placement.trial import CODE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from inferway.experiments.curves import Panel

_PSI = 1 - 1 / math.e
_POLICIES = ("infida", "infida-coupled", "infida-offline", "static-greedy", "olag", "greedy")
_SETTLED = 0.01
"""A gain that changes by less has settled."""


@dataclass(frozen=True)
class Settings:
    """Topology I and II under fixed popularity, where a static allocation can be the best."""

    systems: tuple[str, ...] = ("I", "II")
    alphas: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    rate_per_s: float = 7500.0
    policies: tuple[str, ...] = _POLICIES
    slots: int = 4000
    trials: int = 3
    time_limit_s: float = 300.0


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
    from inferway.placement import best_static, minimal, relaxation, serve

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


def points(settings: Settings) -> list[Point]:
    """The MILP and every policy at every alpha."""
    found = []
    for system in settings.systems:
        for alpha in settings.alphas:
            for trial in range(settings.trials):
                case = {"system": system, "alpha": alpha}
                common = {**case, "rate_per_s": settings.rate_per_s, "seed": trial + 1}
                found.append(
                    Point(
                        {**case, "policy": "exact", "trial": trial},
                        proven,
                        {**common, "time_limit_s": settings.time_limit_s, "slots": settings.slots},
                        settings.time_limit_s / 3,
                    )
                )
                found += [
                    Point(
                        {**case, "policy": policy, "trial": trial},
                        long_run,
                        {**common, "sliding": False, "policy": policy, "slots": settings.slots},
                        seconds(policy, settings.slots),
                    )
                    for policy in settings.policies
                ]
    return found


def _cases(settings: Settings) -> list[tuple[str, float]]:
    return [(system, alpha) for system in settings.systems for alpha in settings.alphas]


def _gap(results: Results, system: str, alpha: float, policy: str, window: int) -> float:
    """To the proven bound, as a part of it, in a window of the slots."""
    here = results.where(system=system, alpha=alpha)
    mine = mean_of(here, "windows_ms", window, policy=policy)
    return 1 - mine / here.value("bound_ms", policy="exact")


def figure(settings: Settings, results: Results) -> Figure:
    """Gap to the bound in the last window above, gain against slots below, by topology."""
    from inferway.experiments.curves import panels

    above = [_gaps_panel(settings, results, system) for system in settings.systems]
    below = [_slots_panel(settings, results, system) for system in settings.systems]
    title = "The policies beside the best static allocation, fixed popularity"
    return panels([*above, *below], columns=len(settings.systems), title=title)


def _gaps_panel(settings: Settings, results: Results, system: str) -> Panel:
    from inferway.experiments.curves import Curve, Panel

    drawn, last = [], len(windows(settings.slots)) - 1
    for policy in settings.policies:
        look = POLICIES[policy]
        y = [100 * _gap(results, system, alpha, policy, last) for alpha in settings.alphas]
        shown = np.maximum(y, 1e-3).tolist()
        drawn.append(Curve(look.label, settings.alphas, shown, (), (), look.color, look.dash))
    relaxed = []
    for alpha in settings.alphas:
        here = results.where(system=system, alpha=alpha, policy="exact")
        relaxed.append(100 * (here.value("relaxed_ms") / here.value("bound_ms") - 1))
    shown = np.maximum(relaxed, 1e-3).tolist()
    drawn.append(Curve("LP relaxation, above it", settings.alphas, shown))
    return Panel(
        f"Topology {system}, {named(windows(settings.slots)[-1])}",
        "alpha, ms per point",
        "gap to the bound, %",
        drawn,
        scale_up="log",
    )


def _slots_panel(settings: Settings, results: Results, system: str) -> Panel:
    """Gain in the course of the run at the alpha where INFIDA falls the most."""
    from inferway.experiments.curves import Curve, Panel

    falls = {alpha: _fall(settings, results, system, alpha) for alpha in settings.alphas}
    alpha = min(falls, key=lambda one: falls[one] if falls[one] == falls[one] else math.inf)
    drawn, here = [], results.where(system=system, alpha=alpha)
    bound = here.value("bound_ms", policy="exact")
    for policy in settings.policies:
        rows = [row["series_ms"] for row in here.where(policy=policy).rows]
        look = POLICIES[policy]
        y = np.mean(rows, axis=0) if rows else np.array([math.nan])
        x = (np.arange(len(y)) + 0.5) * settings.slots / len(y)
        drawn.append(
            Curve(look.label, x.tolist(), y.tolist(), (), (), look.color, look.dash, markers=False)
        )
    return Panel(
        f"Topology {system}, alpha = {alpha:g}",
        "slot",
        "gain, ms",
        drawn,
        levels=[] if math.isnan(bound) else [("proven bound", bound)],
        limits_up=None if math.isnan(bound) else (0.75 * bound, 1.02 * bound),
    )


def _fall(settings: Settings, results: Results, system: str, alpha: float) -> float:
    """INFIDA's gain in the last window over that in its best one, less 1."""
    here = results.where(system=system, alpha=alpha, policy="infida")
    gains = [mean_of(here, "windows_ms", k) for k in range(len(windows(settings.slots)))]
    return gains[-1] / gains[best_window(gains)] - 1


def claims(settings: Settings, results: Results) -> list[Claim]:
    """How near each policy comes in the end, whether it stays there, and Theorem V.1."""
    limits = {"infida": 0.1, "infida-coupled": 0.1, "infida-offline": 0.05, "static-greedy": 0.1}
    return [
        *(_near(settings, results, policy, limit) for policy, limit in limits.items()),
        _settled(settings, results),
        _overtaken(settings, results),
        _climbs(settings, results),
        *_theorem(settings, results),
        _solved(results),
    ]


def _near(settings: Settings, results: Results, policy: str, limit: float) -> Claim:
    parts = windows(settings.slots)
    gaps = {
        case: [_gap(results, *case, policy, k) for k in range(len(parts))]
        for case in _cases(settings)
    }
    known = {case: of for case, of in gaps.items() if not math.isnan(of[-1])}
    worst = max(known, key=lambda case: known[case][-1], default=None)
    said = ", ".join(f"{s} {a:g}: {100 * of[-1]:.2f} %" for (s, a), of in known.items())
    if worst is not None and policy.startswith("infida") and policy != "infida-offline":
        course = ", ".join(f"{100 * gap:.1f}" for gap in known[worst])
        said += f"; at the worst by windows that end at {_ends(settings)}: {course} %"
    return Claim(
        "ours",
        f"{POLICIES[policy].label} ends near the best static allocation.",
        f"largest gap to the proven bound in {named(parts[-1])}",
        math.nan if worst is None else known[worst][-1],
        at_most=limit,
        unit="%",
        why=f"by topology and alpha: {said}",
    )


def _ends(settings: Settings) -> str:
    return ", ".join(str(end) for _, end in windows(settings.slots))


def _settled(settings: Settings, results: Results) -> Claim:
    """Whether what a few hours show is what stays."""
    parts = windows(settings.slots)
    early = min(1, len(parts) - 1)
    changes = {}
    for system, alpha in _cases(settings):
        here = results.where(system=system, alpha=alpha, policy="infida")
        gains = [mean_of(here, "windows_ms", k) for k in range(len(parts))]
        changes[system, alpha] = gains[-1] / gains[early] - 1
    known = {case: change for case, change in changes.items() if not math.isnan(change)}
    worst = max(known, key=lambda case: abs(known[case]), default=None)
    why = ""
    if worst is not None:
        here = results.where(system=worst[0], alpha=worst[1], policy="infida")
        gains = [mean_of(here, "windows_ms", k) for k in range(len(parts))]
        course = ", ".join(f"{one:.2f}" for one in gains)
        why = f"Topology {worst[0]}, alpha {worst[1]:g}: {course} ms in the windows that end at "
        why += f"{_ends(settings)}; others " + ", ".join(
            f"{s} {a:g}: {100 * change:+.1f} %" for (s, a), change in known.items()
        )
    return Claim(
        "ours",
        "INFIDA's gain has settled after 240 slots.",
        f"largest change from {named(parts[early])} to {named(parts[-1])}",
        math.nan if worst is None else abs(known[worst]),
        at_most=_SETTLED,
        unit="%",
        why=why,
    )


def _overtaken(settings: Settings, results: Results) -> Claim:
    last = len(windows(settings.slots)) - 1
    margins = {}
    for system, alpha in _cases(settings):
        here = results.where(system=system, alpha=alpha)
        margins[system, alpha] = (
            mean_of(here, "windows_ms", last, policy="infida")
            / mean_of(here, "windows_ms", last, policy="static-greedy")
            - 1
        )
    known = {case: one for case, one in margins.items() if not math.isnan(one)}
    return Claim(
        "ours",
        "In the end INFIDA gains as much as static greedy.",
        "its least gain over static greedy's in the last window, less 1",
        min(known.values(), default=math.nan),
        at_least=-_SETTLED,
        unit="%",
        why=", ".join(f"{s} {a:g}: {100 * one:+.1f} %" for (s, a), one in known.items()),
    )


def _climbs(settings: Settings, results: Results) -> Claim:
    """Why the gain falls: what mirror ascent climbs is not what roundings gain."""
    parts = windows(settings.slots)
    early = min(1, len(parts) - 1)
    falls = {case: _fall(settings, results, *case) for case in _cases(settings)}
    worst = min(falls, key=lambda case: falls[case] if falls[case] == falls[case] else math.inf)
    here = results.where(system=worst[0], alpha=worst[1])
    climbed = [mean_of(here, "climbed_ms", k, policy="infida") for k in (early, -1)]
    gained = [mean_of(here, "windows_ms", k, policy="infida") for k in (early, -1)]
    bound = here.value("bound_ms", policy="exact")
    return Claim(
        "ours",
        "What mirror ascent climbs goes on rising where the gain of its roundings falls the most.",
        f"eq. 16 at the fractional allocation in {named(parts[-1])}, less that in "
        f"{named(parts[early])}",
        climbed[1] - climbed[0],
        at_least=0.0,
        unit="ms",
        why=f"Topology {worst[0]}, alpha {worst[1]:g}: eq. 16 from {climbed[0]:.2f} to "
        f"{climbed[1]:.2f} ms, the gain from {gained[0]:.2f} to {gained[1]:.2f} ms; no allocation "
        f"gains more than {bound:.2f} ms. The potential available capacities of eq. 7 count an "
        "instance for every type that could use it, so that the fractional allocation is worth "
        "more than any rounding of it",
    )


def _theorem(settings: Settings, results: Results) -> list[Claim]:
    """Theorem V.1 against the optimum as served, over T; and without its factor."""
    first, growth, far = {}, {}, {}
    for system, alpha in _cases(settings):
        here = results.where(system=system, alpha=alpha)
        best = here.value("served_ms", policy="exact")
        rows = [row["until_ms"] for row in here.where(policy="infida").rows]
        if not rows or math.isnan(best):
            continue
        until = np.mean(rows, axis=0)
        step = settings.slots / len(until)
        short = np.flatnonzero(until < _PSI * best)
        first[system, alpha] = step * (int(short[-1]) + 1 if short.size else 0)
        middle = max(0, round(len(until) * STATIC_SLOTS / settings.slots) - 1)
        lost = best - until
        growth[system, alpha] = float(lost[-1] - lost[min(middle, len(until) - 1)]) / best
        far[system, alpha] = float(until[-1] / best)
    least = min(far.values(), default=math.nan)
    most = max(growth, key=lambda case: growth[case], default=None)
    return [
        Claim(
            "Theorem V.1",
            "INFIDA's mean gain until T is at least 1 - 1/e of the best static allocation's, from "
            "some T on.",
            f"slots, in steps of {settings.slots / min(100, settings.slots):g}, until it stays so",
            max(first.values(), default=math.nan),
            at_most=30,
            why=f"against what the MILP's allocation gains as served; at T = {settings.slots} at "
            f"least {100 * least:.1f} % of it",
        ),
        Claim(
            "ours",
            "Without the factor 1 - 1/e, too, the mean regret falls as T grows.",
            f"largest mean regret at T = {settings.slots} less that at T = "
            f"{min(STATIC_SLOTS, settings.slots)}, of the best gain",
            math.nan if most is None else growth[most],
            at_most=0.0,
            unit="%",
            why="the theorem promises it with the factor only; by topology and alpha: "
            + ", ".join(f"{s} {a:g}: {100 * one:+.2f} %" for (s, a), one in growth.items()),
        ),
    ]


def _solved(results: Results) -> Claim:
    solved = results.where(policy="exact")
    gaps = [1 - row["ntag_ms"] / row["bound_ms"] for row in solved.rows]
    slow = max((row["seconds"] for row in solved.rows), default=math.nan)
    return Claim(
        "ours",
        "The MILP is solved to within 0.1 %.",
        "largest proven gap",
        max(gaps, default=math.nan),
        at_most=0.001,
        unit="%",
        why=f"in up to {slow:.1f} s",
    )


_PAPER = Settings()
STUDY = Study(
    name="milp-gap",
    source="ours",
    shows="The policies beside the proven best static allocation, over thousands of slots.",
    scales={
        "smoke": replace(
            _PAPER, slots=60, trials=1, systems=("I",), alphas=(1.0,), time_limit_s=20.0
        ),
        "quick": replace(_PAPER, alphas=(1.0, 3.0, 5.0), time_limit_s=20.0),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    departures=(
        f"Policies in hindsight run for {STATIC_SLOTS} slots: under fixed popularity every slot "
        "has the same mean requests, and a static allocation the same mean gain.",
    ),
    code=(*CODE, "studies/placement/long_run.py"),
)
