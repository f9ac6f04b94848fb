"""Targets over several tasks in a network: each node keeps them over what enters there.

A mean that is kept at every entry is kept over all answers, so that nodes need tell each other
nothing of it. It is the rule for a task's own target, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.deployment.warnings import Caution
from inferway.dispatch.joint import means_of, replace_goal, told_of, written
from inferway.dispatch.joint_bounds import JointMean, TaskDemand, best_mean, exceeds
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.site.fleet import Fleet

if TYPE_CHECKING:
    from inferway.deployment import Deployment

# What a task weighs that does not enter at a node, 1/s: its clients may come later.
_RARE_PER_S: Final = 1e-3


def targets_at(
    deployment: Deployment,
    network: DeliveryNetwork,
    node: int,
    rates_per_s: Mapping[str, float],
) -> list[dict[str, Any]]:
    """Tell the policies of a node of the targets over several tasks; empty where there is none.

    All that may come to run on the way from there to the repository is looked at, so that all of
    the node's policies are told the same, whatever runs at the moment.

    Parameters
    ----------
    deployment, network
        The file and what it describes.
    node
        Number of the node.
    rates_per_s
        By task that enters there, the mean arrival rate, 1/s.
    """
    if not deployment.targets:
        return []
    means = means_of(deployment)
    tasks = dict.fromkeys(task for one in means.values() for task in one.tasks)
    demands = _demands(deployment, network, node, {one: rates_per_s.get(one, 0.0) for one in tasks})
    return told_of(demands, means, limited=False)


def unreachable_entries(
    deployment: Deployment, network: DeliveryNetwork, demand: Demand
) -> Iterator[Caution]:
    """Advise on targets over several tasks that nothing keeps where some of these enter.

    Of a target's entries the first such one is named, with what is within reach there.
    """
    paths, requests = network.paths, network.requests
    entry = paths.node[paths.first[requests.path]]
    per_s = demand.expected(0) / demand.slot_s
    for name, mean in means_of(deployment).items():
        short = []
        for node in np.unique(entry).tolist():
            here = np.flatnonzero((entry == node) & (per_s > 0.0))
            rates = {network.tasks[requests.task[i]]: float(per_s[i]) for i in here.tolist()}
            rates = {task: rate for task, rate in rates.items() if task in mean.tasks}
            inside = JointMean(tuple(rates), mean.accuracy, mean.energy)
            demands = _demands(deployment, network, node, rates)
            best = best_mean(demands, inside, limited=False) if rates else None
            if best is not None and exceeds(inside, best):
                short.append((network.nodes[node], inside, best))
        if short:
            field, (at, inside, best) = f"targets.{name}", short[0]
            more = f" and {len(short) - 1} more" if len(short) > 1 else ""
            sentence = (
                f"each node keeps it over what enters there, and at {at}{more} no mix of what "
                f"may be placed keeps {written(mean)} over {', '.join(inside.tasks)} alone; "
                f"{written(replace_goal(mean, best))} is within reach at {at}"
            )
            yield Caution("target-above-the-bound", field, deployment.line_of(field), sentence)


def _demands(
    deployment: Deployment, network: DeliveryNetwork, node: int, rates_per_s: Mapping[str, float]
) -> dict[str, TaskDemand]:
    """Demand of these tasks at a node, with a class for each variant that may run on the way.

    Those of a task that enters nowhere may all run, wherever the node's requests go; where nothing
    there can run any, wherever they can.
    """
    pairs, models, ways = network.pairs, network.models, _ways(network, node)
    demands = {}
    for name, rate_per_s in rates_per_s.items():
        kind, task = deployment.tasks[name], network.tasks.index(name)
        own, runs = models.variant[models.task == task], models.task[pairs.model] == task
        useful = zip(models.variant[pairs.model[runs]], pairs.node[runs], strict=True)
        candidates = (
            {(k, at) for k, at in useful if at in ways},
            {(k, at) for k in own for at in ways},
            {(k, at) for k in own for at in range(len(network.nodes))},
        )
        found = ([*_timed(network, sorted(one), ways)] for one in candidates)
        variants, nodes, times_s = zip(*next(filter(None, found)), strict=True)
        fleet = Fleet(
            variants=tuple(map("{}@{}".format, variants, nodes)),
            rate=1.0 / np.array(times_s),
            accuracy=np.array([kind.variants[one].accuracy for one in variants]),
            count=np.ones(len(variants), np.int64),
            task=name,
            node=network.nodes[node],
        )
        demands[name] = TaskDemand(fleet, max(rate_per_s, _RARE_PER_S), kind.accuracy_target)
    return demands


def _timed(
    network: DeliveryNetwork, candidates: Iterable[tuple[int, int]], ways: Mapping[int, float]
) -> Iterator[tuple[str, str, float]]:
    """Of variants at nodes, those that run there: both names, and the time until an answer, s."""
    for k, at in candidates:
        time_s = float(network.delay_s[k, network.hardware[at]])
        if np.isfinite(time_s):
            yield network.variants[k], network.nodes[at], time_s + ways.get(at, 0.0)


def _ways(network: DeliveryNetwork, node: int) -> dict[int, float]:
    """Round-trip times to the nodes that may answer for a node, itself included, s, by number."""
    paths, ways = network.paths, {node: 0.0}
    for place in np.flatnonzero(paths.node == node).tolist():
        end = int(paths.first[np.searchsorted(paths.first, place, side="right")])
        for further in range(place, end):
            rtt_s = float(paths.rtt_s[further] - paths.rtt_s[place])
            at = int(paths.node[further])
            ways[at] = min(rtt_s, ways.get(at, np.inf))
    return ways
