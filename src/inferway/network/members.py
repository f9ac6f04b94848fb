"""What a deployment says of each node of its network, wherever it says it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from inferway.deployment import Deployment, Failure, Node, Outage
from inferway.deployment.nodes import WrittenNode
from inferway.network.topology import Topology


def members_of(deployment: Deployment, topology: Topology) -> dict[str, Node]:
    """Describe every node: as `nodes` does, else as its tier, else as `others`.

    Parameters
    ----------
    deployment
        A file with `network`.
    topology
        Of `topology_of`; budgets come from it, as a tier's may be mixed.

    Returns
    -------
    dict
        By name, in the topology's order. A node that nothing describes has no instances, no limit
        and no addresses.
    """
    network = deployment.network
    tiers = {tier.tier: tier for tier in (network.tree or ())} if network is not None else {}
    others = network.others if network is not None else None
    found: dict[str, Node] = {}
    for index, name in enumerate(topology.nodes):
        if name in deployment.nodes:
            found[name] = deployment.nodes[name]
            continue
        written = tiers.get(topology.tiers[topology.tier[index]], others)
        budget = topology.budget[index]
        found[name] = _node(
            name,
            WrittenNode() if written is None else written,
            budget_bytes=int(budget) if np.isfinite(budget) else None,
        )
    return found


def _node(name: str, written: WrittenNode, budget_bytes: int | None) -> Node:
    return Node(
        name=name,
        instances=_keyed(written.instances or {}),
        pinned=_keyed(written.pinned),
        budget_bytes=budget_bytes,
        hardware=written.hardware,
        buffer=written.buffer,
        queue=written.queue,
        late=written.late,
        repository=written.repository,
        failures={
            _key(key): Failure(failure.every, failure.for_)
            for key, failure in written.failures.items()
        },
        outages=tuple(Outage(_keyed(one.instances), one.at, one.for_) for one in written.outages),
        address=written.address,
        peer=written.peer,
        control=written.control,
        store=written.store,
        limits=written.limits,
    )


def _keyed(copies: Mapping[str, int]) -> dict[tuple[str, str], int]:
    return {_key(key): count for key, count in copies.items()}


def _key(key: str) -> tuple[str, str]:
    task, _, variant = key.partition("/")
    return task, variant
