"""The policy contract: a policy is a NamedTuple of arrays and numbers with up to three functions.

    choose(policy, site, request, draw) -> server | REJECT | HOLD    writes nothing
    learn(policy, site, event) -> None                  optional; writes the policy's own arrays
    pull(policy, site, server, draw) -> (drop, take)    optional; when a server falls free

They are the methods of the policy's class, so that plain Python calls ``policy.choose(...)``, and
the stubs below find the same functions by type when compiled. Each policy's class also has

    build(fleet, *, target, rate_per_s, **options) -> policy          a classmethod, in plain Python
    retune(fleet, *, target, rate_per_s) -> None                      optional; off the request path

and never sleeps, logs, reads a clock or draws random numbers: ``uniform(draw, i)`` gives them.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Protocol, cast

from numba.extending import overload

from inferway.deployment.policies import DISPATCH
from inferway.policies.registry import as_python, fault_of
from inferway.policies.registry import policy_class as find
from inferway.site.compiled import INLINE
from inferway.site.fleet import Fleet
from inferway.site.handle import made_of
from inferway.site.view import Event, Request, Site


class DispatchPolicy(Protocol):
    """What every dispatch policy offers; `learn`, `pull` and `retune` are optional."""

    @classmethod
    def build(
        cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None, **options: Any
    ) -> DispatchPolicy:
        """The policy for a fleet; raises ValueError where it lacks what it needs."""

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """A server, REJECT or HOLD."""


def choose(policy: Any, site: Site, request: Request, draw: int) -> int:
    """The policy's decision for one request: a server, REJECT or HOLD."""
    return policy.choose(site, request, draw)


def learn(policy: Any, site: Site, event: Event) -> None:
    """Tell the policy what happened, if it wants to know."""
    if hasattr(policy, "learn"):
        policy.learn(site, event)


def pull(policy: Any, site: Site, server: int, draw: int) -> tuple[int, int]:
    """How many requests a free server drops from the head of its queue, and takes as one batch."""
    if hasattr(policy, "pull"):
        return policy.pull(site, server, draw)
    return 0, 1


@overload(choose, strict=False, jit_options=INLINE)
def _choose(policy: Any, site: Any, request: Any, draw: Any) -> Any:
    return _method(policy, "choose")


@overload(learn, strict=False, jit_options=INLINE)
def _learn(policy: Any, site: Any, event: Any) -> Any:
    return _method(policy, "learn") or (lambda policy, site, event: None)


@overload(pull, strict=False, jit_options=INLINE)
def _pull(policy: Any, site: Any, server: Any, draw: Any) -> Any:
    return _method(policy, "pull") or (lambda policy, site, server, draw: (0, 1))


def _method(policy: Any, name: str) -> Any:
    found = made_of(policy)
    return None if found is None else getattr(found, name, None)


POLICIES = DISPATCH


def policy_class(name: str, folder: Path | None = None) -> type[DispatchPolicy]:
    """Find the class of a dispatch policy; see `inferway.policies.policy_class`."""
    return cast("type[DispatchPolicy]", find("dispatch", name, folder))


def build_policy(
    name: str,
    fleet: Any,
    *,
    target: float | None,
    rate_per_s: float | None,
    folder: Path | None = None,
    **options: Any,
) -> DispatchPolicy:
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
