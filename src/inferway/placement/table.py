"""Which name in a deployment file means which policy. Policies are imported when asked for."""

from __future__ import annotations

import importlib
from typing import Any

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.arrays import Float
from inferway.placement.contract import NamedPolicy, Policy

__all__ = ["HINDSIGHT", "POLICIES", "build_policy", "policy_class"]

POLICIES = {
    "infida": "infida:Infida",
    "infida-offline": "infida_offline:InfidaOffline",
    "static-greedy": "static_greedy:StaticGreedy",
    "olag": "olag:Olag",
    "olag-literal": "olag:OlagLiteral",
    "greedy": "greedy:Greedy",
    "exact": "exact:Exact",
    "repository-only": "repository_only:RepositoryOnly",
}

HINDSIGHT = frozenset({"infida-offline", "static-greedy", "exact"})
"""Policies that must be given the requests of all slots."""


def policy_class(name: str) -> type[NamedPolicy]:
    """Find the class of a policy; ValueError for an unknown name."""
    if name not in POLICIES:
        raise ValueError(
            f"unknown placement policy {name!r}: expected one of {', '.join(POLICIES)}"
        )
    file, attribute = POLICIES[name].split(":")
    found: type[NamedPolicy] = getattr(
        importlib.import_module(f"inferway.placement.{file}"), attribute
    )
    return found


def build_policy(
    name: str,
    network: DeliveryNetwork,
    *,
    seed: int = 0,
    batches: Float | None = None,
    **options: Any,
) -> Policy:
    """Make a policy by its name.

    Parameters
    ----------
    name
        One of `POLICIES`.
    network
        The inference delivery network.
    seed
        Of what the policy draws.
    batches
        (T, R) requests of each type in each slot, for policies in hindsight.
    options
        The policy's own, as its class documents them.

    Raises
    ------
    ValueError
        For an unknown name or option, a wrong value, or where `batches` are needed and missing.
    """
    found = policy_class(name)
    try:
        return found.build(network, seed=seed, batches=batches, **options)
    except TypeError as error:
        raise ValueError(f"placement policy {name}: {error}") from error
