"""Planning: the cheapest instances that keep every promise, each answer tried in the twin.

`inferway.dispatch.sizing` proposes instances that could do: by the bound of policies that choose
before they see an answer, or for `escalate` by the bound with escalation. The twin runs them under
the policy that the file names. First the load is searched at which the cheapest instances just
hold: that gives a price. Then whatever is cheaper is tried, what leaves most room first; what fails
rules out all that has no more of any variant. When nothing is left, no cheaper instances hold, if
more of them never make a site worse.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from inferway.deployment import Deployment, Node, Task
from inferway.deployment.policies import ESCALATE
from inferway.deployment.units import TIME
from inferway.deployment.workloads import Workload, poisson
from inferway.dispatch.bounds import max_rate, relaxed
from inferway.dispatch.escalation_bounds import solve_escalation
from inferway.dispatch.sizing import Need, cheapest, roomiest
from inferway.experiments.curves import Curve, Drawing, Panel, panels
from inferway.experiments.runner import Point
from inferway.experiments.text import Frame, Laid, Shown, frame, number, percent, seconds, table
from inferway.experiments.workers import in_threads
from inferway.site.confidence import confidence_tables
from inferway.site.view import Ints
from inferway.twin.result import as_json
from inferway.twin.scenario import scenario_of
from inferway.twin.simulation import run
from inferway.workload import mean_rate

LOST: Final = 1e-3  # part of the requests that may find no room, where buffers are finite
# How far below its target a run's mean accuracy may end: what a policy's balance swings by.
SLACK: Final = 1e-3


@dataclass(frozen=True)
class Trial:
    """Instances of one task, by variant, that were simulated; `utilization` is their mean."""

    instances: dict[str, int]
    response_time_s: float
    accuracy: float
    utilization: float
    lost: float
    holds: bool

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {name: as_json(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class TaskPlan:
    """The instances that one task needs.

    Attributes
    ----------
    instances
        By variant; those with none left out.
    simulated
        Of `instances`.
    trials
        All that were simulated, in order.
    cheapest
        Whether nothing cheaper is left to be tried.
    bound
        By which instances were proposed: ``"blind"``, of policies that choose before they see an
        answer, or ``"escalation"``.
    """

    task: str
    rate_per_s: float
    latency_s: float
    accuracy_target: float | None
    energy_budget: float | None
    instances: dict[str, int]
    price: float
    simulated: Trial
    trials: tuple[Trial, ...]
    cheapest: bool
    bound: Literal["blind", "escalation"] = "blind"

    @property
    def holds(self) -> bool:
        """True where the twin keeps what is promised with these instances."""
        return self.simulated.holds

    def to_json(self) -> dict[str, Any]:
        """As `inferway plan FILE --json` prints it under ``tasks.NAME``."""
        order = (
            *("rate_per_s", "latency_s", "accuracy_target", "energy_budget", "instances"),
            *("price", "holds", "cheapest", "bound"),
        )
        return {
            **{name: getattr(self, name) for name in order},
            "simulated": self.simulated.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }


@dataclass(frozen=True)
class Plan(Shown):
    """The instances that a node needs for all its tasks."""

    node: str
    tasks: dict[str, TaskPlan]

    @property
    def holds(self) -> bool:
        """True where the twin keeps what all tasks promise."""
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

    def to_frame(self) -> Frame:
        """One row per simulation, in order; `chosen` says whose instances are the plan."""
        every = [(task, tried) for task in self.tasks.values() for tried in task.trials]
        variants = dict.fromkeys(variant for _, tried in every for variant in tried.instances)
        return frame(
            {
                "task": task.task,
                **{f"instances.{variant}": tried.instances.get(variant, 0) for variant in variants},
                **{what: value for what, value in vars(tried).items() if what != "instances"},
                "chosen": tried is task.simulated,
            }
            for task, tried in every
        )

    def plot(self) -> Drawing:
        """Draw what was simulated: how many instances, and the response time with them."""
        shown = []
        for name, task in self.tasks.items():
            others = sorted((one for one in task.trials if one != task.simulated), key=_fails)
            drawn = [(("holds", "does not hold")[_fails(one)], _fails(one), one) for one in others]
            # A point alone is marked, and none are joined.
            curves = [
                Curve(label, [sum(one.instances.values())], [one.response_time_s], color=color)
                for label, color, one in [*drawn, ("the plan", 2, task.simulated)]
            ]
            axes = (f"task {name}", "instances", "response time, mean, s")
            shown.append(Panel(*axes, curves, levels=[("asked for", task.latency_s)]))
        return panels(shown, columns=2)

    def tables(self) -> list[Laid]:
        """The instances of each task, and what the twin has of them."""
        shown: list[Laid] = []
        for task in self.tasks.values():
            target, simulated, tried = task.accuracy_target, task.simulated, len(task.trials)
            rows = [
                *([f"instances of {name}", str(count)] for name, count in task.instances.items()),
                ["price", f"{task.price:g}"],
                ["rate", f"{task.rate_per_s:.6g}/s"],
                ["response time, mean", seconds(simulated.response_time_s)],
                ["asked for", seconds(task.latency_s)],
                ["accuracy", number(simulated.accuracy, "{:.4f}")],
                *([] if target is None else [["accuracy target", f"{target:g}"]]),
                ["utilization", percent(simulated.utilization, 1)],
            ]
            count = f"{tried} simulation{'' if tried == 1 else 's'}"
            caption = (
                f"Nothing cheaper holds, after {count}."
                if task.cheapest
                else f"The cheapest found in {count}; more --tries may find a cheaper one."
            ) + (" Sized by the bound with escalation." if task.bound == "escalation" else "")
            shown.append(table(f"Task {task.task}, planned", ["", "twin"], rows, caption=caption))
        return shown

    def _repr_html_(self) -> str:
        rows = self.to_frame()
        return str(rows[rows["chosen"]].drop(columns="chosen").to_html(index=False))

    def __str__(self) -> str:
        return f"{super().__str__()}\n{self.yaml}".rstrip()


def _fails(trial: Trial) -> int:
    return int(not trial.holds)


def plan(
    deployment: Deployment,
    *,
    node: str | None = None,
    rate: float | None = None,
    latency: float | None = None,
    queries: int = 200_000,
    seed: int | None = None,
    tries: int = 40,
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
    needs = [_need(deployment, task, place, rate, latency) for task in _tasks(deployment, rate)]
    pinned = [float(need.size_bytes @ need.least) for need in needs]
    left = (np.inf if place.budget_bytes is None else float(place.budget_bytes)) - sum(pinned)
    if rate is not None:
        workload = {name: Workload(arrivals=poisson(rate)) for name in deployment.tasks}
        deployment = replace(deployment, workload=workload)
    stop = threading.Event()
    settings = {"queries": queries, "seed": deployment.seed if seed is None else seed, "stop": stop}
    tasks = {}
    for need, least in zip(needs, pinned, strict=True):
        _check_possible(need)
        price = need.price if need.price.any() else np.ones(len(need.rate))
        need = replace(need, budget_bytes=left + least, price=price)

        def simulated(counts: Ints, tried: int, need: Need = need) -> Trial:
            instances = _by_variant(need, counts)
            if progress is not None:
                listed = ", ".join(f"{count} {variant}" for variant, count in instances.items())
                progress(f"{need.task}: {listed}", tried / tries)
            about = {"deployment": deployment, "place": place, "need": need, "counts": counts}
            (computed,) = in_threads([Point(instances, _tried, about | settings)], 1, stop)
            trial: Trial = computed.result
            return trial

        best, trials, nothing_left = _search(need, tries, simulated)
        tasks[need.task] = TaskPlan(
            need.task,
            need.rate_per_s,
            need.latency_s,
            need.target,
            need.energy_budget,
            _by_variant(need, best),
            float(need.price @ best),
            trials[tuple(best.tolist())],
            tuple(trials.values()),
            nothing_left,
            "blind" if need.confidence is None else "escalation",
        )
        left = need.budget_bytes - float(need.size_bytes @ best)
    return Plan(place.name, tasks)


def _search(
    need: Need, tries: int, simulated: Callable[[Ints, int], Trial]
) -> tuple[Ints, dict[tuple[int, ...], Trial], bool]:
    """The best instances of one task, all that were tried, and if nothing cheaper is left."""
    known: dict[tuple[int, ...], Trial] = {}
    best, price = None, np.inf

    def holds(counts: Ints) -> bool:
        """Try instances, and keep the cheapest that hold."""
        nonlocal best, price
        key = tuple(counts.tolist())
        if key not in known:
            known[key] = simulated(counts, len(known))
        if known[key].holds and need.price @ counts < price:
            best, price = counts, float(need.price @ counts)
        return known[key].holds

    full, spare = 1.0, 0.0  # loads that are too high, and that hold
    for step in range(7):
        load = 0.8 if step == 0 else (full + spare) / 2
        counts = cheapest(need, load=load)
        if counts is not None and holds(counts):
            spare = load
        else:
            full = load
    failed = [np.array(key) for key, trial in known.items() if not trial.holds]
    # Where nothing holds and nothing limits, the roomiest would be without end.
    budget = np.isfinite(need.budget_bytes)
    limited = np.isfinite(need.most).all() or (budget and (need.size_bytes > 0).all())
    nothing_left = False
    while len(known) < tries and (best is not None or limited) and not nothing_left:
        counts = roomiest(need, below=price, failed=failed)
        nothing_left = counts is None
        if counts is not None and not holds(counts):
            failed.append(counts)
    if best is not None:
        return best, known, nothing_left
    limits = ["`max_instances`"] if np.isfinite(need.most).any() else []
    limits += ["the node's budget"] if budget else []
    within = f" within {' and '.join(limits)}" if limits else ""
    count = f"; {len(known)} that could were simulated, and failed" if known else ""
    raise ValueError(
        f"tasks.{need.task}: no instances{within} were found that keep what it promises{count}"
    )


def _place(deployment: Deployment, node: str | None) -> Node:
    if node is None and len(deployment.nodes) == 1:
        node = next(iter(deployment.nodes))
    if node is None:
        raise ValueError(f"name one of the nodes {', '.join(deployment.nodes) or '(none)'}")
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
    return tasks


def _need(
    deployment: Deployment,
    task: Task,
    place: Node,
    rate_per_s: float | None,
    latency_s: float | None,
) -> Need:
    if (told := place.device_refusal(f"nodes.{place.name}")) is not None:
        raise ValueError(told)
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
        accuracy=accuracy,
        energy=np.array([one.energy or 0.0 for one in variants]),
        price=np.array([one.price or 0.0 for one in variants]),
        size_bytes=np.array([float(one.size_bytes or 0) for one in variants]),
        least=np.array([place.pinned.get((task.name, one.name), 0) for one in variants]),
        most=np.full(len(variants), most),
        budget_bytes=np.inf,
        confidence=confidence_tables(task, names, accuracy) if twice else None,
    )


def _check_possible(need: Need) -> None:
    """Refuse a latency that no number of instances reaches."""
    means = need.target, need.energy_budget
    if need.confidence is None:
        max_rate(need.ample, *means)
        least_s = relaxed(need.ample, *means).response_time_s
    else:
        least_s = solve_escalation(need.ample, means[0], None, means[1]).response_time_s
    if least_s > need.latency_s:
        raise ValueError(
            f"tasks.{need.task}: no number of instances answers within {TIME.write(need.latency_s)}"
            f" on average; the service alone takes {least_s:.4g} s or more at the target"
        )


def _tried(deployment: Deployment, place: Node, need: Need, counts: Ints, **settings: Any) -> Trial:
    chosen = _by_variant(need, counts)
    instances = {(need.task, variant): count for variant, count in chosen.items()}
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
    planned = replace(deployment, nodes={place.name: there})
    scenario = replace(scenario_of(planned, need.task, place.name), deadline_s=None)
    result = run(scenario, **settings)
    response_time_s = result.response_time_s.mean if result.stable else float("inf")
    energy = dict(zip(need.variants, need.energy, strict=True))
    used = sum(share * energy[variant] for variant, share in result.shares.items())
    used += sum(one.share * energy[one.first] for one in result.escalated or ())
    busy = sum(chosen.get(variant, 0) * part for variant, part in result.utilization.items())
    lost = result.rejected + result.dropped
    return Trial(
        instances=chosen,
        response_time_s=response_time_s,
        accuracy=result.accuracy.mean,
        utilization=float(busy / counts.sum()),
        lost=lost,
        holds=bool(
            response_time_s <= need.latency_s
            and (need.target is None or result.accuracy.mean >= need.target - SLACK)
            and (need.energy_budget is None or used <= need.energy_budget * (1 + SLACK))
            and lost <= LOST
        ),
    )


def _by_variant(need: Need, counts: Ints) -> dict[str, int]:
    return {v: int(count) for v, count in zip(need.variants, counts, strict=True) if count > 0}
