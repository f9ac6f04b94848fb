"""The steps as Python calls them: compiled, cached on disk, behind one handle.

A call with thirty arrays costs 8 us to unpack; a call with one structure that holds them, 0.6 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
from numba.core import types
from numba.experimental import structref

from inferway.dispatch import steps
from inferway.dispatch.steps import Binding
from inferway.site.compiled import entry, fingerprint
from inferway.site.view import Site

AS_DECIDED = -3
"""For `arrive`: what happens is what the policy decides."""


class Entries(NamedTuple):
    """Compiled functions, each called with the handle that `bind` gives."""

    bind: Callable[..., Any]
    arrive: Callable[..., int]
    begin: Callable[..., None]
    finish: Callable[..., None]
    withdraw: Callable[..., None]
    mark: Callable[..., None]
    pull: Callable[..., tuple[int, int]]
    shift: Callable[..., None]


def code_of(policy: Any) -> str:
    """Hash of the code that decides with this policy, 16 hexadecimal digits."""
    return fingerprint(__name__, type(policy))


@structref.register
class _BindingType(types.StructRef):  # type: ignore[misc, name-defined]
    """A `Binding` behind one pointer: unpacking thirty arrays at every call would cost 8 us."""


@structref.register
class _SiteType(types.StructRef):  # type: ignore[misc, name-defined]
    """A `Site` behind one pointer, for the same reason."""


if numba.config.DISABLE_JIT:

    def _bind(binding: Binding) -> Any:
        return binding

else:

    class _BindingRef(structref.StructRefProxy):  # type: ignore[misc]
        pass

    class _SiteRef(structref.StructRefProxy):  # type: ignore[misc]
        pass

    structref.define_proxy(_BindingRef, _BindingType, list(Binding._fields))
    structref.define_proxy(_SiteRef, _SiteType, list(Site._fields))

    def _bind(binding: Binding) -> Any:
        return _BindingRef(
            binding.policy,
            _SiteRef(*binding.site),
            binding.allowed,
            binding.decision,
            binding.measures,
            binding.narrows,
            binding.max_wait_s,
            binding.lasting,
        )


def _arrive(
    bound: Any,
    now_s: float,
    draw: int,
    deadline_s: float,
    floor: float,
    priority: int,
    classes: int,
    rows: int,
    counted: bool,
    taken: int,
) -> int:
    server = steps.decide(bound, now_s, draw, deadline_s, floor, priority, classes, rows)
    if taken == AS_DECIDED:
        taken = server
    if taken >= 0:
        steps.dispatch(bound, taken, rows, counted)
    return int(server)


def _begin(bound: Any, server: int, taken: int, now_s: float) -> None:
    steps.begin(bound, server, taken, now_s)


def _finish(bound: Any, server: int, now_s: float, service_s: float, measured: int) -> None:
    steps.finish(bound, server, now_s, service_s, measured)


def _withdraw(bound: Any, server: int, position: int, now_s: float, counted: bool) -> None:
    steps.withdraw(bound, server, position, now_s, counted)


def _mark(bound: Any, server: int, healthy: bool, now_s: float) -> None:
    steps.mark(bound, server, healthy, now_s)


def _pull(bound: Any, server: int, now_s: float, draw: int) -> tuple[int, int]:
    return steps.draw_from_queue(bound, server, now_s, draw)


def _shift(bound: Any, low: int, high: int, by_s: float, least_s: float, now_s: float) -> None:
    steps.shift(bound, low, high, by_s, least_s, now_s)


ENTRIES = Entries(
    bind=entry(_bind),
    arrive=entry(_arrive),
    begin=entry(_begin),
    finish=entry(_finish),
    withdraw=entry(_withdraw),
    mark=entry(_mark),
    pull=entry(_pull),
    shift=entry(_shift),
)
"""For every policy: it is chosen by the type of what is bound."""
