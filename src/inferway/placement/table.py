"""Placement policies by their names, imported when asked for, and what a file itself lists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from inferway.deployment.policies import PLACEMENT
from inferway.deployment.units import SIZE
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.placement.contract import Float, NamedPolicy, PlacementPolicy, Static
from inferway.placement.layout import layout_of
from inferway.policies.registry import policy_class as find

if TYPE_CHECKING:
    from inferway.deployment import Deployment

WRITTEN = "written"
"""Its name among the policies of the network twin."""


def lists_instances(deployment: Deployment) -> bool:
    """Tell whether the file says what runs, and leaves nothing to placement."""
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
            local = np.arange(pairs.first[place], pairs.first[place + 1])
            for task, variant, count in _named(network, node.instances):
                model = pairs.model[local]
                copies = local[(models.task[model] == task) & (models.variant[model] == variant)]
                self.allocation[copies[:count]] = 1
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


POLICIES = PLACEMENT


def policy_class(name: str, folder: Path | None = None) -> type[NamedPolicy]:
    """Find the class of a placement policy; see `inferway.policies.policy_class`."""
    return cast("type[NamedPolicy]", find("placement", name, folder))


def build_policy(
    name: str,
    network: DeliveryNetwork,
    *,
    seed: int = 0,
    batches: Float | None = None,
    folder: Path | None = None,
    **options: Any,
) -> PlacementPolicy:
    """Make a policy by its name.

    Parameters
    ----------
    name
        One of `POLICIES`, or ``./file.py:Class``.
    network
        The inference delivery network.
    seed
        Of what the policy draws.
    batches
        (T, R) requests of each type in each slot, for policies in hindsight.
    folder
        Where a relative file name starts; the current folder by default.
    options
        The policy's own, as its class documents them.

    Raises
    ------
    ValueError
        For an unknown name or option, a wrong value, or where `batches` are needed and missing.
    """
    try:
        return policy_class(name, folder).build(network, seed=seed, batches=batches, **options)
    except TypeError as error:
        raise ValueError(f"placement policy {name}: {error}") from error


DEFAULT_POLICY = "infida"


def policy_of(deployment: Deployment, policy: str | None = None) -> str:
    """Name the placement policy that runs: the one asked for, the file's, or INFIDA.

    A file that lists `instances` and no `placement` says what runs itself: ``written``.
    """
    if policy is not None:
        return policy
    if deployment.placement is not None:
        return deployment.placement.policy
    return WRITTEN if lists_instances(deployment) else DEFAULT_POLICY


def expected_batches(demand: Demand, slots: int) -> Float:
    """(T, R) mean requests of each type and slot: what policies in hindsight are given.

    The counts themselves differ in every slot by chance; their means repeat, and repeated slots are
    evaluated once.
    """
    return np.array([demand.expected(slot) for slot in range(slots)])
