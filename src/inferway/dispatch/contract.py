"""The policy contract: a policy is a NamedTuple of arrays and numbers with up to four functions.

    choose(policy, site, request, draw) -> server | REJECT | HOLD    writes nothing
    learn(policy, site, event) -> None                  optional; writes the policy's own arrays
    pull(policy, site, server, draw) -> (drop, take)    optional; when a server falls free
    settle(policy, site, request, answer, draw) -> ACCEPT | server   optional; when an answer with a
                                                        confidence has come; writes nothing

They are the methods of the policy's class, so that plain Python calls ``policy.choose(...)``, and
the stubs below find the same functions by type when compiled. Each policy's class also has

    build(fleet, *, target, rate_per_s, **options) -> policy          a classmethod, in plain Python
    retune(fleet, *, target, rate_per_s) -> None                      optional; off the request path

and never sleeps, logs, reads a clock or draws random numbers: ``uniform(draw, i)`` gives them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from numba.extending import overload

from inferway.deployment.policies import DISPATCH
from inferway.policies.registry import as_python, fault_of
from inferway.policies.registry import policy_class as find
from inferway.site.compiled import INLINE
from inferway.site.fleet import Fleet
from inferway.site.handle import made_of
from inferway.site.view import ACCEPT, Request, Site


class DispatchPolicy(Protocol):
    """Interface of every dispatch policy; `learn`, `pull`, `settle`, `retune` are optional."""

    @classmethod
    def build(
        cls, fleet: Fleet, *, target: float | None, rate_per_s: float | None, **options: Any
    ) -> DispatchPolicy:
        """The policy for a fleet; raises ValueError where it lacks what it needs."""

    def choose(self, site: Site, request: Request, draw: int) -> int:
        """A server, REJECT or HOLD."""


def _method(name: str, otherwise: Any = None) -> Callable[..., Any]:
    """The policy's function of this name, by its type when compiled; another where it has none."""

    def call(policy: Any, *arguments: Any) -> Any:
        own = getattr(policy, name, None)
        return otherwise(policy, *arguments) if own is None else own(*arguments)

    @overload(call, strict=False, jit_options=INLINE)
    def _of_type(policy: Any, *arguments: Any) -> Any:
        return getattr(made_of(policy), name, otherwise)

    return call


# ``choose(policy, site, request, draw)``: a server, REJECT or HOLD.
choose = _method("choose")
# ``learn(policy, site, event)`` tells the policy what happened, if it wants to know.
learn = _method("learn", lambda policy, site, event: None)
# ``pull(policy, site, server, draw)``: how many requests a free server drops from the head of its
# queue, and takes as one batch.
pull = _method("pull", lambda policy, site, server, draw: (0, 1))
# ``settle(policy, site, request, answer, draw)``: ACCEPT, and the answer is sent, or another server
# that is asked as well.
settle = _method("settle", lambda policy, site, request, answer, draw: ACCEPT)


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


def settles(name: str, folder: Path | None = None) -> bool:
    """Tell whether a policy may ask a second server; ValueError as `policy_class`."""
    return hasattr(policy_class(name, folder), "settle")


def takes(name: str, option: str, folder: Path | None = None) -> bool:
    """Tell whether a policy's `build` names an option; ValueError as `policy_class`."""
    found = policy_class(name, folder)
    return option in inspect.signature(found.build).parameters
