"""From a deployment file to what dispatch needs: arrival rates, bounds, dispatchers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from inferway.dispatch.bound import Bound, UnreachableError, max_rate
from inferway.dispatch.bound import bound as bound_of_fleet
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.table import takes
from inferway.site.fleet import Fleet, fleet_of
from inferway.workload.arrivals import mean_rate

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Task


BEST_EFFORT: Final = "deadline"
"""The policy of a fleet that cannot keep its target."""


def bound(deployment: Deployment, *, node: str | None = None) -> dict[str, Bound]:
    """The bound of every task of a deployment, by the task's name.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node
        The node whose fleet is meant; may be left out where the file has one.

    Raises
    ------
    ValueError
        Where a task has no instance on the node.
    """
    found = {}
    for name, task in deployment.tasks.items():
        fleet = fleet_of(deployment, name, node)
        found[name] = bound_of_fleet(
            fleet,
            target=task.accuracy_target,
            rate_per_s=arrival_rate(deployment, fleet, task.accuracy_target),
            energy_budget=task.energy_budget,
        )
    return found


def dispatcher_of(
    deployment: Deployment, task: str, node: str | None = None, *, measure: bool = True
) -> Dispatcher:
    """The dispatcher of a task, with the policy that the file names for it.

    With `measure`, its predictions start from the profiles and follow what is measured.

    Raises
    ------
    ValueError
        Where the policy lacks what it needs, or no instance of the task runs on the node.
    """
    fleet = fleet_of(deployment, task, node)
    place = deployment.nodes[fleet.node]
    if place.queue == "central":
        # Requests wait in the world's one queue: a server holds what it serves.
        fleet = replace(fleet, buffer=1)
    kind = deployment.tasks[task]
    return dispatcher_on(
        deployment,
        kind,
        fleet,
        rate_per_s=arrival_rate(deployment, fleet, kind.accuracy_target),
        measure=measure,
        narrow=place.late == "drop",
    )


def dispatcher_on(
    deployment: Deployment,
    task: Task,
    fleet: Fleet,
    *,
    rate_per_s: float | None,
    measure: bool = True,
    narrow: bool = True,
    max_wait_s: float | None = None,
    lasting: int = 0,
    best_effort: bool = False,
) -> Dispatcher:
    """The dispatcher of a task on any fleet, with the policy that the file names for it.

    Parameters
    ----------
    deployment, task
        Whose policy.
    fleet
        Server classes, wherever they stand.
    rate_per_s
        Expected arrival rate, 1/s; None where nothing says it.
    measure, narrow, max_wait_s, lasting
        As in `Dispatcher`.
    best_effort
        Whether a fleet that cannot keep the target answers with the most accurate server that has
        room: others may be within reach again in a moment. Else it is refused.

    Raises
    ------
    ValueError
        Where the policy lacks what it needs.
    """
    target, budget = task.accuracy_target, task.energy_budget
    spec = deployment.policy_of(task)
    options = {name: value for name, value in spec.options.items() if value is not None}
    rate_per_s = options.pop("rate", None) or rate_per_s
    if options.pop("window", None) is not None and rate_per_s is None:
        # The world estimates the rate and calls `retune`; until then, half of what is feasible.
        rate_per_s = 0.5 * max_rate(fleet, target, budget)
    folder = deployment.path.parent if deployment.path else None
    if budget is not None and takes(spec.policy, "energy_budget", folder):
        options["energy_budget"] = budget
    if task.deadline_s is not None and takes(spec.policy, "deadline_s", folder):
        options["deadline_s"] = task.deadline_s
    if spec.policy == "least-cost" and deployment.cost is not None:
        options.setdefault("alpha", deployment.cost.alpha)
    make = partial(
        Dispatcher,
        fleet,
        target=target,
        rate_per_s=rate_per_s,
        folder=folder,
        measure=measure,
        narrow=narrow,
        max_wait_s=max_wait_s,
        lasting=lasting,
    )
    try:
        dispatcher = make(policy=spec.policy, **options)
    except UnreachableError:
        if not best_effort:
            raise
        dispatcher = make(policy=BEST_EFFORT)
    if any(variant.batch is not None for variant in task.variants.values()):
        dispatcher.prepare(batches=True)
    return dispatcher


def arrival_rate(deployment: Deployment, fleet: Fleet, target: float | None) -> float | None:
    """Mean arrival rate of the fleet's task by its workload, 1/s; None where the file has none."""
    workload = deployment.workload.get(fleet.task)
    if workload is None:
        return None
    budget = deployment.tasks[fleet.task].energy_budget
    return mean_rate(workload.arrivals, max_rate(fleet, target, budget))
