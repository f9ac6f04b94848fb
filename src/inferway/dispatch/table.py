"""Makes dispatch policies by their names. Policies are imported when asked for."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, cast

from inferway.deployment.policies import DISPATCH
from inferway.dispatch.contract import Policy
from inferway.policies.registry import as_python, fault_of
from inferway.policies.registry import policy_class as find

POLICIES = DISPATCH


def policy_class(name: str, folder: Path | None = None) -> type[Policy]:
    """Find the class of a dispatch policy; see `inferway.policies.policy_class`."""
    return cast("type[Policy]", find("dispatch", name, folder))


def build_policy(
    name: str,
    fleet: Any,
    *,
    target: float | None,
    rate_per_s: float | None,
    folder: Path | None = None,
    **options: Any,
) -> Policy:
    """Make a policy by its name for a fleet; ValueError for an unknown name or option."""
    found = policy_class(name, folder)
    try:
        return found.build(fleet, target=target, rate_per_s=rate_per_s, **options)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        said = str(error) if isinstance(error, TypeError) else as_python(error)
        raise ValueError(f"policy {name}: {said}{fault_of(error, found)}") from error


def takes(name: str, option: str, folder: Path | None = None) -> bool:
    """Tell whether a policy's `build` names an option; ValueError as `policy_class`."""
    found = policy_class(name, folder)
    return option in inspect.signature(found.build).parameters
