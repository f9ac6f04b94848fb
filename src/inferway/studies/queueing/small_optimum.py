"""How far the policies are from the best of all on a very small site, by an MDP. Ours.

The LP of [Anonymous] knows no queueing, so on a small site nothing comes near it (Sec. 7.1). The
least response time that any policy reaches there is `inferway.dispatch.mdp.mdp_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing.system import System, common, seconds, simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PAIR = System((2.0, 0.9), (0.70, 0.80), (0.5, 0.5))
"""The first and the third class of Sec. 3.3: the pair that the bound uses at target 0.76."""


@dataclass(frozen=True)
class Settings:
    """Ours."""

    system: System = _PAIR
    servers: int = 6
    target: float = 0.76
    loads: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    policies: tuple[str, ...] = ("r-jiq", "tad", "tad-op", "priced")
    places: int = 10
    queries: int = 100_000_000
    precision: float | None = None


def points(settings: Settings) -> list[Point]:
    """The optimum at every load, and every policy."""
    optima = grid(
        optimum,
        common(settings, "servers", "target", "places"),
        12.0,
        label={"kind": "optimum"},
        load=settings.loads,
    )
    policies = grid(
        simulated,
        {**common(settings, "servers", "target", "queries", "precision"), "seed": 1},
        seconds(settings.queries, settings.precision),
        label={"kind": "policy"},
        policy=settings.policies,
        load=settings.loads,
    )
    return optima + policies


def optimum(
    *, system: Mapping[str, Any], servers: int, target: float, load: float, places: int
) -> dict[str, float]:
    """The least mean response time of any policy, with the LP's beside it."""
    from inferway.dispatch import max_rate, solve
    from inferway.dispatch.mdp import mdp_bound

    fleet = System(**{name: tuple(value) for name, value in system.items()}).fleet(servers)
    rate_per_s = load * max_rate(fleet, target)
    found = mdp_bound(fleet, target=target, rate_per_s=rate_per_s, places=places)
    return {
        "optimum_s": found.response_time_s,
        "gap_s": found.gap_s,
        "truncation_s": found.truncation_s,
        "states": found.states,
        "bound_s": solve(fleet, target, rate_per_s).response_time_s,
    }


def figure(settings: Settings, results: Results) -> Figure:
    """Response time and accuracy against load."""
    from inferway.experiments.curves import Curve, Panel, panels
    from inferway.studies.queueing.look import bound_curve, policy_curve

    loads = settings.loads
    best = results.where(kind="optimum")
    optimal = [best.measure("optimum_s", load=load).mean for load in loads]
    bound = [best.measure("bound_s", load=load).mean for load in loads]
    response = [
        bound_curve(loads, bound),
        Curve("optimum (MDP)", loads, optimal, dash=":"),
    ]
    accuracy = []
    for policy in settings.policies:
        here = results.where(kind="policy", policy=policy)
        times = [here.measure("response_s", load=load) for load in loads]
        response.append(policy_curve(policy, loads, times))
        kept = [here.measure("accuracy", load=load) for load in loads]
        accuracy.append(policy_curve(policy, loads, kept, 100))
    known = [one for one in optimal if not math.isnan(one)] or [1.0]
    goal = 100 * settings.target
    return panels(
        [
            Panel("", "load", "accuracy, %", accuracy, levels=[("target", goal)]),
            Panel(
                "",
                "load",
                "mean response time, s",
                response,
                limits_up=(0.8 * min(known), 1.6 * max(known)),
            ),
        ],
        columns=2,
        title=f"{settings.servers} servers: the best of all policies (ours)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The optimum against the LP, and the policies against the optimum."""
    best = results.where(kind="optimum")
    loose = {
        load: best.value("optimum_s", load=load) / best.value("bound_s", load=load) - 1
        for load in settings.loads
    }
    known = {load: value for load, value in loose.items() if not math.isnan(value)}
    at = max(known, key=lambda load: known[load], default=math.nan)
    open_s = [
        best.value("gap_s", load=load) + best.value("truncation_s", load=load)
        for load in settings.loads
    ]
    return [
        Claim(
            "ours",
            "On a very small site the LP is out of every policy's reach.",
            "largest optimum over the LP's response time, less 1",
            known.get(at, math.nan),
            at_least=0.05,
            unit="%",
            why=f"at load {at:g}; at load {min(settings.loads):g} "
            f"{100 * loose[min(settings.loads)]:.2f} %; the optimum is known to "
            f"{max(open_s):.2g} s",
        ),
        *[_keeps(settings, results, policy) for policy in ("tad-op", "priced")],
        _near(settings, results, "priced"),
    ]


def _keeps(settings: Settings, results: Results, policy: str) -> Claim:
    from inferway.studies.queueing.look import LOOKS

    worst, at = math.nan, math.nan
    for load in settings.loads:
        short = settings.target - results.measure("accuracy", policy=policy, load=load).mean
        if short == short and not short <= worst:
            worst, at = short, load
    return Claim(
        "ours",
        f"{LOOKS[policy].label} keeps the target on a very small site.",
        "largest shortfall of the mean accuracy",
        worst,
        at_most=0.0002,
        unit="%",
        why=f"at load {at:g}",
    )


def _near(settings: Settings, results: Results, policy: str) -> Claim:
    """Only where the target is kept: a policy that misses it may well be faster."""
    from inferway.studies.queueing.look import LOOKS

    worst, at, left_out, all_over = math.nan, math.nan, 0, []
    for load in settings.loads:
        here = results.where(policy=policy, load=load)
        if here.value("accuracy") < settings.target - 0.0002:
            left_out += 1
            continue
        over = here.value("response_s") / results.value("optimum_s", load=load) - 1
        all_over.append(over)
        if over == over and not over <= worst:
            worst, at = over, load
    return Claim(
        "ours",
        f"{LOOKS[policy].label} is near the optimum where it keeps the target.",
        "largest response time over the optimum's, less 1",
        worst,
        at_most=0.10,
        unit="%",
        why=f"at load {at:g}; within 5 % at {sum(over <= 0.05 for over in all_over)} of "
        f"{len(all_over)} loads; {left_out} loads at which the target is missed are left out",
    )


_PAPER = Settings()
STUDY = Study(
    name="small-optimum",
    source="ours, beside [Anonymous], Fig. 6",
    shows="The least response time of any policy on six servers, and how near the policies come.",
    scales={
        "smoke": replace(_PAPER, servers=2, loads=(0.5,), places=8, queries=20_000),
        "quick": replace(_PAPER, queries=2_000_000, precision=0.0015),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
)
