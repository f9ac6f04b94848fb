"""The steps as Python calls them: compiled, cached on disk, with the address of what is bound.

A call with thirty arrays costs 8 us to unpack; a call with one address that leads to them, 0.2 us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba.core.types import boolean, float64, int64

from inferway.dispatch import steps
from inferway.dispatch.steps import Binding, Silent
from inferway.site.compiled import call_of, entry, fingerprint
from inferway.site.pinned import Pinned, pin

AS_DECIDED = -3
"""For `arrive`: what happens is what the policy decides."""


def code_of(policy: Any) -> str:
    """Hash of the code that decides with this policy, 16 hexadecimal digits."""
    return fingerprint(__name__, type(policy))


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


_NUMBERS: dict[Callable[..., Any], tuple[Any, ...]] = {
    _arrive: (float64, int64, float64, float64, int64, int64, int64, boolean, int64),
    _begin: (int64, int64, float64),
    _finish: (int64, float64, float64, int64),
    _withdraw: (int64, int64, float64, boolean),
    _mark: (int64, boolean, float64),
    _pull: (int64, float64, int64),
    _shift: (int64, int64, float64, float64, float64),
}
"""Types of what the steps take besides what is bound."""
_ENTRIES: dict[Any, Any] = {step: entry(step) for step in _NUMBERS}


class Handles(NamedTuple):
    """A site with its policy as the steps take it: of each, as little as they need to know.

    A policy that does not learn or pull has no part in what is compiled for these steps, and so is
    the same for all such.
    """

    whole: Pinned
    silent: Pinned
    """Without the policy."""
    learning: Pinned
    """For `learn`,"""
    pulling: Pinned
    """and for `pull`."""


class Calls(NamedTuple):
    """Compiled steps; the first argument is the handle of what is named there."""

    arrive: Callable[..., int]
    """Of `Handles.whole`."""
    begin: RareStep
    """Of `Handles.silent`, as `mark` and `shift`."""
    finish: Callable[..., None]
    """Of `Handles.learning`, as `withdraw`."""
    withdraw: Callable[..., None]
    mark: Callable[..., None]
    pull: RareStep
    """Of `Handles.pulling`."""
    shift: RareStep


def bind(binding: Binding) -> Handles:
    """Lay out a site and its policy for the steps."""
    whole, silent = pin(binding), pin(binding._replace(policy=Silent()))
    learns, pulls = (hasattr(binding.policy, name) for name in ("learn", "pull"))
    return Handles(whole, silent, whole if learns else silent, whole if pulls else silent)


def calls_for(handles: Handles) -> Calls:
    """The steps for such a site and policy, from the cache or compiled; some only when called."""
    return Calls(
        arrive=_call(_arrive, handles.whole),
        begin=RareStep(_begin, handles.silent),
        finish=_call(_finish, handles.learning),
        withdraw=_call(_withdraw, handles.learning),
        mark=_call(_mark, handles.silent),
        pull=RareStep(_pull, handles.pulling),
        shift=RareStep(_shift, handles.silent),
    )


class RareStep:
    """A step that few worlds take, compiled when it is `compiled` or first called."""

    def __init__(self, step: Callable[..., Any], pinned: Pinned) -> None:
        self._step, self._pinned = step, pinned
        self._compiled: Callable[..., Any] | None = None

    def compiled(self) -> Callable[..., Any]:
        """The compiled step; looked for once, since that takes longer than most steps."""
        if self._compiled is None:
            self._compiled = _call(self._step, self._pinned)
        return self._compiled

    def __call__(self, *arguments: Any) -> Any:
        """Take the step."""
        return self.compiled()(*arguments)


def _call(step: Any, pinned: Pinned) -> Callable[..., Any]:
    return call_of(_ENTRIES[step], pinned.kind, *_NUMBERS[step])
