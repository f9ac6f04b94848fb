"""One trial of a plan: its tasks in the twin, together where targets or devices join them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inferway.deployment import Deployment, Node
from inferway.dispatch.joint import means_of
from inferway.dispatch.joint_bounds import JointMean
from inferway.experiments.plan_result import SLACK, TargetPlan, Trial
from inferway.twin.joint import share_devices
from inferway.twin.joint_mean import energy_of, mean_over
from inferway.twin.scenario import scenario_of
from inferway.twin.simulation import run, run_together, without_absent


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
    scenarios, _ = without_absent(scenarios)
    if deployment.targets or share_devices(scenarios):
        results = run_together(scenarios, **settings)
    else:
        results = {name: run(one, **settings) for name, one in scenarios.items()}
    fleets = {name: one.fleet for name, one in scenarios.items()}
    targets = {
        name: _target(mean, mean_over(mean, fleets, results))
        for name, mean in means_of(deployment).items()
    }
    trials = {}
    for name, result in results.items():
        task, fleet = deployment.tasks[name], fleets[name]
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
            goodput=result.goodput,
            holds=bool(
                left <= lost
                and response_time_s <= latency_s[name]
                and (target is None or result.accuracy.mean >= target - SLACK)
                and (budget is None or energy_of(fleet, result) <= budget * (1 + SLACK))
                and all(one.holds for one in targets.values() if name in one.tasks)
            ),
        )
    return trials, targets


def _target(mean: JointMean, found: float) -> TargetPlan:
    if mean.accuracy is not None:
        holds = found >= mean.accuracy - SLACK
    else:
        assert mean.energy is not None
        holds = found <= mean.energy * (1 + SLACK)
    return TargetPlan(mean.tasks, mean.accuracy, mean.energy, found, holds)
