"""Objective of the policies in hindsight: the time-averaged gain G_T ([SiSalem23], eq. 14).

Slots with the same requests are counted once, with a weight. A task's gain depends on its own
models only (tasks meet in the budgets alone), so it can be evaluated on the task's arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, batches_of
from inferway.placement.objective import minimal
from inferway.placement.serving import serve


class Horizon(NamedTuple):
    """The different slots of a horizon.

    Attributes
    ----------
    requests
        (B, R) each different batch of requests.
    weight
        (B,) share of the slots that are such; they sum to 1.
    """

    requests: Float
    weight: Float


class TaskView(NamedTuple):
    """One task's part of a network.

    Attributes
    ----------
    types
        Its request types.
    pairs
        (p,) its pairs, as indices of the network's.
    first, pair, cost, repository
        Its options; `pair` counts within `pairs`.
    """

    types: NDArray[np.int64]
    pairs: NDArray[np.int64]
    first: NDArray[np.int64]
    pair: NDArray[np.int32]
    cost: Float
    repository: NDArray[np.bool_]


def needed(batches: Float | None, policy: str) -> Float:
    """The batches, which a policy in hindsight cannot do without; ValueError if there are none."""
    if batches is None:
        raise ValueError(f"{policy} decides in hindsight: it needs the requests of all slots")
    return batches


def horizon_of(network: DeliveryNetwork, batches: ArrayLike) -> Horizon:
    """Count the different slots of (T, R) requests; ValueError for another shape."""
    rows = batches_of(network, batches)
    different, counts = np.unique(rows, axis=0, return_counts=True)
    return Horizon(np.ascontiguousarray(different), counts / len(rows))


def task_views(network: DeliveryNetwork) -> list[TaskView]:
    """Split a network by tasks; tasks without request types are left out."""
    options = network.options
    views = []
    lengths = np.diff(options.first)
    for task in range(len(network.tasks)):
        types = np.flatnonzero(network.requests.task == task)
        if not len(types):
            continue
        chosen = np.concatenate([np.arange(*options.first[rho : rho + 2]) for rho in types])
        pairs, pair = np.unique(options.pair[chosen], return_inverse=True)
        views.append(
            TaskView(
                types,
                pairs.astype(np.int64),
                np.concatenate([[0], np.cumsum(lengths[types])]).astype(np.int64),
                pair.astype(np.int32),
                np.ascontiguousarray(options.cost[chosen]),
                np.ascontiguousarray(options.repository[chosen]),
            )
        )
    return views


def served_of(
    network: DeliveryNetwork, horizon: Horizon, allocation: Allocation | None = None
) -> Float:
    """(O,) mean requests of a slot that each option serves; of the minimal allocation if none."""
    chosen = minimal(network).astype(np.uint8) if allocation is None else allocation
    served = np.zeros(len(network.options.pair))
    for requests, weight in zip(horizon.requests, horizon.weight, strict=True):
        served += weight * serve(network, requests, chosen)
    return served


def average_gain(network: DeliveryNetwork, horizon: Horizon, allocation: Allocation) -> float:
    """G_T of a static allocation, each slot served as `serve` does; costs times requests."""
    least = minimal(network).astype(np.uint8)
    total = 0.0
    for requests, weight in zip(horizon.requests, horizon.weight, strict=True):
        load = serve(network, requests, allocation)
        total += weight * float(network.options.cost @ (serve(network, requests, least) - load))
    return total
