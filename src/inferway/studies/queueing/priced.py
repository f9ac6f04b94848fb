"""The priced idle queue beyond the paper: beside an optimum, near saturation, and with energy.

The LP of [Anonymous] knows no queueing, so on a small site nothing comes near it (Sec. 7.1). The
least response time that any policy reaches there is `inferway.dispatch.mdp.mdp_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inferway.deployment.workloads import poisson
from inferway.dispatch import solve
from inferway.dispatch.mdp import mdp_bound
from inferway.experiments.claim import percents
from inferway.experiments.curves import Drawing, Look, Panel, frame, lines, panels
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claims, grid, scales
from inferway.studies.queueing.system import (
    BOUND,
    CODE,
    LOOKS,
    Settings,
    System,
    greatest,
    keeps_target,
    lp_optimum,
    measured,
    precise,
    response_panel,
    scenario,
    simulated,
)

_FREE = "tad-op"


@dataclass(frozen=True)
class OptimumSettings(Settings):
    """Ours."""

    places: int = 10


def _optimum_points(settings: OptimumSettings) -> list[Point]:
    shared = settings.common("servers", "target", "places")
    optima = grid(optimum, shared, 12.0, label={"kind": "optimum"}, load=settings.loads)
    axes = {"label": {"kind": "policy"}, "policy": "policies", "load": "loads"}
    return optima + settings.points(simulated, "servers", "target", **axes)


def optimum(
    *, system: Mapping[str, Any], servers: int, target: float, load: float, places: int
) -> dict[str, float]:
    """The least mean response time of any policy, with the LP's beside it."""
    site = System.of(system)
    rate_per_s = load * greatest(site, servers, target)
    best = mdp_bound(site.fleet(servers), target=target, rate_per_s=rate_per_s, places=places)
    return {
        "optimum_s": best.response_time_s,
        "gap_s": best.gap_s,
        "truncation_s": best.truncation_s,
        "states": best.states,
        "bound_s": lp_optimum(site, servers, target, load).response_time_s,
    }


def _optimum_figure(settings: OptimumSettings, results: Results) -> Drawing:
    loads, looks, goal = settings.loads, settings.looks, 100 * settings.target
    best, here = results.where(kind="optimum"), results.where(kind="policy")
    least = Look("optimum (MDP)", dash=":").line(best, "optimum_s", load=loads)
    response = [
        BOUND.line(best, "bound_s", load=loads),
        least,
        *lines(here, "response_s", looks, load=loads),
    ]
    accuracy = lines(here, "accuracy", looks, scale=100, load=loads)
    limits = frame(0.8, 1.6, least.y)
    return panels(
        [
            Panel("", "load", "accuracy, %", accuracy, levels=[("target", goal)]),
            Panel("", "load", "mean response time, s", response, limits_up=limits),
        ],
        columns=2,
        title=f"{settings.servers} servers: the best of all policies (ours)",
    )


def _optimum_claims(settings: OptimumSettings, results: Results) -> list[Claim]:
    loads, best, target = settings.loads, results.where(kind="optimum"), settings.target
    optimum_s, bound_s, gap_s, cut_s = (
        best.by(column, load=loads) for column in ("optimum_s", "bound_s", "gap_s", "truncation_s")
    )
    loose = {load: optimum_s[load] / bound_s[load] - 1 for load in loads}
    far, at = most(loose, math.nan)
    open_s = max(gap_s[load] + cut_s[load] for load in loads)
    # Only where the target is kept: a policy that misses it may well be faster.
    over = {}
    for load in loads:
        here = results.where(policy="priced", load=load)
        if not here.value("accuracy") < target - 0.0002:
            over[load] = here.value("response_s") / optimum_s[load] - 1
    worst, at_worst = most(over, math.nan)
    kept = "\n* ".join(
        keeps_target(
            f"{LOOKS[policy].label} keeps the target on a very small site.",
            {
                load: target - results.measure("accuracy", policy=policy, load=load).mean
                for load in loads
            },
            "at load {:g}",
        )
        for policy in ("tad-op", "priced")
    )
    return claims(f"""
      * [ours] On a very small site the LP is out of every policy's reach.
        - largest optimum over the LP's response time, less 1: {far} (at least 5 %)
        - at load {at:g}; at load {min(loads):g} {100 * loose[min(loads)]:.2f} %; the optimum is
          known to {open_s:.2g} s
      * {kept}
      * {LOOKS["priced"].label} is near the optimum where it keeps the target.
        - largest response time over the optimum's, less 1: {worst} (at most 10 %)
        - at load {at_worst:g}; within 5 % at {sum(one <= 0.05 for one in over.values())} of
          {len(over)} loads; {len(loads) - len(over)} loads at which the target is missed are left
          out
    """)


@dataclass(frozen=True)
class LimitsSettings(Settings):
    """A small and a large site, each at a target at which `priced` loses."""

    sites: tuple[tuple[int, float], ...] = ((64, 0.76), (1024, 0.72))  # servers and target
    # Servers and load of the claims.
    marked: tuple[tuple[int, float], ...] = ((64, 0.95), (1024, 0.98))
    most: int = 200_000_000


def _limits_points(settings: LimitsSettings) -> list[Point]:
    axes = {"policy": "policies", "load": "loads", "trial": "trials"}
    return [
        point
        for servers, target in settings.sites
        for point in settings.points(simulated, "most", servers=[servers], target=[target], **axes)
    ]


def _limits_figure(settings: LimitsSettings, results: Results) -> Drawing:
    shown = [
        response_panel(
            f"{servers} servers, target {100 * target:g} %",
            results.where(servers=servers, target=target),
            settings.looks,
            settings.loads,
        )
        for servers, target in settings.sites
    ]
    return panels(shown, columns=2, title="Where the priced idle queue loses (ours)")


def _limits_claims(settings: LimitsSettings, results: Results) -> list[Claim]:
    own = results.where(policy="priced")
    short = {
        f"at n = {n}, load {load:g}": target
        - own.measure("accuracy", servers=n, target=target, load=load).mean
        for n, target in settings.sites
        for load in settings.loads
    }
    kept = keeps_target("The priced idle queue keeps the target even there.", short, "{}", "")
    slower = [_slower(settings, results, *site) for site in settings.marked]
    return claims(*slower, f"[ours] {kept}")


def _slower(settings: LimitsSettings, results: Results, servers: int, load: float) -> str:
    target = dict(settings.sites)[servers]
    here = results.where(servers=servers, target=target)
    mine, theirs = (
        here.where(policy=policy).by("response_s", load=settings.loads)
        for policy in ("priced", "tad-op")
    )
    over = {at: mine[at] / theirs[at] - 1 for at in settings.loads}
    known = {f"{at:g}": one for at, one in over.items() if not math.isnan(one)}
    from_load = next((at for at in settings.loads if over[at] > 0), math.nan)
    return f"""
      * [ours] The priced idle queue is as fast as TAD-OP on {servers} servers at target {target:g}
        and load {load:g}.
        - its response time over TAD-OP's, less 1: {over[load]} (at most 0.5 %)
        - by load: {percents(known, "+.1f") or "none known"}; slower from load {from_load:g} on. It
          queues at fast servers where TAD-OP takes whichever server is idle, the slowest ones too
        """


@dataclass(frozen=True)
class EnergySettings(Settings):
    """Ours: the paper leaves several constraints open, and has no energies."""

    # Of a request by class, J: the fastest class is not the most frugal one.
    energy: tuple[float, ...] = (4.0, 2.0, 3.0, 10.0)
    rate: float = 0.3  # arrivals per server, 1/s: the same for every budget
    budgets: tuple[float, ...] = (2.3, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6)


def _energy_points(settings: EnergySettings) -> list[Point]:
    names = ("servers", "target", "rate", "energy")
    return [
        point
        for policy, budgets in (("priced", settings.budgets), (_FREE, (None,)))
        for point in settings.points(kept, *names, policy=[policy], budget=budgets, trial="trials")
    ]


def kept(
    *,
    system: Mapping[str, Any],
    energy: Sequence[float],
    servers: int,
    target: float,
    rate: float,
    budget: float | None,
    policy: str,
    queries: int,
    seed: int,
    precision: float | None = None,
    most: int = 200_000_000,
) -> dict[str, Any]:
    """Simulate a site with an accuracy target and an energy budget; the bounds have both.

    Energies are of a request by class, the budget is its greatest mean, J; `rate` is arrivals per
    server, 1/s.
    """
    fleet = replace(System.of(system).fleet(servers), energy=np.array(energy, float))
    rate_per_s = rate * servers
    best = solve(fleet, target, rate_per_s, budget)
    asked = scenario(fleet, poisson(rate_per_s), "exponential", target, policy, {})
    asked = replace(asked, energy_budget=budget)
    result = precise(asked, queries=queries, seed=seed, warmup=None, precision=precision, most=most)
    return {
        **measured(result),
        "energy": float(np.array([result.shares[name] for name in fleet.variants]) @ fleet.energy),
        "bound_s": best.response_time_s,
        "bound_energy": float(best.shares @ fleet.energy),
    }


def _energy_figure(settings: EnergySettings, results: Results) -> Drawing:
    budgets, look, goal = settings.budgets, LOOKS["priced"], 100 * settings.target
    here, free = results.where(policy="priced"), results.where(policy=_FREE)
    bound, without = Look("bound (LP, both constraints)"), Look("TAD-OP, no budget", 0, ":")
    response, energy = (
        [
            bound.line(here, least, budget=budgets),
            look.line(here, column, budget=budgets),
            without.flat(budgets, free.measure(column).mean),
        ]
        for column, least in (("response_s", "bound_s"), ("energy", "bound_energy"))
    )
    energy.append(Look("budget", 6, ":").series(budgets, budgets))
    accuracy = [look.line(here, "accuracy", scale=100, budget=budgets)]
    across, limits = "energy budget, J", (goal - 0.5, goal + 0.5)
    return panels(
        [
            Panel("", across, "mean response time, s", response),
            Panel("", across, "mean energy of a request, J", energy),
            Panel("", across, "accuracy, %", accuracy, levels=[("target", goal)], limits_up=limits),
        ],
        columns=3,
        title="Accuracy and energy at once (ours; left open by [Anonymous], Sec. 8.1)",
    )


def _energy_claims(settings: EnergySettings, results: Results) -> list[Claim]:
    here, free_energy = results.where(policy="priced"), results.value("energy", policy=_FREE)
    budgets = settings.budgets
    energy, bound_energy, accuracy, response_s, bound_s = (
        here.by(column, budget=budgets)
        for column in ("energy", "bound_energy", "accuracy", "response_s", "bound_s")
    )
    over, at_over = most({b: energy[b] / b - 1 for b in budgets}, math.nan)
    gap, at_gap = most({b: response_s[b] / bound_s[b] - 1 for b in budgets}, math.nan)
    short = {b: settings.target - accuracy[b] for b in budgets}
    at_budget = "at a budget of {:g} J"
    # Where the LP without the constraint would spend more.
    binding = [b for b in budgets if bound_energy[b] >= b * (1 - 1e-6)]
    return claims(f"""
      * [ours] With two constraints, two prices keep the energy budget.
        - largest mean energy over the budget, less 1: {over} (at most 0.2 %)
        - at a budget of {at_over:g} J
      * {keeps_target("They keep the accuracy target at the same time.", short, at_budget)}
      * On a large site that comes near the LP with both constraints.
        - largest response time over the bound, less 1, n = {settings.servers}: {gap} (at most 2 %)
        - at a budget of {at_gap:g} J
      * TAD-OP, which knows no budget, overspends every one that binds.
        - its mean energy over the largest budget that the LP uses up, less 1:
          {free_energy / max(binding, default=math.nan) - 1} (at least 0 %)
        - {free_energy:.3f} J; budgets that bind: {", ".join(f"{one:g} J" for one in binding)}
    """)


OPTIMUM = Study(
    name="small-optimum",
    source="ours, beside [Anonymous], Fig. 6",
    shows="The least response time of any policy on six servers, and how near the policies come.",
    scales=scales(
        # The first and the third class of Sec. 3.3: the pair that the bound uses at this target.
        OptimumSettings(system=System((2.0, 0.9), (0.70, 0.80), (0.5, 0.5)), servers=6),
        smoke={"servers": 2, "loads": (0.5,), "places": 8, "queries": 20_000},
        quick={"queries": 2_000_000, "precision": 0.0015},
    ),
    points=_optimum_points,
    figure=_optimum_figure,
    claims=_optimum_claims,
)
LIMITS = Study(
    name="priced-limits",
    source="ours, beside [Anonymous], Figs. 6 and 7",
    shows="Near saturation the priced idle queue is slower than TAD-OP: by how much, and from "
    "which load on.",
    scales=scales(
        LimitsSettings(
            loads=(0.80, 0.85, 0.90, 0.93, 0.95, 0.97, 0.98),
            policies=("tad-op", "priced"),
            queries=20_000_000,
            precision=0.0015,
            trials=3,
        ),
        smoke={
            **{"sites": ((64, 0.76),), "marked": ((64, 0.95),), "loads": (0.8, 0.95)},
            **{"queries": 20_000, "most": 20_000, "trials": 1},
        },
        quick={"queries": 1_000_000, "most": 4_000_000, "precision": 0.003},
    ),
    points=_limits_points,
    figure=_limits_figure,
    claims=_limits_claims,
    departures=(
        "Runs end at 4 million queries at quick scale, where the response time is known to "
        "0.3 % or not: the intervals say how well.",
    ),
)
ENERGY = Study(
    name="energy",
    source="ours, after [Anonymous], Sec. 8.1",
    shows="An accuracy target and an energy budget at once: two prices against the LP.",
    scales=scales(
        EnergySettings(servers=1024, trials=3),
        smoke={"servers": 64, "budgets": (2.6,), "queries": 40_000, "trials": 1},
        quick={"queries": 2_000_000, "precision": 0.003},
    ),
    points=_energy_points,
    figure=_energy_figure,
    claims=_energy_claims,
    code=CODE,
)
