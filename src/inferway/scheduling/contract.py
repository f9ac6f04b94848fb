"""The contract of schedulers: once a slot, look at the site and say how requests are routed.

A controller never sleeps, reads a clock or draws random numbers. A world lets it decide at the
start of each slot of `slot_s` seconds, the first at time 0, and where `on_rejection` is set also
after a request was rejected ([Tan24], Sec. 6.2); `inferway.scheduling.steer` writes what it says
into the memory of the dispatch policy. Most look at one site, with `observe`, and then `act`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import Field

from inferway.deployment import Batch, PolicySpec
from inferway.deployment.policies import SCHEDULING
from inferway.deployment.units import PositiveSeconds
from inferway.dispatch.alias import set_routing
from inferway.policies.registry import policy_class
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Ints, Site
from inferway.workload import Span


class Routing(NamedTuple):
    """Routing until the next slot, for n servers of K classes."""

    probabilities: Floats
    """(n,) of each server; they sum to 1."""
    smallest: Ints
    """(K,) waiting requests below which a free server waits for more."""
    largest: Ints
    """(K,) most requests in a batch."""


class Signal(NamedTuple):
    """Knowledge of the workload's state."""

    phase: int
    """The phase that it is in; -1 where that is not known."""
    since_s: float
    """Time since it came there, s; nan where that is not known."""


UNKNOWN = Signal(-1, math.nan)
"""All that a live server knows."""


@dataclass(frozen=True)
class Conditions:
    """Conditions that a scheduler is made for."""

    fleet: Fleet
    deadline_s: float | None = None
    phases: Sequence[Span] = ()
    """Of the workload; none where its state cannot be seen, as live."""
    periodic: bool = False
    """Whether these follow each other at set times."""
    batches: Sequence[Batch | None] = ()
    """By class; empty where no class serves batches."""
    policy: str = ""
    """The name that the file gives the scheduler."""
    changing: bool = False
    """Whether placement gives and takes servers, so that the fleet is one of many."""

    def deadline(self) -> float:
        """Return the deadline, s; ValueError where there is none."""
        if self.deadline_s is None:
            raise ValueError(f"{self.policy} needs a deadline to keep: give the task one")
        return self.deadline_s


Slot = Annotated[PositiveSeconds, Field(description="Time between two decisions.")]
Event = Annotated[
    Literal["rejection"] | None, Field(description="Decide also at once after such an event.")
]


class Decider(Protocol):
    """Decider of how requests are routed, slot by slot: what all of them say of themselves."""

    @property
    def slot_s(self) -> float:
        """Time between two decisions, s; inf where the first one holds for ever."""

    @property
    def sees_phase(self) -> bool:
        """Tell whether it needs the `Signal`, which only the twin can give."""

    @property
    def on_rejection(self) -> bool:
        """Tell whether it decides also after a rejection."""


class SiteController(Decider, Protocol):
    """Decider for one task at one site.

    Its class has ``build(conditions, **options)``, a classmethod, which raises ValueError where the
    scheduler lacks what it needs. Options that are annotated with `Annotated` are the policy's keys
    in a deployment file.
    """

    def observe(self, site: Site, signal: Signal) -> Any:
        """Observe what it goes by; the site is only read, and may change once this has returned."""

    def act(self, observation: Any) -> Routing | None:
        """The routing from now on; None leaves each request to the policy `deadline`."""


class Controller(Decider, Protocol):
    """Decider for a list of tasks, of one as a rule: what worlds run.

    Its class has ``build`` with the conditions of each task; sites, signals and routings are in
    their order.
    """

    def decide(self, sites: Sequence[Site], signals: Sequence[Signal]) -> Sequence[Routing | None]:
        """Look at the sites, which are only read, and say the routing of each task from now on."""


class ForOneTask:
    """Controller of one task that decides as a `SiteController` does."""

    def __init__(self, own: SiteController) -> None:
        self.own = own

    @property
    def slot_s(self) -> float:
        """As its own."""
        return self.own.slot_s

    @property
    def sees_phase(self) -> bool:
        """As its own."""
        return self.own.sees_phase

    @property
    def on_rejection(self) -> bool:
        """As its own."""
        return self.own.on_rejection

    def decide(self, sites: Sequence[Site], signals: Sequence[Signal]) -> Sequence[Routing | None]:
        """As `Controller` has it, for its one task."""
        (site,), (signal,) = sites, signals
        return [self.own.act(self.own.observe(site, signal))]


SCHEDULERS = tuple(SCHEDULING)
"""Every name. `hw-e` and `sq` are dispatch policies that need no controller."""


def controller_of(
    spec: PolicySpec, conditions: Sequence[Conditions], folder: Path | None = None
) -> Controller | None:
    """Make the controller that a scheduling policy names; None for those that are all dispatch.

    Parameters
    ----------
    spec
        Name and options, as `inferway.deployment` reads them; options left out have the defaults of
        the scheduler's `build`.
    conditions
        Of each task that it schedules, in its order: one, but for a policy of several tasks.
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
    named = [replace(one, policy=spec.policy) for one in conditions]
    try:
        if row is not None and row.together:
            made: Controller = scheduler.build(named, **spec.options)
            return made
        (own,) = named
        return ForOneTask(scheduler.build(own, **spec.options))
    except TypeError as error:
        raise ValueError(f"scheduling policy {spec.policy}: {error}") from error


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
