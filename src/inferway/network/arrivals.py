"""The requests that come to a network one by one: when, for which task, and where they enter."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment import Deployment
from inferway.deployment.workloads import Popularity
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.network.layout import deployed
from inferway.workload.arrivals import times
from inferway.workload.popularity import zipf

Float = NDArray[np.float64]
Index = NDArray[np.int32]

_TRACE = 0x7ACE  # tells this use of the seed from others


class Trace(NamedTuple):
    """Requests in the order of their times, n of them."""

    time_s: Float
    """(n,) when each comes, seconds from the start, ascending."""
    type: Index
    """(n,) its request type."""
    task: Index
    """(n,) its task, as an index of `DeliveryNetwork.tasks`."""
    entry: Index
    """(n,) the node where it enters."""


def trace_of(deployment: Deployment, duration_s: float, seed: int | None = None) -> Trace:
    """Draw the requests of a deployment's workload.

    Parameters
    ----------
    deployment
        A file with `network` and `workload`.
    duration_s
        Requests in [0, duration_s), in seconds.
    seed
        Of the requests alone; the file's if not given. The network stays what the file's own seed
        makes it.

    Raises
    ------
    DeploymentError
        As `network_of`.
    """
    network, demand = deployed(deployment)
    return requests_of(network, demand if seed is None else replace(demand, seed=seed), duration_s)


def requests_of(network: DeliveryNetwork, demand: Demand, duration_s: float) -> Trace:
    """Draw the requests that a demand stands for, one by one.

    Each stream's requests come as its arrival process says; each is for a task drawn by the
    popularity at its time, and enters at one of the task's entries, drawn evenly. Counted by slot
    they follow the law of `Demand.counts`, and where that draws arrival by arrival (a trace, a MAP)
    or not at all (constant arrivals), a stream has the same number in each slot. A longer trace
    begins as the shorter one does.

    Parameters
    ----------
    network, demand
        From `inferway.network.layout`.
    duration_s
        Requests in [0, duration_s), in seconds.
    """
    parts_s: list[Float] = []
    parts: list[NDArray[np.int64]] = []
    for index, one in enumerate(demand.streams):
        # The seed that the demand counts arrivals with, where it counts them.
        when = times(one.arrivals, horizon_s=duration_s, seed=demand.seed + index)
        rng = np.random.default_rng([demand.seed, _TRACE, index])
        uniform = rng.random((len(when), 2))
        tasks, entries = one.type_of.shape
        task = _task(one.popularity, tasks, when, uniform[:, 0])
        entry = np.minimum((uniform[:, 1] * entries).astype(np.int64), entries - 1)
        parts_s.append(when)
        parts.append(one.type_of[task, entry])
    time_s = np.concatenate(parts_s)
    order = np.argsort(time_s, kind="stable")
    kind = np.concatenate(parts)[order]
    requests, paths = network.requests, network.paths
    return Trace(
        time_s[order],
        kind.astype(np.int32),
        requests.task[kind],
        paths.node[paths.first[requests.path[kind]]],
    )


def _task(
    popularity: Popularity | None, tasks: int, time_s: Float, uniform: Float
) -> NDArray[np.int64]:
    """Draw each request's task, 0..tasks - 1, by the shares of `popularity.share_at`."""
    if popularity is None:
        return np.minimum((uniform * tasks).astype(np.int64), tasks - 1)
    below = np.cumsum(zipf(tasks, popularity.zipf))
    rank = np.minimum(np.searchsorted(below, uniform, side="right"), tasks - 1)
    if popularity.sliding is None:
        return rank
    period = np.floor(time_s / popularity.sliding.every).astype(np.int64)
    # Task i has rank i + shift * period, so rank k is that of task k - shift * period.
    return np.asarray((rank - popularity.sliding.shift * period) % tasks)
