"""Makes placement policies by their names. Policies are imported when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from inferway.deployment.policies import PLACEMENT
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Float
from inferway.placement.contract import NamedPolicy, Policy
from inferway.policies.registry import policy_class as find

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
) -> Policy:
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
    found = policy_class(name, folder)
    try:
        return found.build(network, seed=seed, batches=batches, **options)
    except TypeError as error:
        raise ValueError(f"placement policy {name}: {error}") from error
