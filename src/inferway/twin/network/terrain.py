"""The nodes, who tells whom, and which variants may run where."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.layout import members_of, topology_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment, Task


@dataclass(frozen=True)
class Ground:
    """One node."""

    name: str
    hardware: str
    budget: float
    """Bytes; inf where there is no limit."""
    repository: bool
    buffer: int | None
    """Places at an instance, the one in service included; None for no limit."""
    drops: bool
    """Whether requests whose deadline passes in a queue are dropped."""
    downstream: tuple[tuple[int, float], ...]
    """Neighbors that go by this node's offers, with their round-trip times, s."""


@dataclass(frozen=True)
class NodeModel:
    """A variant of a task at a node: the pairs of its copies, in their order."""

    node: int
    task: int
    variant: str
    accuracy: float
    service_s: float
    """Mean, on the node's hardware."""
    size: float
    """Bytes of one copy."""
    pairs: tuple[int, ...]
    capacity: float
    """Requests of a slot that one copy serves (the paper's L)."""
    pinned: int
    """Copies that always run."""


class Terrain:
    """A deployment's network as the event twin needs it.

    Parameters
    ----------
    deployment
        A file with `network`.
    network
        Its delivery network.

    Raises
    ------
    ValueError
        Where a node has one central queue: requests of a network wait at instances.
    """

    def __init__(self, deployment: Deployment, network: DeliveryNetwork) -> None:
        self.network = network
        self.kinds: list[Task] = [
            task for task in deployment.tasks.values() for _ in range(task.count)
        ]
        """(N,) where the file describes each task of the network."""
        members = members_of(deployment, topology_of(deployment))
        below = _downstream(network)
        self.nodes: list[Ground] = []
        for v, name in enumerate(network.nodes):
            member = members[name]
            if member.queue == "central":
                raise ValueError(
                    f"node {name} has `queue: central`; requests of a network wait at instances, "
                    "so say `per-server`"
                )
            self.nodes.append(
                Ground(
                    name=name,
                    hardware=member.hardware,
                    budget=float(network.budget[v]),
                    repository=bool(network.repository[v]),
                    buffer=member.buffer,
                    drops=member.late == "drop",
                    downstream=tuple(below[v].items()),
                )
            )
        self.number = {name: v for v, name in enumerate(network.nodes)}
        """Index of each node by its name."""
        self.models = _models(network)
        self.index = {(m.node, m.task, m.variant): i for i, m in enumerate(self.models)}
        """Place of each model in `models`, by node, task and variant."""
        self.at: list[list[int]] = [[] for _ in network.nodes]
        """Places in `models` of each node's."""
        for i, model in enumerate(self.models):
            self.at[model.node].append(i)


def _downstream(network: DeliveryNetwork) -> list[dict[int, float]]:
    """Neighbors on the other side of each node's, away from the repository, and round trips, s."""
    found: list[dict[int, float]] = [{} for _ in network.nodes]
    upstream: dict[int, int] = {}
    paths = network.paths
    for start, end in zip(paths.first[:-1], paths.first[1:], strict=True):
        for i in range(int(start), int(end) - 1):
            near, far = int(paths.node[i]), int(paths.node[i + 1])
            if upstream.setdefault(near, far) == far:  # a node goes by one neighbor's offers
                found[far][near] = float(paths.rtt_s[i + 1] - paths.rtt_s[i])
    return found


def _models(network: DeliveryNetwork) -> list[NodeModel]:
    pairs, models = network.pairs, network.models
    grouped: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for p in range(len(pairs.node)):
        model = pairs.model[p]
        grouped[int(pairs.node[p]), int(models.task[model]), int(models.variant[model])].append(p)
    found = []
    for (node, task, variant), own in grouped.items():
        first = own[0]
        found.append(
            NodeModel(
                node=node,
                task=task,
                variant=network.variants[variant],
                accuracy=float(models.accuracy[pairs.model[first]]),
                service_s=float(network.delay_s[variant, network.hardware[node]]),
                size=float(pairs.size[first]),
                pairs=tuple(own),
                capacity=float(pairs.capacity[first]),
                pinned=int(np.sum(pairs.pinned[own])),
            )
        )
    return found
