"""Makes the scheduler that a deployment file names, and writes what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from inferway.deployment import PolicySpec
from inferway.deployment.policies import SCHEDULING
from inferway.dispatch.alias import set_routing
from inferway.policies.registry import policy_class
from inferway.scheduling.contract import Conditions, Controller, Routing

SCHEDULERS = tuple(SCHEDULING)
"""Every name. `hw-e` and `sq` are dispatch policies that need no controller."""


def controller_of(
    spec: PolicySpec, conditions: Conditions, folder: Path | None = None
) -> Controller | None:
    """Make the controller that a scheduling policy names; None for those that are all dispatch.

    Parameters
    ----------
    spec
        Name and options, as `inferway.deployment` reads them; options left out have the defaults of
        the scheduler's `build`.
    folder
        Where a relative file name starts; the current folder by default.

    Raises
    ------
    ValueError
        For an unknown name, and where the scheduler lacks what it needs.
    """
    row = SCHEDULING.get(spec.policy)
    if row is not None and row.implies == spec.policy:
        return None
    scheduler = policy_class("scheduling", spec.policy, folder)
    try:
        made: Controller = scheduler.build(replace(conditions, policy=spec.policy), **spec.options)
    except TypeError as error:
        raise ValueError(f"scheduling policy {spec.policy}: {error}") from error
    return made


def steer(policy: Any, routing: Routing | None) -> None:
    """Write what a controller says into the memory of its dispatch policy.

    Parameters
    ----------
    policy
        `alias` or `steered`, whose arrays are written in place.
    routing
        None leaves the decisions of `steered` to `deadline`.

    Raises
    ------
    ValueError
        Where the routing is none: probabilities that do not sum to 1, sizes below 1.
    """
    if routing is not None:
        set_routing(policy, *routing)
    if hasattr(policy, "steered"):
        policy.steered[0] = routing is not None
