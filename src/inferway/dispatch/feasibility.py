"""Advice that takes the bound: arrival rates at which no policy keeps what the task promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from inferway.deployment.units import ENERGY
from inferway.deployment.warnings import Caution
from inferway.deployment.workloads import PhasedArrivals
from inferway.dispatch.bound import max_rate
from inferway.site.fleet import Fleet, fleet_of
from inferway.workload.arrivals import mean_rate

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Task


def check(deployment: Deployment) -> list[Caution]:
    """Advise on workloads above the greatest feasible rate, in the order of the file.

    Tasks whose fleet is not known (in a network, from a catalog, with service times that are not
    measured yet) are passed over, and rates that all instances together cannot serve are left to
    `inferway.deployment.check`.
    """
    found = []
    for name in deployment.workload:
        task = deployment.tasks.get(name)
        if task is None or (task.accuracy_target is None and task.energy_budget is None):
            continue
        try:
            fleet = fleet_of(deployment, name)
            found += list(_of_workload(deployment, task, fleet))
        except ValueError:
            continue
    return sorted(found, key=lambda caution: caution.line)


def _of_workload(deployment: Deployment, task: Task, fleet: Fleet) -> Iterator[Caution]:
    field = f"workload.{task.name}.arrivals"
    arrivals = deployment.workload[task.name].arrivals
    target, budget = task.accuracy_target, task.energy_budget
    greatest = max_rate(fleet, target, budget)
    parts = [(field, mean_rate(arrivals, greatest), target)]
    if isinstance(arrivals, PhasedArrivals):
        parts = [
            (
                f"{field}.phases[{index}]",
                phase.mean_rate_per_s(greatest),
                target if phase.accuracy_target is None else phase.accuracy_target,
            )
            for index, phase in enumerate(arrivals.phases)
        ]
    for place, rate, goal in parts:
        most = max_rate(fleet, goal, budget)
        if most * (1 + 1e-9) < rate < fleet.capacity.sum():
            kept = [] if goal is None else [f"a mean accuracy of {goal:g}"]
            kept += [] if budget is None else [f"a mean of {ENERGY.write(budget)} per request"]
            yield Caution(
                "above-the-bound",
                place,
                deployment.line_of(place),
                f"{rate:.6g}/s arrive, but no policy keeps {' and '.join(kept)} above "
                f"{most:.6g}/s on these instances",
            )
