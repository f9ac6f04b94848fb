"""Which placement policy a deployment runs, and what it expects to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from inferway.network.demand import Demand
from inferway.placement.arrays import Float
from inferway.placement.written import WRITTEN, lists_instances

if TYPE_CHECKING:
    from inferway.deployment import Deployment

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
