"""Accuracy and energy kept at once: the LP, one price per constraint ([Anonymous], Sec. 8.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inferway.experiments.curves import Drawing, Look, Panel, flat, line, panels, series
from inferway.experiments.results import most
from inferway.studies import Claim, Point, Results, Study, claim, grid, scales
from inferway.studies.queueing.system import (
    CODE,
    FOUR_CLASSES,
    LOOKS,
    System,
    common,
    measured,
    precise,
    scenario,
    seconds,
)

_FREE = "tad-op"


@dataclass(frozen=True)
class Settings:
    """Ours: the paper leaves several constraints open, and has no energies."""

    system: System = FOUR_CLASSES
    energy: tuple[float, ...] = (4.0, 2.0, 3.0, 10.0)
    """Of a request by class, J: the fastest class is not the most frugal one."""
    servers: int = 1024
    target: float = 0.76
    rate: float = 0.3
    """Arrivals per server, 1/s: the same for every budget."""
    budgets: tuple[float, ...] = (2.3, 2.4, 2.6, 2.8, 3.0, 3.2, 3.4, 3.6)
    queries: int = 100_000_000
    precision: float | None = None
    trials: int = 3


def points(settings: Settings) -> list[Point]:
    """`priced` at every budget, and TAD-OP, which knows none."""
    shared = common(settings, "servers", "target", "rate", "queries", "precision")
    return [
        point
        for policy, budgets in (("priced", settings.budgets), (_FREE, (None,)))
        for point in grid(
            kept,
            {**shared, "energy": list(settings.energy)},
            seconds(settings.queries, settings.precision),
            policy=[policy],
            budget=budgets,
            trial=range(settings.trials),
        )
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
    """Simulate a site with an accuracy target and an energy budget.

    Parameters
    ----------
    energy
        Of a request by class, J.
    rate
        Arrivals per server, 1/s.
    budget
        Greatest mean energy of a request, J; None for none.

    Returns
    -------
    dict
        Response time, accuracy and mean energy, and the LP's with both constraints.
    """
    import numpy as np

    from inferway.deployment.workloads import poisson
    from inferway.dispatch import solve

    fleet = replace(System.of(system).fleet(servers), energy=np.array(energy, float))
    rate_per_s = rate * servers
    optimum = solve(fleet, target, rate_per_s, budget)
    asked = scenario(fleet, poisson(rate_per_s), "exponential", target, policy, {})
    asked = replace(asked, energy_budget=budget)
    result = precise(asked, queries=queries, seed=seed, warmup=None, precision=precision, most=most)
    shares = np.array([result.shares[name] for name in fleet.variants])
    return {
        **measured(result),
        "energy": float(shares @ fleet.energy),
        "bound_s": optimum.response_time_s,
        "bound_energy": float(optimum.shares @ fleet.energy),
    }


def figure(settings: Settings, results: Results) -> Drawing:
    """Response time, energy and accuracy against the budget."""
    budgets = settings.budgets
    here, free = results.where(policy="priced"), results.where(policy=_FREE)
    bound, look = Look("bound (LP, both constraints)"), LOOKS["priced"]
    without = Look("TAD-OP, no budget", 0, ":")
    goal = 100 * settings.target
    response = [
        line(here, "bound_s", bound, budget=budgets),
        line(here, "response_s", look, budget=budgets),
        flat(without, budgets, free.measure("response_s").mean),
    ]
    energy = [
        line(here, "bound_energy", bound, budget=budgets),
        line(here, "energy", look, budget=budgets),
        flat(without, budgets, free.measure("energy").mean),
        series(Look("budget", 6, ":"), budgets, budgets),
    ]
    accuracy = [line(here, "accuracy", look, scale=100, budget=budgets)]
    across = "energy budget, J"
    return panels(
        [
            Panel("", across, "mean response time, s", response),
            Panel("", across, "mean energy of a request, J", energy),
            Panel(
                "",
                across,
                "accuracy, %",
                accuracy,
                levels=[("target", goal)],
                limits_up=(goal - 0.5, goal + 0.5),
            ),
        ],
        columns=3,
        title="Accuracy and energy at once (ours; left open by [Anonymous], Sec. 8.1)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What one price per constraint reaches."""
    here, free = results.where(policy="priced"), results.where(policy=_FREE)
    budgets = settings.budgets
    energy, bound_energy, accuracy, response_s, bound_s = (
        dict(zip(budgets, here.values(column, budget=budgets), strict=True))
        for column in ("energy", "bound_energy", "accuracy", "response_s", "bound_s")
    )
    over = most({budget: energy[budget] / budget - 1 for budget in budgets}, math.nan)
    short = most({budget: settings.target - accuracy[budget] for budget in budgets}, math.nan)
    gap = most({budget: response_s[budget] / bound_s[budget] - 1 for budget in budgets}, math.nan)
    # Where the LP without the constraint would spend more.
    binding = [b for b in budgets if bound_energy[b] >= b * (1 - 1e-6)]
    return [
        claim(
            "ours",
            "With two constraints, two prices keep the energy budget.",
            "largest mean energy over the budget, less 1",
            over[0],
            "at most 0.2 %",
            f"at a budget of {over[1]:g} J",
        ),
        claim(
            "ours",
            "They keep the accuracy target at the same time.",
            "largest shortfall of the mean accuracy",
            short[0],
            "at most 0.02 %",
            f"at a budget of {short[1]:g} J",
        ),
        claim(
            "ours",
            "On a large site that comes near the LP with both constraints.",
            f"largest response time over the bound, less 1, n = {settings.servers}",
            gap[0],
            "at most 2 %",
            f"at a budget of {gap[1]:g} J",
        ),
        claim(
            "ours",
            "TAD-OP, which knows no budget, overspends every one that binds.",
            "its mean energy over the largest budget that the LP uses up, less 1",
            free.value("energy") / max(binding, default=math.nan) - 1,
            "at least 0 %",
            f"{free.value('energy'):.3f} J; budgets that bind: "
            + ", ".join(f"{one:g} J" for one in binding),
        ),
    ]


STUDY = Study(
    name="energy",
    source="ours, after [Anonymous], Sec. 8.1",
    shows="An accuracy target and an energy budget at once: two prices against the LP.",
    scales=scales(
        Settings(),
        smoke={"servers": 64, "budgets": (2.6,), "queries": 40_000, "trials": 1},
        quick={"queries": 2_000_000, "precision": 0.003},
    ),
    points=points,
    figure=figure,
    claims=claims,
    code=CODE,
)
