"""Accuracy and energy kept at once: the LP, one price per constraint ([Anonymous], Sec. 8.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from inferway.experiments.claim import Claim
from inferway.experiments.grid import grid
from inferway.experiments.results import Results
from inferway.experiments.runner import Point
from inferway.experiments.study import Study
from inferway.studies.queueing import CODE
from inferway.studies.queueing.system import FOUR_CLASSES, System, common, scenario, seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    every = []
    for policy, budgets in (("priced", settings.budgets), (_FREE, (None,))):
        every += grid(
            kept,
            {
                **common(settings, "servers", "target", "rate", "queries", "precision"),
                "energy": list(settings.energy),
            },
            seconds(settings.queries, settings.precision),
            policy=[policy],
            budget=budgets,
            trial=range(settings.trials),
        )
    return every


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
    from inferway.studies.queueing.system import precise

    plain = System(**{name: tuple(value) for name, value in system.items()}).fleet(servers)
    fleet = replace(plain, energy=np.array(energy, float))
    rate_per_s = rate * servers
    optimum = solve(fleet, target, rate_per_s, budget)
    asked = scenario(fleet, poisson(rate_per_s), "exponential", target, policy, {})
    result = precise(
        replace(asked, energy_budget=budget),
        queries=queries,
        seed=seed,
        warmup=None,
        precision=precision,
        most=most,
    )
    shares = np.array([result.shares[name] for name in fleet.variants])
    return {
        "response_s": result.response_time_s.mean,
        "response_s_se": result.response_time_s.stderr,
        "accuracy": result.accuracy.mean,
        "accuracy_se": result.accuracy.stderr,
        "energy": float(shares @ fleet.energy),
        "stable": result.stable,
        "queries": result.queries,
        "bound_s": optimum.response_time_s,
        "bound_energy": float(optimum.shares @ fleet.energy),
    }


def figure(settings: Settings, results: Results) -> Figure:
    """Response time, energy and accuracy against the budget."""
    from inferway.experiments.curves import Curve, Panel, panels
    from inferway.studies.queueing.look import policy_curve

    budgets = settings.budgets
    here = results.where(policy="priced")
    free = results.where(policy=_FREE)
    flat = [free.measure("response_s").mean] * len(budgets)
    spent = [free.measure("energy").mean] * len(budgets)
    bound = [here.measure("bound_s", budget=budget).mean for budget in budgets]
    least = [here.measure("bound_energy", budget=budget).mean for budget in budgets]

    def measured(column: str, scale: float = 1.0) -> Curve:
        found = [here.measure(column, budget=budget) for budget in budgets]
        return policy_curve("priced", budgets, found, scale)

    return panels(
        [
            Panel(
                "",
                "energy budget, J",
                "mean response time, s",
                [
                    Curve("bound (LP, both constraints)", budgets, bound),
                    measured("response_s"),
                    Curve("TAD-OP, no budget", budgets, flat, color=0, dash=":", markers=False),
                ],
            ),
            Panel(
                "",
                "energy budget, J",
                "mean energy of a request, J",
                [
                    Curve("bound (LP, both constraints)", budgets, least),
                    measured("energy"),
                    Curve("TAD-OP, no budget", budgets, spent, color=0, dash=":", markers=False),
                    Curve("budget", budgets, budgets, color=6, dash=":", markers=False),
                ],
            ),
            Panel(
                "",
                "energy budget, J",
                "accuracy, %",
                [measured("accuracy", 100)],
                levels=[("target", 100 * settings.target)],
                limits_up=(100 * settings.target - 0.5, 100 * settings.target + 0.5),
            ),
        ],
        columns=3,
        title="Accuracy and energy at once (ours; left open by [Anonymous], Sec. 8.1)",
    )


def claims(settings: Settings, results: Results) -> list[Claim]:
    """What one price per constraint reaches."""
    here = results.where(policy="priced")
    energy, bound_energy, accuracy, response_s, bound_s = (
        {budget: here.value(column, budget=budget) for budget in settings.budgets}
        for column in ("energy", "bound_energy", "accuracy", "response_s", "bound_s")
    )
    over = _worst({budget: one / budget - 1 for budget, one in energy.items()})
    short = _worst({budget: settings.target - one for budget, one in accuracy.items()})
    gap = _worst({budget: one / bound_s[budget] - 1 for budget, one in response_s.items()})
    free = results.where(policy=_FREE)
    # Where the LP without the constraint would spend more.
    binding = [b for b in settings.budgets if bound_energy[b] >= b * (1 - 1e-6)]
    return [
        Claim(
            "ours",
            "With two constraints, two prices keep the energy budget.",
            "largest mean energy over the budget, less 1",
            over[0],
            at_most=0.002,
            unit="%",
            why=f"at a budget of {over[1]:g} J",
        ),
        Claim(
            "ours",
            "They keep the accuracy target at the same time.",
            "largest shortfall of the mean accuracy",
            short[0],
            at_most=0.0002,
            unit="%",
            why=f"at a budget of {short[1]:g} J",
        ),
        Claim(
            "ours",
            "On a large site that comes near the LP with both constraints.",
            f"largest response time over the bound, less 1, n = {settings.servers}",
            gap[0],
            at_most=0.02,
            unit="%",
            why=f"at a budget of {gap[1]:g} J",
        ),
        Claim(
            "ours",
            "TAD-OP, which knows no budget, overspends every one that binds.",
            "its mean energy over the largest budget that the LP uses up, less 1",
            free.value("energy") / max(binding, default=math.nan) - 1,
            at_least=0.0,
            unit="%",
            why=f"{free.value('energy'):.3f} J; budgets that bind: "
            + ", ".join(f"{one:g} J" for one in binding),
        ),
    ]


def _worst(found: Mapping[float, float]) -> tuple[float, float]:
    """The largest value, and the budget where it is."""
    known = [(value, budget) for budget, value in found.items() if not math.isnan(value)]
    return max(known, default=(math.nan, math.nan))


_PAPER = Settings()
STUDY = Study(
    name="energy",
    source="ours, after [Anonymous], Sec. 8.1",
    shows="An accuracy target and an energy budget at once: two prices against the LP.",
    scales={
        "smoke": replace(_PAPER, servers=64, budgets=(2.6,), queries=40_000, trials=1),
        "quick": replace(_PAPER, queries=2_000_000, precision=0.003),
        "paper": _PAPER,
    },
    points=points,
    figure=figure,
    claims=claims,
    code=CODE,
)
