"""Placement policies by their names, imported when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from inferway.deployment.policies import PLACEMENT
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.placement.contract import Float, NamedPolicy, PlacementPolicy
from inferway.policies.registry import policy_class as find

if TYPE_CHECKING:
    from inferway.deployment import Deployment

POLICIES = PLACEMENT
WRITTEN = "written"  # What the file itself lists, among the policies of the network twin
DEFAULT_POLICY = "infida"


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


def policy_of(deployment: Deployment, policy: str | None = None) -> str:
    """Name the placement policy that runs: the one asked for, the file's, or INFIDA.

    A file that lists `instances` and no `placement` says what runs itself: ``written``.
    """
    if policy is not None:
        return policy
    if deployment.placement is not None:
        return deployment.placement.policy
    listed = any(node.instances for node in deployment.nodes.values())
    return WRITTEN if listed else DEFAULT_POLICY


def expected_batches(demand: Demand, slots: int) -> Float:
    """(T, R) mean requests of each type and slot: what policies in hindsight are given.

    The counts themselves differ in every slot by chance; their means repeat, and repeated slots are
    evaluated once.
    """
    return np.array([demand.expected(slot) for slot in range(slots)])
