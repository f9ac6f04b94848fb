"""From a deployment file to what dispatch needs: arrival rates, bounds, dispatchers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inferway.deployment.policies import ESCALATE
from inferway.deployment.units import ENERGY
from inferway.deployment.warnings import Caution
from inferway.deployment.workloads import PhasedArrivals
from inferway.dispatch.bounds import Bound, UnreachableError, unreachable_bound
from inferway.dispatch.bounds import bound as bound_of_fleet
from inferway.dispatch.contract import takes
from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.escalation_bounds import (
    escalation_bound,
    full_load,
    greatest_rate,
    max_escalation_rate,
)
from inferway.dispatch.joint import (
    demands_of,
    means_of,
    replace_goal,
    told_targets,
    with_what_devices_hold,
    written,
)
from inferway.dispatch.joint_bounds import (
    BoundBeside,
    JointBound,
    JointMean,
    TaskDemand,
    best_mean,
    bound_beside,
    bound_jointly,
    solve_jointly,
)
from inferway.site.fleet import Fleet, fleet_of
from inferway.workload.arrivals import mean_rate

if TYPE_CHECKING:
    from inferway.deployment import Batch, Deployment, Node, Task


BEST_EFFORT: Final = "deadline"  # The policy of a fleet that cannot keep its target


def bound(
    deployment: Deployment, *, node: str | None = None, escalate: bool = False
) -> dict[str, Bound]:
    """The bound of every task of a deployment, by the task's name.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node
        The node whose fleet is meant; may be left out where the file has one.
    escalate
        Bound those, too, that ask a second variant where the first one's confidence says that it
        pays.

    Raises
    ------
    ValueError
        Where a task has no instance on the node, or its target is out of reach. One that only
        asking twice reaches has a bound whose greatest rate is 0.
    """
    fleets = {name: fleet_of(deployment, name, node) for name in deployment.tasks}
    return {
        name: _bound_of_task(deployment, task, fleets[name], escalate)
        for name, task in deployment.tasks.items()
    }


def joint_bound(
    deployment: Deployment, *, node: str | None = None, escalate: bool = False
) -> JointBound | None:
    """The bound of the tasks that targets over several, or devices, join; None where nothing does.

    None, too, where the file does not have the workload of each of them.

    Parameters
    ----------
    deployment, node, escalate
        As in `bound`.
    """
    demands = _joined_demands(deployment, node)
    if demands is None:
        return None
    return bound_jointly(demands, means_of(deployment), escalate=escalate)


def bounds_beside(deployment: Deployment, *, node: str | None = None) -> dict[str, BoundBeside]:
    """Bound each task that targets over several, or devices, join, beside the others.

    Empty where nothing joins any, or the file does not have the workload of each.
    """
    demands = _joined_demands(deployment, node)
    return {} if demands is None else bound_beside(demands, [*means_of(deployment).values()])


def _joined_demands(deployment: Deployment, node: str | None) -> dict[str, TaskDemand] | None:
    names = dict.fromkeys(task for one in deployment.targets.values() for task in one.tasks)
    fleets = {name: fleet_of(deployment, name, node) for name in deployment.tasks}
    sharing = [name for name, one in fleets.items() if one.devices is not None]
    if names or len(sharing) > 1:
        names |= dict.fromkeys(name for name in sharing if name in deployment.workload)
    if len(names) < 2 or not all(name in deployment.workload for name in names):
        return None
    demands = {}
    for name in (name for name in deployment.tasks if name in names):
        task, fleet = deployment.tasks[name], fleets[name]
        rate_per_s = arrival_rate(deployment, fleet, task.accuracy_target)
        assert rate_per_s is not None
        demands[name] = TaskDemand(fleet, rate_per_s, task.accuracy_target, task.energy_budget)
    return demands


def _bound_of_task(deployment: Deployment, task: Task, fleet: Fleet, escalate: bool) -> Bound:
    promised: dict[str, Any] = {
        "target": task.accuracy_target,
        "energy_budget": task.energy_budget,
        "rate_per_s": arrival_rate(deployment, fleet, task.accuracy_target),
    }
    try:
        found = bound_of_fleet(fleet, **promised)
    except UnreachableError:
        # Says so where asking twice does not reach it, either.
        max_escalation_rate(fleet, task.accuracy_target, task.energy_budget)
        found = unreachable_bound(fleet, **promised)
    if not escalate:
        return found
    return replace(found, escalate=escalation_bound(fleet, **promised))


def dispatcher_of(
    deployment: Deployment,
    task: str,
    node: str | None = None,
    *,
    measure: bool = True,
    best_effort: bool = False,
) -> Dispatcher:
    """The dispatcher of a task, with the policy that the file names for it.

    With `measure`, its predictions start from the profiles and follow what is measured. With
    `best_effort`, a fleet that cannot keep the target is as in `dispatcher_on`. ValueError where
    the policy lacks what it needs, or no instance of the task runs on the node.
    """
    fleet = fleet_of(deployment, task, node)
    place = deployment.nodes[fleet.node]
    if place.queue == "central":
        # Requests wait in the world's one queue: a server holds what it serves.
        fleet = replace(fleet, buffer=1)
    kind = deployment.tasks[task]
    try:
        rate_per_s = arrival_rate(deployment, fleet, kind.accuracy_target)
    except UnreachableError:
        if not best_effort:
            raise
        rate_per_s = None
    return dispatcher_on(
        deployment,
        kind,
        fleet,
        rate_per_s=rate_per_s,
        measure=measure,
        narrow=place.late == "drop",
        best_effort=best_effort,
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
    targets: Sequence[Mapping[str, Any]] | None = None,
) -> Dispatcher:
    """The dispatcher of a task on any fleet, with the policy that the file names for it.

    With `best_effort`, a fleet that cannot keep the target answers with the most accurate server
    that has room, for others may be within reach again in a moment; one that cannot keep the energy
    budget takes the least that the target allows. Else ValueError, as where the policy lacks what
    it needs. A policy that keeps targets over several tasks is told of these
    `targets`; where they are None, of those of the file at the fleet's node. The rest is as in
    `Dispatcher`.
    """
    target, budget = task.accuracy_target, task.energy_budget
    if best_effort and budget is not None:
        alone = {task.name: TaskDemand(fleet, 1.0, target)}
        least = best_mean(alone, JointMean((task.name,), energy=budget), limited=False)
        budget = max(budget, (least or 0.0) * (1.0 + 1e-9))  # and what rounding takes
    spec = deployment.policy_of(task)
    options = {name: value for name, value in spec.options.items() if value is not None}
    rate_per_s = options.pop("rate", None) or rate_per_s
    if options.pop("window", None) is not None and rate_per_s is None:
        # The world estimates the rate and calls `retune`; until then, half of what is feasible.
        rate_per_s = 0.5 * greatest_rate(spec.policy, fleet, target, budget)
    folder = deployment.path.parent if deployment.path else None
    promised = {"energy_budget": budget, "deadline_s": task.deadline_s}
    options |= {
        name: value
        for name, value in promised.items()
        if value is not None and takes(spec.policy, name, folder)
    }
    if deployment.targets_over(task):
        if not takes(spec.policy, "targets", folder):
            raise ValueError(
                f"{spec.policy} keeps no target over several tasks: its `build` takes no `targets`"
            )
        told = told_targets(deployment, fleet.node) if targets is None else targets
        options["targets"] = list(told)
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
    )
    try:
        dispatcher = make(policy=spec.policy, **options)
    except UnreachableError:
        if not best_effort:
            raise
        dispatcher = make(policy=BEST_EFFORT)
        options.pop("targets", None)
    if options.get("targets") and not hasattr(dispatcher.policy, "shared"):
        raise ValueError(
            f"{spec.policy} takes `targets` and has no field `shared`, by which tasks keep them"
        )
    dispatcher.set_lasting(lasting)
    if any(variant.batches for variant in task.variants.values()):
        dispatcher.prepare(batches=True)
    return dispatcher


def batches_of(task: Task, node: Node, fleet: Fleet) -> list[Batch | None]:
    """By class, the batches that a file offers on the hardware of its device."""
    return [
        task.variants[name].batch_on(node.hardware_of(device))
        for name, device in zip(fleet.names, fleet.runs_on, strict=True)
    ]


def arrival_rate(deployment: Deployment, fleet: Fleet, target: float | None) -> float | None:
    """Mean arrival rate of the fleet's task by its workload, 1/s; None where the file has none."""
    workload = deployment.workload.get(fleet.task)
    if workload is None:
        return None
    budget = deployment.tasks[fleet.task].energy_budget
    return mean_rate(workload.arrivals, full_load(fleet, target, budget))


def unreachable_rates(deployment: Deployment) -> list[Caution]:
    """Advise on workloads above the greatest feasible rate, in the order of the file.

    Tasks whose fleet is not known (in a network, from a catalog, with service times that are not
    measured yet) are passed over, and rates that all instances together cannot serve are left to
    `inferway.deployment.check`.
    """
    advice = []
    for name in deployment.workload:
        task = deployment.tasks.get(name)
        if task is not None and (task.accuracy_target, task.energy_budget) != (None, None):
            with suppress(ValueError):
                advice += list(_of_workload(deployment, task, fleet_of(deployment, name)))
    return sorted(advice, key=lambda caution: caution.line)


def unreachable_targets(deployment: Deployment) -> list[Caution]:
    """Advise on targets over several tasks that no policy keeps at the workload's mean rates.

    Where a task's own target is out of reach, or a fleet or a rate is not known, that is said
    elsewhere, and nothing here.
    """
    found: list[Caution] = []
    with suppress(ValueError):
        demands, means = demands_of(with_what_devices_hold(deployment)), means_of(deployment)
        if any(math.isnan(one.rate_per_s) for one in demands.values()):
            return []
        solve_jointly(demands, [])
        kept: list[JointMean] = []
        for name, mean in means.items():
            try:
                solve_jointly(demands, [*kept, mean])
            except UnreachableError:
                field = f"targets.{name}"
                best = best_mean(demands, mean, kept)
                reached = replace_goal(mean, best)
                others = "the tasks' own and the targets before" if kept else "the tasks' own"
                sentence = (
                    f"no policy keeps {written(mean)} over {', '.join(mean.tasks)} at the "
                    f"workload's rates, beside {others}; {written(reached)} is within reach"
                )
                line = deployment.line_of(field)
                found.append(Caution("target-above-the-bound", field, line, sentence))
            else:
                kept.append(mean)
    return found


# Policies of [Anonymous], which take idle servers first, and what becomes of them where few are.
_FALLS_SHORT: Final = {
    "tad": "`tad` keeps the mean by waiting, and its queues may grow",
    "tad-op": "`tad-op` does not wait for an accurate one, and its mean may fall short",
}


def _busy(fleet: Fleet) -> float:
    """The load from which on fewer servers than the square root of all are idle on average."""
    return 1.0 - 1.0 / math.sqrt(fleet.servers)


def _of_workload(deployment: Deployment, task: Task, fleet: Fleet) -> Iterator[Caution]:
    field = f"workload.{task.name}.arrivals"
    arrivals = deployment.workload[task.name].arrivals
    target, budget = task.accuracy_target, task.energy_budget
    full = full_load(fleet, target, budget)
    parts = [(field, mean_rate(arrivals, full), target)]
    if isinstance(arrivals, PhasedArrivals):
        parts = []
        for index, phase in enumerate(arrivals.phases):
            goal = target if phase.accuracy_target is None else phase.accuracy_target
            parts.append((f"{field}.phases[{index}]", phase.mean_rate_per_s(full), goal))
    policy = deployment.policy_of(task).policy
    for place, rate, goal in parts:
        most = greatest_rate(policy, fleet, goal, budget)
        tracked = goal is not None and fleet.accuracy.min() < goal
        if tracked and policy in _FALLS_SHORT and most * _busy(fleet) < rate <= most:
            yield Caution(
                "may-miss",
                place,
                deployment.line_of(place),
                f"{rate:.6g}/s are {rate / most:.0%} of the greatest rate, so that few of the "
                f"{fleet.servers} instances are idle at a time: {_FALLS_SHORT[policy]}; `priced` "
                "keeps the target",
            )
        if most * (1 + 1e-9) < rate < fleet.capacity.sum():
            kept = [] if goal is None else [f"a mean accuracy of {goal:g}"]
            kept += [] if budget is None else [f"a mean of {ENERGY.write(budget)} per request"]
            yield Caution(
                "above-the-bound",
                place,
                deployment.line_of(place),
                f"{rate:.6g}/s arrive, but no policy keeps {' and '.join(kept)} above "
                f"{most:.6g}/s on these instances{_asking_twice(policy, fleet, goal, budget)}",
            )


def _asking_twice(policy: str, fleet: Fleet, target: float | None, budget: float | None) -> str:
    """Say how far `escalate` goes, where confidences are known and the policy is another."""
    if policy == ESCALATE or fleet.confidence is None:
        return ""
    most = greatest_rate(ESCALATE, fleet, target, budget)
    return f" that chooses before it sees an answer; `{ESCALATE}` may up to {most:.6g}/s"
