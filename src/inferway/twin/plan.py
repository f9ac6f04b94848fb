"""Planning: the cheapest instances that keep every promise, each answer tried in the twin.

`inferway.dispatch.sizing` proposes instances that could do, and the twin runs them under the
policy that the file names. First the load is searched at which the cheapest instances just hold:
that gives a price. Then whatever is cheaper is tried, what leaves most room first; what fails
rules out all that has no more of any variant. When nothing is left, no cheaper instances hold, if
more of them never make a site worse.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.deployment.units import TIME
from inferway.deployment.workloads import Workload, poisson
from inferway.dispatch.bounds import max_rate, relaxed
from inferway.dispatch.sizing import Need, cheapest, roomiest
from inferway.site.fleet import Fleet
from inferway.site.view import Ints
from inferway.twin.result import TaskResult, finite
from inferway.twin.scenario import scenario_of
from inferway.twin.simulation import INTERRUPTED, run
from inferway.workload import mean_rate

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Node, Task

QUERIES = 200_000
TRIES = 40
_LOADS = 7
LOST = 1e-3
"""Part of the requests that may find no room, where buffers are finite."""
SLACK = 1e-3
"""How far below its target a run's mean accuracy may end: what a policy's balance swings by."""


@dataclass(frozen=True)
class Trial:
    """Instances of one task that were simulated."""

    instances: dict[str, int]
    """By variant."""
    response_time_s: float
    accuracy: float
    utilization: float
    """Of all instances, mean."""
    lost: float
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {**vars(self), "response_time_s": finite(self.response_time_s)}


@dataclass(frozen=True)
class TaskPlan:
    """What one task needs."""

    task: str
    rate_per_s: float
    latency_s: float
    accuracy_target: float | None
    energy_budget: float | None
    instances: dict[str, int]
    """By variant; those with none left out."""
    price: float
    simulated: Trial
    """Of `instances`."""
    trials: tuple[Trial, ...]
    """All that were simulated, in order."""
    cheapest: bool
    """Whether nothing cheaper is left to be tried."""

    @property
    def holds(self) -> bool:
        """Whether the twin keeps what is promised with these instances."""
        return self.simulated.holds

    def to_json(self) -> dict[str, Any]:
        """As `inferway plan FILE --json` prints it under ``tasks.NAME``."""
        return {
            "rate_per_s": self.rate_per_s,
            "latency_s": self.latency_s,
            "accuracy_target": self.accuracy_target,
            "energy_budget": self.energy_budget,
            "instances": self.instances,
            "price": self.price,
            "holds": self.holds,
            "cheapest": self.cheapest,
            "simulated": self.simulated.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }


@dataclass(frozen=True)
class Plan:
    """What a node needs for all its tasks."""

    node: str
    tasks: dict[str, TaskPlan]

    @property
    def holds(self) -> bool:
        """Whether all tasks are kept in the twin."""
        return all(task.holds for task in self.tasks.values())

    @property
    def yaml(self) -> str:
        """The instances as a deployment file says them."""
        entries = ", ".join(
            f"{name}/{variant}: {count}"
            for name, task in self.tasks.items()
            for variant, count in task.instances.items()
        )
        return f"nodes:\n  {self.node}:\n    instances: {{{entries}}}\n"

    def to_json(self) -> dict[str, Any]:
        """As `inferway plan FILE --json` prints it."""
        return {
            "schema": 1,
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "network": None,
            "node": self.node,
            "holds": self.holds,
            "price": sum(task.price for task in self.tasks.values()),
        }


def plan(
    deployment: Deployment,
    *,
    node: str | None = None,
    rate: float | None = None,
    latency: float | None = None,
    queries: int = QUERIES,
    seed: int | None = None,
    tries: int = TRIES,
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Find the cheapest instances that keep targets, budgets and a mean latency at a rate.

    The instances that the file lists play no part, but for those that are `pinned`. Prices are
    the file's `price` of each variant; where no variant of a task has one, instances are counted.
    Where a node has a budget for several tasks, they take their part of it in the file's order.

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
        a deadline: a mean over those who were in time says nothing about who was not.
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
        Where nothing that was tried keeps what is promised, or the file lacks what a plan needs.
    """
    place = _place(deployment, node)
    left = np.inf if place.budget_bytes is None else float(place.budget_bytes)
    needs = [_need(deployment, task, place, rate, latency) for task in _tasks(deployment, rate)]
    left -= sum(float(need.size_bytes @ need.least) for need in needs)
    tasks = {}
    for need in needs:
        _check_possible(need)
        need = replace(need, budget_bytes=left + float(need.size_bytes @ need.least))
        if not need.price.any():
            need = replace(need, price=np.ones(len(need.rate)))

        def simulated(counts: Ints, need: Need = need) -> Trial:
            return _tried(deployment, place, need, counts, rate, queries, seed)

        found, counts = _search(need, simulated, tries, progress)
        tasks[need.task] = found
        left = need.budget_bytes - float(need.size_bytes @ counts)
    return Plan(place.name, tasks)


def _search(
    need: Need,
    simulated: Callable[[Ints], Trial],
    tries: int,
    progress: Callable[[str, float], None] | None,
) -> tuple[TaskPlan, Ints]:
    """The best instances of one task."""
    known: dict[tuple[int, ...], Trial] = {}

    def holds(counts: Ints) -> bool:
        key = tuple(counts.tolist())
        if key not in known:
            if progress is not None:
                progress(_listed(need, counts), len(known) / tries)
            known[key] = simulated(counts)
        return known[key].holds

    best, price = None, np.inf
    full, spare = 1.0, 0.0  # loads that are too high, and that hold
    for step in range(_LOADS):
        load = 0.8 if step == 0 else (full + spare) / 2
        counts = cheapest(need, load=load)
        if counts is not None and holds(counts):
            spare = load
            if need.price @ counts < price:
                best, price = counts, float(need.price @ counts)
        else:
            full = load
    failed = [np.array(key) for key, trial in known.items() if not trial.holds]
    nothing_left = False
    # Where nothing holds and nothing limits, the roomiest would be without end.
    limited = np.isfinite(need.most).all() or (
        np.isfinite(need.budget_bytes) and (need.size_bytes > 0).all()
    )
    while len(known) < tries and (best is not None or limited):
        counts = roomiest(need, below=price, failed=failed)
        if counts is None:
            nothing_left = True
            break
        if holds(counts):
            best, price = counts, float(need.price @ counts)
        else:
            failed.append(counts)
    if best is None:
        raise ValueError(_too_little(need, len(known)))
    found = TaskPlan(
        need.task,
        need.rate_per_s,
        need.latency_s,
        need.target,
        need.energy_budget,
        _by_variant(need, best),
        price,
        known[tuple(best.tolist())],
        tuple(known.values()),
        nothing_left,
    )
    return found, best


def _place(deployment: Deployment, node: str | None) -> Node:
    if node is None and len(deployment.nodes) == 1:
        node = next(iter(deployment.nodes))
    if node is None:
        raise ValueError(f"name one of the nodes {', '.join(deployment.nodes) or '(none)'}")
    if node not in deployment.nodes:
        raise ValueError(f"unknown node {node!r}; the file has {', '.join(deployment.nodes)}")
    return deployment.nodes[node]


def _tasks(deployment: Deployment, rate_per_s: float | None) -> list[Task]:
    """The tasks with a rate to plan for."""
    found = [
        task
        for name, task in deployment.tasks.items()
        if rate_per_s is not None or name in deployment.workload
    ]
    if not found:
        raise ValueError("the file has no `workload`, so there is no rate to plan for; give one")
    for task in found:
        if task.count > 1:
            raise ValueError(f"tasks.{task.name}: {task.count} identical tasks cannot be planned")
    return found


def _need(
    deployment: Deployment,
    task: Task,
    place: Node,
    rate_per_s: float | None,
    latency_s: float | None,
) -> Need:
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
    if rate_per_s is None:
        try:
            rate_per_s = mean_rate(deployment.workload[task.name].arrivals)
        except ValueError:
            raise ValueError(
                f"workload.{task.name}: a load is relative to the instances that are to be found; "
                "say which rate to plan for"
            ) from None
    if place.budget_bytes is not None:
        for one in variants:
            if one.size_bytes is None:
                raise ValueError(
                    f"{field}.variants.{one.name}: needs `size`, as node {place.name} has a budget"
                )
    most = np.inf if task.max_instances is None else float(task.max_instances)
    return Need(
        task=task.name,
        variants=tuple(one.name for one in variants),
        rate_per_s=rate_per_s,
        latency_s=latency_s,
        target=task.accuracy_target,
        energy_budget=task.energy_budget,
        rate=np.array([one.service_on(place.hardware).rate for one in variants]),
        accuracy=np.array([one.accuracy for one in variants]),
        energy=np.array([one.energy or 0.0 for one in variants]),
        price=np.array([one.price or 0.0 for one in variants]),
        size_bytes=np.array([float(one.size_bytes or 0) for one in variants]),
        least=np.array([place.pinned.get((task.name, one.name), 0) for one in variants]),
        most=np.full(len(variants), most),
        budget_bytes=np.inf,
    )


def _check_possible(need: Need) -> None:
    """Refuse a latency that no number of instances reaches."""
    ones = np.ones(len(need.rate), np.int64)
    fleet = Fleet(need.variants, need.rate, need.accuracy, ones, energy=need.energy)
    max_rate(fleet, need.target, need.energy_budget)
    least_s = relaxed(fleet, need.target, need.energy_budget).response_time_s
    if least_s > need.latency_s:
        raise ValueError(
            f"tasks.{need.task}: no number of instances answers within {TIME.write(need.latency_s)}"
            f" on average; the service alone takes {least_s:.4g} s or more at the target"
        )


def _tried(
    deployment: Deployment,
    place: Node,
    need: Need,
    counts: Ints,
    rate_per_s: float | None,
    queries: int,
    seed: int | None,
) -> Trial:
    """Simulate one task's instances under the file's policy."""
    instances = {
        (need.task, variant): int(count)
        for variant, count in zip(need.variants, counts, strict=True)
        if count > 0
    }
    outages = (
        replace(
            one, instances={key: min(n, instances.get(key, 0)) for key, n in one.instances.items()}
        )
        for one in place.outages
    )
    there = replace(
        place,
        instances=instances,
        failures={key: one for key, one in place.failures.items() if key in instances},
        outages=tuple(one for one in outages if any(one.instances.values())),
    )
    workload = dict(deployment.workload)
    if rate_per_s is not None:
        workload[need.task] = Workload(arrivals=poisson(rate_per_s))
    planned = replace(deployment, nodes={place.name: there}, workload=workload)
    result = run(
        replace(scenario_of(planned, need.task, place.name), deadline_s=None),
        queries=queries,
        seed=deployment.seed if seed is None else seed,
    )
    if INTERRUPTED in result.notes:
        raise KeyboardInterrupt
    return _judged(need, counts, result)


def _judged(need: Need, counts: Ints, result: TaskResult) -> Trial:
    response_time_s = result.response_time_s.mean if result.stable else float("inf")
    energy = dict(zip(need.variants, need.energy, strict=True))
    used = sum(share * energy[variant] for variant, share in result.shares.items())
    lost = result.rejected + result.dropped
    count = dict(zip(need.variants, counts, strict=True))
    busy = sum(count[variant] * part for variant, part in result.utilization.items())
    return Trial(
        instances=_by_variant(need, counts),
        response_time_s=response_time_s,
        accuracy=result.accuracy.mean,
        utilization=float(busy / counts.sum()),
        lost=lost,
        holds=bool(
            response_time_s <= need.latency_s
            and result.accuracy.mean >= (need.target or 0.0) - SLACK
            and (need.energy_budget is None or used <= need.energy_budget * (1 + SLACK))
            and lost <= LOST
        ),
    )


def _by_variant(need: Need, counts: Ints) -> dict[str, int]:
    return {v: int(count) for v, count in zip(need.variants, counts, strict=True) if count > 0}


def _listed(need: Need, counts: Ints) -> str:
    parts = (f"{count} {variant}" for variant, count in _by_variant(need, counts).items())
    return f"{need.task}: {', '.join(parts)}"


def _too_little(need: Need, tried: int) -> str:
    limits = ["`max_instances`"] if np.isfinite(need.most).any() else []
    limits += ["the node's budget"] if np.isfinite(need.budget_bytes) else []
    within = f" within {' and '.join(limits)}" if limits else ""
    count = f"; {tried} that could were simulated, and failed" if tried else ""
    return f"tasks.{need.task}: no instances{within} were found that keep what it promises{count}"
