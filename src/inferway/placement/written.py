"""The allocation that a deployment file itself lists: `instances` under its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from inferway.deployment.units import SIZE
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Static
from inferway.placement.layout import layout_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment

WRITTEN = "written"
"""Its name among the policies of the network twin."""


def lists_instances(deployment: Deployment) -> bool:
    """Whether the file says what runs, and leaves nothing to placement."""
    return deployment.placement is None and any(
        node.instances for node in deployment.nodes.values()
    )


class Written(Static):
    """The instances that the file lists; those that no request type can use are passed over.

    ValueError where a node's instances exceed its budget.
    """

    def __init__(self, deployment: Deployment, network: DeliveryNetwork) -> None:
        self.allocation = (network.pairs.pinned > 0).astype(np.uint8)
        pairs, models = network.pairs, network.models
        index = {name: node for node, name in enumerate(network.nodes)}
        for node in deployment.nodes.values():
            place = index[node.name]
            if network.repository[place]:
                continue
            here = np.arange(pairs.first[place], pairs.first[place + 1])
            for task, variant, count in _named(network, node.instances):
                model = pairs.model[here]
                own = here[(models.task[model] == task) & (models.variant[model] == variant)]
                self.allocation[own[:count]] = 1
        layout = layout_of(network)
        decided = np.where(layout.free, self.allocation * pairs.size, 0.0)
        used = np.bincount(pairs.node, decided, len(network.nodes))
        over = np.flatnonzero(used > layout.budget * (1 + 1e-12))
        if over.size:
            place = int(over[0])
            raise ValueError(
                f"node {network.nodes[place]}: its instances take {SIZE.write(used[place])}, more "
                f"than its budget leaves for them, {SIZE.write(layout.budget[place])}"
            )


def _named(
    network: DeliveryNetwork, instances: dict[tuple[str, str], int]
) -> Iterator[tuple[int, int, int]]:
    """Find task, variant and count by name; a counted task's own name stands for all of them."""
    models = network.models
    for (name, variant), count in instances.items():
        for task, known in enumerate(network.tasks):
            stem, _, number = known.rpartition("-")
            if known != name and not (stem == name and number.isdecimal()):
                continue
            own = models.variant[models.first[task] : models.first[task + 1]]
            for k in np.unique(own):
                if network.variants[k] == variant:
                    yield task, int(k), count
