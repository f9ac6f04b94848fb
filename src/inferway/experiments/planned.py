"""Planning: the cheapest instances that keep every promise, each answer tried in the twin.

`inferway.dispatch.sizing` proposes instances that could do: by the bound of policies that choose
before they see an answer, or for `escalate` by the bound with escalation. The twin runs them under
the policy that the file names. First the load is searched at which the cheapest instances just
hold: that gives a price. Then whatever is cheaper is tried, what leaves most room first; what fails
rules out all that has no more of any variant. When nothing is left, no cheaper instances hold, if
more of them never make a site worse. Tasks that targets over several join are sized and tried
together. Where the node lists devices, what runs on them is found for
all tasks together, in `inferway.experiments.planned_pool`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from inferway.deployment import Deployment, Node, Task
from inferway.deployment.policies import ESCALATE
from inferway.deployment.units import TIME
from inferway.deployment.workloads import Workload, poisson
from inferway.dispatch.bounds import max_rate, relaxed
from inferway.dispatch.escalation_bounds import solve_escalation
from inferway.dispatch.joint import means_of, replace_goal, without_others, written
from inferway.dispatch.joint_bounds import JointMean, TaskDemand, best_mean, exceeds
from inferway.dispatch.sizing import Need, TaskGroup, cheapest, roomiest
from inferway.experiments.plan_result import Plan, TargetPlan, TaskPlan, Trial
from inferway.experiments.planned_pool import plan_pool, with_instances
from inferway.experiments.planned_trial import tried
from inferway.experiments.runner import Point
from inferway.experiments.workers import in_threads
from inferway.placement.assignment import carried_per_s, run_times
from inferway.site.confidence import confidence_tables
from inferway.site.view import Ints
from inferway.twin.simulation import groups_of
from inferway.workload import mean_rate
from inferway.workload.peak import rate_at_peak, read_peak

LOST: Final = 1e-3  # part of the requests that may find no room, where buffers are finite

_Trials = tuple[dict[str, Trial], dict[str, TargetPlan]]


def plan(
    deployment: Deployment,
    *,
    node: str | None = None,
    rate: float | None = None,
    latency: float | None = None,
    peak: float | str | None = None,
    best_effort: bool = False,
    queries: int = 200_000,
    seed: int | None = None,
    tries: int = 40,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Find the cheapest instances that keep targets, budgets and a mean latency at a rate.

    The instances that the file lists play no part, but for those that are `pinned`. Prices are
    the file's `price` of each variant; where no variant of a task has one, instances are counted.
    Where a node has a budget for several tasks, they take their part of it in the file's order.

    Where it lists devices, they are there already, and all tasks share them: found are the copies
    that answer most accurately, each with room on its device for its runs, with targets, budgets
    and deadlines kept.

    Tasks that targets over several join are planned together, so that these hold, too.

    A task that nothing was found for is named in `Plan.infeasible`, and the others are planned.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    node
        The node that is planned; may be left out where the file has one.
    rate
        Poisson arrivals, 1/s, for each task, in place of the file's workload.
    latency
        Greatest mean response time, s, in place of the tasks' deadlines. Simulations drop nobody at
        a deadline: a mean over those who were in time says nothing about who was not. On devices,
        a deadline itself is kept if no latency is given.
    peak
        What rate to plan for: so many times the mean of the arrivals, or a percentile of it such
        as ``p95``, which then come as Poisson arrivals. The arrivals as they are by default.
    best_effort
        On devices: tasks may be left without an instance, or with too few.
    queries
        Requests per simulation.
    seed
        Of the simulations; the file's by default.
    tries
        Simulations of one task after which the best that was found is taken.
    progress
        Told what is tried, and the part of the tries that is used up.

    Raises
    ------
    ValueError
        Where nothing that was tried keeps what is promised for any task, or the file lacks what a
        plan needs.
    """
    place = _place(deployment, node)
    tasks = _tasks(deployment, rate)
    if rate is not None:
        workload = {name: Workload(arrivals=poisson(rate)) for name in deployment.tasks}
        deployment = replace(deployment, workload=workload)
    seed = deployment.seed if seed is None else seed
    if peak is not None:
        peak = read_peak(peak)
        for task in tasks:
            _rate_of(deployment, task)  # or it has none
        rates = {
            task.name: rate_at_peak(deployment.workload[task.name].arrivals, peak, seed=seed)
            for task in tasks
        }
        workload = {name: Workload(arrivals=poisson(one)) for name, one in rates.items()}
        deployment = replace(deployment, workload=workload)
    stop = threading.Event()
    settings = {"queries": queries, "seed": seed, "stop": stop}
    if place.devices:
        rates = {task.name: _rate_of(deployment, task) for task in tasks}
        return plan_pool(
            deployment,
            place,
            rates,
            latency_s=latency,
            best_effort=best_effort,
            tries=tries,
            settings=settings,
            progress=progress,
        )
    if best_effort:
        raise ValueError(
            f"nodes.{place.name}: has no `devices` that tasks share, so nothing is left out of a "
            "plan; leave best effort out"
        )
    needs = {task.name: _need(deployment, task, place, latency) for task in tasks}
    pinned = {name: float(need.size_bytes @ need.least) for name, need in needs.items()}
    left = np.inf if place.budget_bytes is None else float(place.budget_bytes)
    left -= sum(pinned.values())
    found: dict[str, TaskPlan] = {}
    infeasible: dict[str, str] = {}
    kept: dict[str, TargetPlan] = {}
    for names in groups_of(deployment, list(needs)):
        of = without_others(deployment, names)
        group = TaskGroup(
            tuple(
                needs[name]
                if needs[name].price.any()
                else replace(needs[name], price=np.ones(len(needs[name].rate)))
                for name in names
            ),
            tuple(means_of(of).values()),
            left + sum(pinned[name] for name in names),
        )

        def simulated(
            counts: Ints, attempt: int, group: TaskGroup = group, of: Deployment = of
        ) -> _Trials:
            instances = {
                need.task: _by_variant(need, own)
                for need, own in zip(group.needs, group.apart(counts), strict=True)
            }
            if progress is not None:
                listed = (
                    f"{task}: {', '.join(f'{count} {variant}' for variant, count in own.items())}"
                    for task, own in instances.items()
                )
                progress("; ".join(listed), attempt / tries)
            about = {"deployment": of, "place": place, "needs": group.needs, "of": instances}
            (computed,) = in_threads([Point(instances, _tried, about | settings)], 1, stop)
            trials: _Trials = computed.result
            return trials

        try:
            _check_possible(group, of)
            best, every, nothing_left = _search(group, list(of.targets), tries, simulated)
        except ValueError as error:
            for name in names:
                said = str(error)
                apart = len(names) > 1 and not said.startswith(f"tasks.{name}:")
                infeasible[name] = f"tasks.{name}: {said}" if apart else said
            continue
        trials, targets = every[tuple(best.tolist())]
        kept |= targets
        for need, own in zip(group.needs, group.apart(best), strict=True):
            found[need.task] = TaskPlan(
                need.task,
                need.rate_per_s,
                need.latency_s,
                need.target,
                need.energy_budget,
                _by_variant(need, own),
                float(need.price @ own),
                trials[need.task],
                tuple(one[need.task] for one, _ in every.values()),
                nothing_left,
                "blind" if need.confidence is None else "escalation",
            )
            left += pinned[need.task] - float(need.size_bytes @ own)
    if not found:
        raise ValueError(next(iter(infeasible.values())))
    in_order = {name: found[name] for name in needs if name in found}
    return Plan(place.name, in_order, infeasible, kept)


def _search(
    group: TaskGroup,
    targets: Sequence[str],
    tries: int,
    simulated: Callable[[Ints, int], _Trials],
) -> tuple[Ints, dict[tuple[int, ...], _Trials], bool]:
    """The best instances of tasks together, all that were tried, and if nothing cheaper is left."""
    known: dict[tuple[int, ...], _Trials] = {}
    best, price = None, np.inf

    def holds(counts: Ints) -> bool:
        """Try instances, and keep the cheapest that hold."""
        nonlocal best, price
        key = tuple(counts.tolist())
        if key not in known:
            known[key] = simulated(counts, len(known))
        if (held := _all_hold(known[key])) and group.price @ counts < price:
            best, price = counts, float(group.price @ counts)
        return held

    full, spare = 1.0, 0.0  # loads that are too high, and that hold
    for step in range(7):
        load = 0.8 if step == 0 else (full + spare) / 2
        counts = cheapest(group, load=load)
        if counts is not None and holds(counts):
            spare = load
        else:
            full = load
    failed = [np.array(key) for key, trials in known.items() if not _all_hold(trials)]
    # Where nothing holds and nothing limits, the roomiest would be without end.
    budget = np.isfinite(group.budget_bytes)
    most = np.concatenate([need.most for need in group.needs])
    sizes = np.concatenate([need.size_bytes for need in group.needs])
    limited = np.isfinite(most).all() or (budget and (sizes > 0).all())
    nothing_left = False
    while len(known) < tries and (best is not None or limited) and not nothing_left:
        counts = roomiest(group, below=price, failed=failed)
        nothing_left = counts is None
        if counts is not None and not holds(counts):
            failed.append(counts)
    if best is not None:
        return best, known, nothing_left
    limits = ["`max_instances`"] if np.isfinite(most).any() else []
    limits += ["the node's budget"] if budget else []
    within = f" within {' and '.join(limits)}" if limits else ""
    count = f"; {len(known)} that could were simulated, and failed" if known else ""
    if len(group.needs) > 1:
        tasks = ", ".join(f"tasks.{need.task}" for need in group.needs)
        joined = ", ".join(f"targets.{name}" for name in targets)
        raise ValueError(
            f"no instances{within} were found that keep what {tasks} and {joined} promise{count}"
        )
    raise ValueError(
        f"tasks.{group.needs[0].task}: no instances{within} were found that keep what it "
        f"promises{count}"
    )


def _all_hold(trials: _Trials) -> bool:
    return all(one.holds for one in trials[0].values())


def _place(deployment: Deployment, node: str | None) -> Node:
    if node is None and len(deployment.nodes) == 1:
        node = next(iter(deployment.nodes))
    if not deployment.nodes:
        raise ValueError(
            "a plan is of one node's instances, and the file lists none under `nodes`; on the "
            "nodes of a network `inferway place` decides what runs where"
        )
    if node is None:
        raise ValueError(f"name one of the nodes {', '.join(deployment.nodes)}")
    if node not in deployment.nodes:
        raise ValueError(f"unknown node {node!r}; the file has {', '.join(deployment.nodes)}")
    return deployment.nodes[node]


def _tasks(deployment: Deployment, rate_per_s: float | None) -> list[Task]:
    given = deployment.tasks if rate_per_s is not None else deployment.workload
    tasks = [task for name, task in deployment.tasks.items() if name in given]
    if not tasks:
        raise ValueError("the file has no `workload`, so there is no rate to plan for; give one")
    for task in tasks:
        if task.count > 1:
            raise ValueError(f"tasks.{task.name}: {task.count} identical tasks cannot be planned")
    groups_of(deployment, [task.name for task in tasks])  # or a target is over others as well
    return tasks


def _rate_of(deployment: Deployment, task: Task) -> float:
    """Mean rate of a task's arrivals, 1/s."""
    try:
        return mean_rate(deployment.workload[task.name].arrivals)
    except ValueError:
        raise ValueError(
            f"workload.{task.name}: a load is relative to the instances that are to be found; "
            "say which rate to plan for"
        ) from None


def _need(deployment: Deployment, task: Task, place: Node, latency_s: float | None) -> Need:
    variants = [one for one in task.variants.values() if one.runs_on(place.hardware)]
    field = f"tasks.{task.name}"
    if not variants:
        raise ValueError(f"{field}: no variant has a service time on hardware {place.hardware}")
    latency_s = task.deadline_s if latency_s is None else latency_s
    if latency_s is None:
        raise ValueError(
            f"{field}: has no deadline to plan for; "
            "give the greatest mean response time with --latency, such as --latency 300ms"
        )
    rate_per_s = _rate_of(deployment, task)
    for one in variants if place.budget_bytes is not None else ():
        if one.size_bytes is None:
            raise ValueError(
                f"{field}.variants.{one.name}: needs `size`, as node {place.name} has a budget"
            )
    most = np.inf if task.max_instances is None else float(task.max_instances)
    names = tuple(one.name for one in variants)
    accuracy = np.array([one.accuracy for one in variants])
    twice = deployment.policy_of(task).policy == ESCALATE
    return Need(
        task=task.name,
        variants=names,
        rate_per_s=rate_per_s,
        latency_s=latency_s,
        target=task.accuracy_target,
        energy_budget=task.energy_budget,
        rate=np.array([one.service_on(place.hardware).rate for one in variants]),
        carried=np.array(
            [
                carried_per_s(
                    one.service_on(place.hardware).mean_s, run_times(one, place.hardware), None
                )
                for one in variants
            ]
        ),
        accuracy=accuracy,
        energy=np.array([one.energy_on(place.hardware) or 0.0 for one in variants]),
        price=np.array([one.price or 0.0 for one in variants]),
        size_bytes=np.array([float(one.size_bytes or 0) for one in variants]),
        least=np.array([place.pinned.get((task.name, one.name), 0) for one in variants]),
        most=np.full(len(variants), most),
        budget_bytes=np.inf,
        confidence=confidence_tables(task, names, accuracy) if twice else None,
    )


def _check_possible(group: TaskGroup, deployment: Deployment) -> None:
    """Refuse latencies and targets that no number of instances reaches."""
    for need in group.needs:
        means = need.target, need.energy_budget
        if need.confidence is None:
            max_rate(need.ample, *means)
            least_s = relaxed(need.ample, *means).response_time_s
        else:
            least_s = solve_escalation(need.ample, means[0], None, means[1]).response_time_s
        if least_s > need.latency_s:
            raise ValueError(
                f"tasks.{need.task}: no number of instances answers within "
                f"{TIME.write(need.latency_s)} on average; the service alone takes {least_s:.4g} s "
                "or more at the target"
            )
    demands = {
        need.task: TaskDemand(need.ample, need.rate_per_s, need.target, need.energy_budget)
        for need in group.needs
    }
    kept: list[JointMean] = []
    for name, mean in means_of(deployment).items():
        best = best_mean(demands, mean, kept, limited=False)
        if best is not None and exceeds(mean, best):
            raise ValueError(
                f"targets.{name}: no number of instances keeps {written(mean)} over "
                f"{', '.join(mean.tasks)} at these rates; {written(replace_goal(mean, best))} is "
                "within reach"
            )
        kept.append(mean)


def _tried(
    deployment: Deployment,
    place: Node,
    needs: Sequence[Need],
    of: dict[str, dict[str, int]],
    **settings: Any,
) -> _Trials:
    instances = {(task, name): count for task, own in of.items() for name, count in own.items()}
    there = with_instances(place, instances)
    latency_s = {need.task: need.latency_s for need in needs}
    return tried(deployment, there, latency_s, in_time=False, lost=LOST, **settings)


def _by_variant(need: Need, counts: Ints) -> dict[str, int]:
    return {v: int(count) for v, count in zip(need.variants, counts, strict=True) if count > 0}
