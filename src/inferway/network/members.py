"""What a deployment says of each node of its network, wherever it says it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from inferway.deployment import Deployment, Node
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
        described = tiers.get(topology.tiers[topology.tier[index]], others) or Node()
        budget = topology.budget[index]
        found[name] = replace(
            described, name=name, budget_bytes=int(budget) if np.isfinite(budget) else None
        )
    return found
