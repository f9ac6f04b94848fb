"""One trial of a plan: its tasks in the twin, together where targets over several join them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inferway.deployment import Deployment, Node
from inferway.dispatch.joint import means_of
from inferway.dispatch.joint_bounds import JointMean
from inferway.experiments.plan_result import SLACK, TargetPlan, Trial
from inferway.twin.result import TaskResult
from inferway.twin.scenario import Scenario, scenario_of
from inferway.twin.simulation import run, run_together


def without_others(deployment: Deployment, names: Sequence[str]) -> Deployment:
    """A deployment whose targets over several tasks are over these alone.

    A mean over answers asks nothing of tasks that have none, so that those without an instance are
    left out of it.
    """
    targets = {}
    for name, one in deployment.targets.items():
        if inside := tuple(task for task in one.tasks if task in names):
            targets[name] = replace(one, tasks=inside)
    return replace(deployment, targets=targets)


def tried(
    deployment: Deployment,
    place: Node,
    latency_s: Mapping[str, float],
    *,
    in_time: bool,
    lost: float,
    **settings: Any,
) -> tuple[dict[str, Trial], dict[str, TargetPlan]]:
    """Simulate tasks on a node, and say which of them keep what is promised.

    Parameters
    ----------
    deployment
        Its targets are over these tasks alone.
    place
        With an instance of each of them at least.
    latency_s
        By task, the greatest mean response time, s.
    in_time
        Whether requests are dropped at the tasks' deadlines, and late ones count as lost.
    lost
        Part of the requests that may be lost.
    settings
        As of `inferway.twin.run`.
    """
    planned = replace(deployment, nodes={place.name: place})
    scenarios = {}
    for name in latency_s:
        scenario = scenario_of(planned, name, place.name)
        scenarios[name] = scenario if in_time else replace(scenario, deadline_s=None)
    if deployment.targets:
        results = run_together(scenarios, **settings)
    else:
        results = {name: run(one, **settings) for name, one in scenarios.items()}
    energy_j = {name: _energy(scenarios[name], one) for name, one in results.items()}
    targets = {
        name: _target(mean, results, energy_j) for name, mean in means_of(deployment).items()
    }
    trials = {}
    for name, result in results.items():
        task, fleet = deployment.tasks[name], scenarios[name].fleet
        response_time_s = result.response_time_s.mean if result.stable else math.inf
        count = dict(zip(fleet.variants, fleet.count.tolist(), strict=True))
        busy = sum(count[variant] * part for variant, part in result.utilization.items())
        instances: dict[str, int] = {}
        for (of, variant), number in place.instances.items():
            if of == name and number > 0:
                instances[variant] = number
        left = result.violation_ratio if in_time else result.rejected + result.dropped
        target, budget = task.accuracy_target, task.energy_budget
        trials[name] = Trial(
            instances=instances,
            response_time_s=response_time_s,
            accuracy=result.accuracy.mean,
            utilization=float(busy / fleet.servers),
            lost=left,
            holds=bool(
                left <= lost
                and response_time_s <= latency_s[name]
                and (target is None or result.accuracy.mean >= target - SLACK)
                and (budget is None or energy_j[name] <= budget * (1 + SLACK))
                and all(one.holds for one in targets.values() if name in one.tasks)
            ),
        )
    return trials, targets


def _energy(scenario: Scenario, result: TaskResult) -> float:
    """Mean energy of an answer, J, with that of the first one where a second variant was asked."""
    fleet = scenario.fleet
    energy = dict(zip(fleet.variants, fleet.energy.tolist(), strict=True))
    used = sum(share * energy[variant] for variant, share in result.shares.items())
    used += sum(one.share * energy[one.first] for one in result.escalated or ())
    return float(used)


def _target(
    mean: JointMean, results: Mapping[str, TaskResult], energy_j: Mapping[str, float]
) -> TargetPlan:
    answers = {name: results[name].per_second.answers for name in mean.tasks}
    total = sum(answers.values())
    values = (
        energy_j
        if mean.accuracy is None
        else {name: one.accuracy.mean for name, one in results.items()}
    )
    summed = sum(of * values[name] for name, of in answers.items() if of > 0)
    found = summed / total if total > 0 else math.nan
    if mean.accuracy is not None:
        holds = found >= mean.accuracy - SLACK
    else:
        assert mean.energy is not None
        holds = found <= mean.energy * (1 + SLACK)
    return TargetPlan(mean.tasks, mean.accuracy, mean.energy, found, bool(holds))
