"""Targets over several tasks in a network: each node keeps them over what enters there.

A mean that is kept at every entry is kept over all answers, so that nodes need tell each other
nothing of it. It is the rule for a task's own target, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from inferway.deployment.units import ENERGY
from inferway.deployment.warnings import Caution
from inferway.dispatch.bounds import TOLERANCE, UnreachableError
from inferway.dispatch.joint import means_of, replace_goal, told_of, written
from inferway.dispatch.joint_bounds import JointMean, TaskDemand, best_mean, exceeds, solve_jointly
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.site.fleet import Fleet

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Task

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
    the node's policies are told the same, whatever runs at the moment. Where a target is on energy,
    its price starts no lower than what always runs there asks for, if that keeps all of them: what
    a price that begins too low has overspent is never won back.

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
    rates = {one: rates_per_s.get(one, 0.0) for one in tasks}
    told = told_of(_demands(deployment, network, node, rates), means, limited=False)
    if any(one.energy is not None for one in means.values()):
        certain = _demands(deployment, network, node, rates, certain=True)
        with suppress(UnreachableError):
            least = solve_jointly(certain, [*means.values()], limited=False).prices
            for one, price in zip(told, least, strict=True):
                if "energy" in one:
                    one["start"] = max(one["start"], price)
    return told


def unreachable_entries(
    deployment: Deployment, network: DeliveryNetwork, demand: Demand
) -> Iterator[Caution]:
    """Advise on targets over several tasks that nothing keeps where some of these enter.

    Of a target's entries the first such one is named, with what is within reach there while the
    targets before it in the file are kept.
    """
    means = means_of(deployment)
    over = {task for one in means.values() for task in one.tasks}
    short: dict[str, list[tuple[str, tuple[str, ...], float, bool]]] = {}
    for node, every in _entering(network, demand).items() if means else ():
        joined = {task: rate for task, rate in every.items() if task in over}
        demands, kept = _demands(deployment, network, node, joined), list[JointMean]()
        for name, mean in means.items():
            inside = mean._replace(tasks=tuple(task for task in joined if task in mean.tasks))
            best = best_mean(demands, inside, kept, limited=False) if inside.tasks else None
            if best is not None and exceeds(inside, best):
                entry = network.nodes[node], inside.tasks, best, bool(kept)
                short.setdefault(name, []).append(entry)
            elif best is not None:
                kept.append(inside)
    for name, entries in short.items():
        field, mean, (at, tasks, best, others) = f"targets.{name}", means[name], entries[0]
        more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
        beside = ", beside the targets before" if others else ""
        cure = "; placement does not go by energy, so pin what takes less" if mean.energy else ""
        sentence = (
            f"each node keeps it over what enters there, and at {at}{more} no mix of what may be "
            f"placed keeps {written(mean)} over {', '.join(tasks)} alone{beside}; "
            f"{written(replace_goal(mean, best))} is within reach at {at}{cure}"
        )
        yield Caution("target-above-the-bound", field, deployment.line_of(field), sentence)


def unplaced_energies(
    deployment: Deployment, network: DeliveryNetwork, demand: Demand
) -> Iterator[Caution]:
    """Advise on energy that is kept only while placement happens to have thrifty variants near.

    Placement weighs accuracy against latency, so that an accurate variant is never far; it does not
    go by energy. Of the entries where what always runs takes more, the first is named.
    """
    goals = [
        (f"targets.{one.name}", one.energy, [one.tasks])
        for one in deployment.targets.values()
        if one.energy is not None
    ] + [
        (f"tasks.{task.name}.energy_budget", task.energy_budget, [(one,) for one in task.names])
        for task in deployment.tasks.values()
        if task.energy_budget is not None
    ]
    if not goals:
        return
    asked = {one for _, _, means in goals for tasks in means for one in tasks}
    least: dict[int, dict[str, tuple[float, float]]] = {}  # Rate, 1/s, and energy, J
    for node, every in _entering(network, demand).items():
        rates = {one: rate for one, rate in every.items() if one in asked}
        demands = _demands(deployment, network, node, rates, certain=True)
        least[node] = {
            name: (one.rate_per_s, float(one.fleet.energy.min())) for name, one in demands.items()
        }
    for field, goal, means in goals:
        short = []
        for node, tasks in product(least, means):
            here = np.array([least[node][one] for one in tasks if one in least[node]])
            taken = float(np.average(here[:, 1], weights=here[:, 0])) if len(here) else 0.0
            if taken > goal * (1 + TOLERANCE):
                short.append((network.nodes[node], taken))
        if short:
            at, taken = short[0]
            more = f" and {len(short) - 1} more" if len(short) > 1 else ""
            sentence = (
                f"placement does not go by energy, and what always runs within reach of {at}{more} "
                f"takes {ENERGY.write(float(f'{taken:.4g}'))} per request at least, so that it is "
                "kept only while thriftier variants happen to run there; pin some"
            )
            yield Caution("energy-unkept", field, deployment.line_of(field), sentence)


def _entering(network: DeliveryNetwork, demand: Demand) -> dict[int, dict[str, float]]:
    """Mean arrival rates by the node where requests enter, and by task, 1/s; those above 0."""
    paths, requests = network.paths, network.requests
    entry, per_s = paths.node[paths.first[requests.path]], demand.expected(0) / demand.slot_s
    found: dict[int, dict[str, float]] = {}
    for i in np.argsort(entry, kind="stable").tolist():
        if per_s[i] > 0.0:
            found.setdefault(int(entry[i]), {})[network.tasks[requests.task[i]]] = float(per_s[i])
    return found


def _always(deployment: Deployment, network: DeliveryNetwork) -> set[tuple[str, str, int]]:
    """What runs whatever placement does: task, variant, and number of the node.

    That is what is pinned and what repositories have; what is listed, too, where nothing is placed.
    """
    pairs, models = network.pairs, network.models
    pinned = np.flatnonzero(pairs.pinned > 0)
    of = pairs.model[pinned].tolist()
    runs = {
        (network.tasks[models.task[model]], network.variants[models.variant[model]], node)
        for model, node in zip(of, pairs.node[pinned].tolist(), strict=True)
    }
    if deployment.placement is not None:
        return runs
    number = {name: node for node, name in enumerate(network.nodes)}
    return runs | {
        (one, variant, number[name])
        for name, node in deployment.nodes.items()
        for (task, variant), copies in node.instances.items()
        for one in (deployment.tasks[task].names if task in deployment.tasks else [task])
        if copies
    }


def _demands(
    deployment: Deployment,
    network: DeliveryNetwork,
    node: int,
    rates_per_s: Mapping[str, float],
    *,
    certain: bool = False,
) -> dict[str, TaskDemand]:
    """Demand of these tasks at a node, with a class for each variant that may run on the way.

    Those of a task that enters nowhere may all run, wherever the node's requests go; where nothing
    there can run any, wherever they can. With `certain`, and where nothing is placed, the classes
    are those that always run on the way, if any do.
    """
    pairs, models, ways = network.pairs, network.models, _ways(network, node)
    listed = deployment.placement is None and any(n.instances for n in deployment.nodes.values())
    always = _always(deployment, network) if certain or listed else ()
    named, demands = deployment.named(), {}
    for name, rate_per_s in rates_per_s.items():
        kind, task = named[name], network.tasks.index(name)
        own, runs = models.variant[models.task == task], models.task[pairs.model] == task
        row = {network.variants[k]: k for k in own.tolist()}
        useful = zip(models.variant[pairs.model[runs]], pairs.node[runs], strict=True)
        candidates = (
            {(row[k], at) for one, k, at in always if one == name and at in ways},
            {(k, at) for k, at in useful if at in ways},
            {(k, at) for k in own for at in ways},
            {(k, at) for k in own for at in range(len(network.nodes))},
        )
        found = ([*_running(network, kind, sorted(one), ways)] for one in candidates)
        variants, nodes, times_s, energies = zip(*next(filter(None, found)), strict=True)
        fleet = Fleet(
            variants=tuple(map("{}@{}".format, variants, nodes)),
            rate=1.0 / np.array(times_s),
            accuracy=np.array([kind.variants[one].accuracy for one in variants]),
            count=np.ones(len(variants), np.int64),
            task=name,
            node=network.nodes[node],
            energy=np.array(energies),
        )
        demands[name] = TaskDemand(
            fleet, max(rate_per_s, _RARE_PER_S), kind.accuracy_target, kind.energy_budget
        )
    return demands


def _running(
    network: DeliveryNetwork,
    task: Task,
    candidates: Iterable[tuple[int, int]],
    ways: Mapping[int, float],
) -> Iterator[tuple[str, str, float, float]]:
    """Of a task's variants at nodes, those that run there.

    Both names, the time until an answer, s, and what it takes, J.
    """
    for k, at in candidates:
        name, hardware = network.variants[k], network.hardware[at]
        time_s = float(network.delay_s[k, hardware])
        if np.isfinite(time_s):
            energy = task.variants[name].energy_on(network.kinds[hardware])
            yield name, network.nodes[at], time_s + ways.get(at, 0.0), energy or 0.0


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
