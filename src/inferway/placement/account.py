"""What the loads of a slot cost, how long they take and how accurate they are, by tier and task.

One pass over the options, without arrays of their length: networks may have tens of millions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.options import Models, Options, Paths
from inferway.placement.arrays import Float, Index
from inferway.site.compiled import entry


def spent(network: DeliveryNetwork, load: Float) -> Float:
    """(R,) what each type's requests cost under (O,) loads, in the unit of the options' costs."""
    total = np.zeros(len(network.options.first) - 1)
    _spend(network.options, load, total)
    return total


class _Facts(NamedTuple):
    """What the time and the accuracy of an option follow from."""

    options: Options
    paths: Paths
    models: Models
    path: Index
    task: Index
    tier: Index
    hardware: Index
    delay_s: Float


def tally(network: DeliveryNetwork, load: Float) -> tuple[Float, Float]:
    """Sum up (O,) loads by the tier that served them, and by the task that they were for.

    Returns
    -------
    tiers, tasks
        (K, 3) and (N, 3): requests, the seconds that they took together, and their summed
        inaccuracy in 0..1.
    """
    facts = _Facts(
        network.options,
        network.paths,
        network.models,
        network.requests.path,
        network.requests.task,
        network.tier,
        network.hardware,
        network.delay_s,
    )
    tiers, tasks = np.zeros((len(network.tiers), 3)), np.zeros((len(network.tasks), 3))
    _add(facts, load, tiers, tasks)
    return tiers, tasks


@entry
def _spend(options: Options, load: Float, total: Float) -> None:
    for rho in range(len(total)):
        for o in range(options.first[rho], options.first[rho + 1]):
            total[rho] += options.cost[o] * load[o]


@entry
def _add(facts: _Facts, load: Float, tiers: Float, tasks: Float) -> None:
    options = facts.options
    for rho in range(len(facts.task)):
        start = facts.paths.first[facts.path[rho]]
        for o in range(options.first[rho], options.first[rho + 1]):
            served = load[o]
            if served <= 0.0:
                continue
            model, node = options.model[o], options.node[o]
            delay = facts.delay_s[facts.models.variant[model], facts.hardware[node]]
            taken = served * (facts.paths.rtt_s[start + options.hop[o]] + delay)
            missed = served * (1.0 - facts.models.accuracy[model])
            for rows, part in ((tiers, facts.tier[node]), (tasks, facts.task[rho])):
                rows[part, 0] += served
                rows[part, 1] += taken
                rows[part, 2] += missed
