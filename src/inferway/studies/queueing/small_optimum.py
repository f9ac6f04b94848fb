"""How far the policies are from the best of all on a very small site, by an MDP. Ours.

The LP of [Anonymous] knows no queueing, so on a small site nothing comes near it (Sec. 7.1). The
least response time that any policy reaches there is `inferway.dispatch.mdp.mdp_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferway.experiments.curves import Drawing, Look, Panel, frame, line, lines, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import BOUND, LOOKS, System, common, seconds, simulated

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
    from inferway.dispatch.mdp import mdp_bound

    site = System.of(system)
    rate_per_s = load * site.greatest(servers, target)
    best = mdp_bound(site.fleet(servers), target=target, rate_per_s=rate_per_s, places=places)
    return {
        "optimum_s": best.response_time_s,
        "gap_s": best.gap_s,
        "truncation_s": best.truncation_s,
        "states": best.states,
        "bound_s": site.bound(servers, target, load).response_time_s,
    }


def figure(settings: Settings, results: Results) -> Drawing:
    """Response time and accuracy against load."""
    looks = {policy: LOOKS[policy] for policy in settings.policies}
    best, here = results.where(kind="optimum"), results.where(kind="policy")
    least = line(best, "optimum_s", Look("optimum (MDP)", dash=":"), load=settings.loads)
    response = [
        line(best, "bound_s", BOUND, load=settings.loads),
        least,
        *lines(here, "response_s", looks, load=settings.loads),
    ]
    accuracy = lines(here, "accuracy", looks, scale=100, load=settings.loads)
    goal, limits = 100 * settings.target, frame(0.8, 1.6, least.y)
    return panels(
        [
            Panel("", "load", "accuracy, %", accuracy, levels=[("target", goal)]),
            Panel("", "load", "mean response time, s", response, limits_up=limits),
        ],
        columns=2,
        title=f"{settings.servers} servers: the best of all policies (ours)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """The optimum against the LP, and the policies against the optimum."""
    loads, best = settings.loads, results.where(kind="optimum")
    optimum_s, bound_s, gap_s, cut_s = (
        best.values(column, load=loads)
        for column in ("optimum_s", "bound_s", "gap_s", "truncation_s")
    )
    loose = {load: one / lp - 1 for load, one, lp in zip(loads, optimum_s, bound_s, strict=True)}
    far, at = most(loose, math.nan)
    open_s = max(gap + cut for gap, cut in zip(gap_s, cut_s, strict=True))
    return [
        claim(
            "ours",
            "On a very small site the LP is out of every policy's reach.",
            "largest optimum over the LP's response time, less 1",
            far,
            "at least 5 %",
            f"at load {at:g}; at load {min(loads):g} {100 * loose[min(loads)]:.2f} %; the optimum "
            f"is known to {open_s:.2g} s",
        ),
        *(_keeps(settings, results, policy) for policy in ("tad-op", "priced")),
        _near(settings, results, "priced"),
    ]


def _keeps(settings: Settings, results: Results, policy: str) -> Claim:
    accuracy = results.where(policy=policy).means("accuracy", load=settings.loads)
    short = {
        load: settings.target - one for load, one in zip(settings.loads, accuracy, strict=True)
    }
    worst, at = most(short, math.nan)
    return claim(
        "ours",
        f"{LOOKS[policy].label} keeps the target on a very small site.",
        "largest shortfall of the mean accuracy",
        worst,
        "at most 0.02 %",
        f"at load {at:g}",
    )


def _near(settings: Settings, results: Results, policy: str) -> Claim:
    """Only where the target is kept: a policy that misses it may well be faster."""
    over = {}
    for load in settings.loads:
        here = results.where(policy=policy, load=load)
        if not here.value("accuracy") < settings.target - 0.0002:
            optimum_s = results.value("optimum_s", load=load)
            over[load] = here.value("response_s") / optimum_s - 1
    worst, at = most(over, math.nan)
    return claim(
        "ours",
        f"{LOOKS[policy].label} is near the optimum where it keeps the target.",
        "largest response time over the optimum's, less 1",
        worst,
        "at most 10 %",
        f"at load {at:g}; within 5 % at {sum(one <= 0.05 for one in over.values())} of "
        f"{len(over)} loads; {len(settings.loads) - len(over)} loads at which the target is "
        "missed are left out",
    )


STUDY = Study(
    name="small-optimum",
    source="ours, beside [Anonymous], Fig. 6",
    shows="The least response time of any policy on six servers, and how near the policies come.",
    scales=scales(
        Settings(),
        smoke={"servers": 2, "loads": (0.5,), "places": 8, "queries": 20_000},
        quick={"queries": 2_000_000, "precision": 0.0015},
    ),
    points=points,
    figure=figure,
    claims=claims,
)
