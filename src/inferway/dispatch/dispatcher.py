"""The dispatcher: one site and one policy bound together, one compiled call per event.

The world that owns the site calls it: `arrive`, `finish`, `withdraw`, `mark`. Both worlds share the
steps below; a world that runs in compiled code calls them directly on a `Binding`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.experimental import structref

from inferway.dispatch.contract import choose, learn, pull
from inferway.dispatch.table import build_policy, policy_class
from inferway.site.compiled import entry, fingerprint, jit
from inferway.site.fleet import Fleet
from inferway.site.selection import predicted_wait
from inferway.site.transitions import abandon, admit, narrow, release, set_health
from inferway.site.view import (
    ALL_CLASSES,
    COMPLETED,
    DISPATCHED,
    REJECT,
    WITHDRAWN,
    Event,
    Flags,
    Floats,
    Request,
    Site,
    empty_site,
)

UNBOUNDED_PLACES = 1024
"""Places at a server of a fleet without a buffer limit: memory is finite, and so is patience."""

PREDICTED_WAIT, PREDICTED_SERVICE = 0, 1


class Binding(NamedTuple):
    """What one call needs, gathered once."""

    policy: Any
    site: Site
    allowed: Flags
    """(n,) scratch for narrowed requests."""
    decision: Floats
    """(2,) of the last decision: predicted wait and predicted service time, s."""


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
            binding.policy, _SiteRef(*binding.site), binding.allowed, binding.decision
        )


@jit
def decide(
    bound: Any,
    now_s: float,
    draw: int,
    deadline_s: float,
    floor: float,
    priority: int,
    classes: int,
    rows: int,
) -> int:
    """What the policy says of a request: server, REJECT or HOLD. Moves the clock, nothing else."""
    site, allowed = bound.site, bound.allowed
    site.clock_s[0] = now_s
    mask = classes
    if floor > 0.0:
        for k in range(site.rate.size):
            if site.accuracy[k] < floor:
                mask &= ~(1 << k)
    narrowed = mask != ALL_CLASSES or deadline_s < np.inf
    if narrowed and not narrow(site, allowed, mask, deadline_s, rows):
        return REJECT
    view = allowed if narrowed else site.open
    request = Request(now_s, deadline_s, floor, priority, rows, mask, view, narrowed)
    server = choose(bound.policy, site, request, draw)
    # A full server takes nothing, whatever the policy says.
    return REJECT if server >= 0 and not site.open[server] else server


@jit
def dispatch(bound: Any, server: int, rows: int, counted: bool) -> None:
    """Send a request to a server: admit it, move the balance, let the policy learn."""
    site = bound.site
    k = site.server_class[server]
    wait_s = predicted_wait(site, server)
    service_s = rows / site.rate[k]
    bound.decision[PREDICTED_WAIT] = wait_s
    bound.decision[PREDICTED_SERVICE] = service_s
    admit(site, server, rows)
    if counted:
        site.balance[0] += rows * (site.accuracy[k] - site.target[0])
    learn(bound.policy, site, Event(DISPATCHED, server, rows, counted, wait_s, service_s))


@jit
def finish(bound: Any, server: int, now_s: float, service_s: float) -> None:
    """The request in service at the server is answered; the next in its queue starts."""
    site = bound.site
    site.clock_s[0] = now_s
    place = site.head[server]
    rows = site.rows[server, place]
    wait_s = max(0.0, site.started_s[server] - site.arrived_s[server, place])
    release(site, server)
    learn(bound.policy, site, Event(COMPLETED, server, rows, True, wait_s, service_s))


@jit
def withdraw(bound: Any, server: int, position: int, now_s: float, counted: bool) -> None:
    """A request leaves without an answer: the one in service (position 0) or a queued one."""
    site = bound.site
    site.clock_s[0] = now_s
    k = site.server_class[server]
    rows = site.rows[server, (site.head[server] + position) % site.arrived_s.shape[1]]
    if position == 0:
        release(site, server)
    else:
        abandon(site, server, position)
    if counted:
        site.balance[0] -= rows * (site.accuracy[k] - site.target[0])
    learn(bound.policy, site, Event(WITHDRAWN, server, rows, counted, 0.0, 0.0))


@jit
def draw_from_queue(bound: Any, server: int, now_s: float, draw: int) -> tuple[int, int]:
    """What the policy's `pull` says for a server that has fallen free: (drop, take)."""
    bound.site.clock_s[0] = now_s
    return pull(bound.policy, bound.site, server, draw)


class Dispatcher:
    """A site and its policy, for a world that works request by request.

    Parameters
    ----------
    fleet
        Server classes.
    policy
        Its name: one of `inferway.dispatch.POLICIES`, or ``./file.py:Class``.
    target
        Accuracy target in 0..1, or None.
    rate_per_s
        Expected arrival rate, 1/s, or None where it is not known.
    folder
        Where a relative policy file starts.
    **options
        The policy's own.

    Raises
    ------
    ValueError
        Where the policy is unknown, lacks what it needs, or does not compile.

    Notes
    -----
    Not thread-safe: one thread owns a dispatcher.
    """

    def __init__(
        self,
        fleet: Fleet,
        policy: str,
        *,
        target: float | None,
        rate_per_s: float | None = None,
        folder: Path | None = None,
        **options: Any,
    ) -> None:
        self.fleet = fleet
        self.policy_name = policy
        self.target = target
        self.rate_per_s = rate_per_s
        self.folder = folder
        self.options = options
        _, self.sources = policy_class(policy, folder)
        self.policy: Any = build_policy(
            policy, fleet, target=target, rate_per_s=rate_per_s, folder=folder, **options
        )
        self.site = empty_site(fleet, target, fleet.buffer or UNBOUNDED_PLACES)
        binding = Binding(
            self.policy, self.site, np.zeros(fleet.servers, np.bool_), np.full(2, np.nan)
        )
        self._decision = binding.decision
        calls = _calls(self.sources, fingerprint(self.sources))
        try:
            self._bound = calls["bind"](binding)
            self._compile(calls)
        except numba.core.errors.NumbaError as error:
            raise ValueError(f"policy {policy} does not compile: {error}") from error
        self._arrive, self._finish = calls["arrive"], calls["finish"]
        self._withdraw, self._mark, self._pull = calls["withdraw"], calls["mark"], calls["pull"]
        self._follow = calls["follow"]

    def _compile(self, calls: dict[str, Any]) -> None:
        """Compile every call now, on a copy of the site: a first request must not pay for it."""
        spare = calls["bind"](_copy(self.policy, self.fleet, self.target))
        server = calls["arrive"](spare, 0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, True)
        if server >= 0:
            calls["withdraw"](spare, server, 0, 0.0, True)
            server = calls["arrive"](spare, 0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, True)
        if server >= 0:
            calls["finish"](spare, server, 0.0, 0.0)
        calls["mark"](spare, 0, False, 0.0)
        calls["pull"](spare, 0, 0.0, 1)

    def arrive(
        self,
        now_s: float,
        draw: int,
        deadline_s: float = np.inf,
        floor: float = 0.0,
        priority: int = 0,
        classes: int = ALL_CLASSES,
        rows: int = 1,
        counted: bool = True,
    ) -> int:
        """Decide for one request, admit it, move the balance, let the policy learn.

        Parameters
        ----------
        now_s
            The time, s, on a clock that never goes back.
        draw
            The request's random word, a signed 64-bit integer.
        deadline_s
            Absolute, on the same clock; servers predicted to be late are not considered.
        floor
            Least accuracy that the request accepts.
        priority
            1 is the highest, 0 says nothing.
        classes
            Bit mask of classes that may answer.
        rows
            Answers that it asks for.
        counted
            False for a request pinned to a variant: it does not move the balance.

        Returns
        -------
        int
            A server, REJECT or HOLD.
        """
        return self._arrive(
            self._bound, now_s, draw, deadline_s, floor, priority, classes, rows, counted
        )

    def follow(
        self,
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
        """As `arrive`, but what happens is `taken`: how a decision is compared with a recorded one.

        Returns
        -------
        int
            What this policy would have decided.
        """
        return self._follow(
            self._bound, now_s, draw, deadline_s, floor, priority, classes, rows, counted, taken
        )

    def finish(self, server: int, now_s: float, service_s: float) -> None:
        """The request in service is answered after `service_s`; the next in the queue starts."""
        self._finish(self._bound, server, now_s, service_s)

    def withdraw(self, server: int, position: int, now_s: float, counted: bool = True) -> None:
        """A request leaves without an answer; position 0 is in service, 1 the next in the queue."""
        self._withdraw(self._bound, server, position, now_s, counted)

    def mark(self, server: int, healthy: bool, now_s: float) -> None:
        """The server takes requests from now on, or does not."""
        self._mark(self._bound, server, healthy, now_s)

    def pull(self, server: int, now_s: float, draw: int) -> tuple[int, int]:
        """How many requests a free server drops and takes: (drop, take)."""
        return self._pull(self._bound, server, now_s, draw)

    def retune(self, rate_per_s: float) -> None:
        """Tell the policy another arrival rate, if it wants one; call it off the request path."""
        if hasattr(self.policy, "retune"):
            self.policy.retune(self.fleet, target=self.target, rate_per_s=rate_per_s)

    def variant_of(self, server: int) -> str:
        """The variant that a server runs."""
        return self.fleet.variants[int(self.site.server_class[server])]

    @property
    def predicted_wait_s(self) -> float:
        """Predicted wait of the last request dispatched, s."""
        return float(self._decision[PREDICTED_WAIT])

    @property
    def predicted_service_s(self) -> float:
        """Predicted service time of the last request dispatched, s."""
        return float(self._decision[PREDICTED_SERVICE])

    @property
    def balance(self) -> float:
        """Accuracy balance."""
        return float(self.site.balance[0])


def _copy(policy: Any, fleet: Fleet, target: float | None) -> Binding:
    """A binding of the same types with memory of its own."""
    own = type(policy)(
        *(field.copy() if isinstance(field, np.ndarray) else field for field in policy)
    )
    site = empty_site(fleet, target, fleet.buffer or UNBOUNDED_PLACES)
    return Binding(own, site, np.zeros(fleet.servers, np.bool_), np.full(2, np.nan))


@lru_cache(maxsize=64)
def _calls(sources: tuple[Path, ...], _fingerprint: str) -> dict[str, Any]:
    """The compiled entries; the package's policies share one set, a user's file has its own."""
    entries = (_bind, _arrive, _follow, _finish, _withdraw, _mark, _pull)
    return {call.__name__[1:]: entry(call, sources=sources) for call in entries}


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
) -> int:
    server = decide(bound, now_s, draw, deadline_s, floor, priority, classes, rows)
    if server >= 0:
        dispatch(bound, server, rows, counted)
    return int(server)


def _follow(
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
    server = decide(bound, now_s, draw, deadline_s, floor, priority, classes, rows)
    if taken >= 0:
        dispatch(bound, taken, rows, counted)
    return int(server)


def _finish(bound: Any, server: int, now_s: float, service_s: float) -> None:
    finish(bound, server, now_s, service_s)


def _withdraw(bound: Any, server: int, position: int, now_s: float, counted: bool) -> None:
    withdraw(bound, server, position, now_s, counted)


def _mark(bound: Any, server: int, healthy: bool, now_s: float) -> None:
    bound.site.clock_s[0] = now_s
    set_health(bound.site, server, healthy)


def _pull(bound: Any, server: int, now_s: float, draw: int) -> tuple[int, int]:
    return draw_from_queue(bound, server, now_s, draw)
