"""Which name in a deployment file means which scheduler, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferway.deployment import Batch, PolicySpec
from inferway.dispatch.alias import set_routing
from inferway.scheduling.contract import Controller, Routing
from inferway.scheduling.network import Network
from inferway.site.fleet import Fleet
from inferway.workload import Span

SCHEDULERS = (
    *("rl-po", "rl-fo", "rl-po-b", "rl-fo-b"),
    *("lw", "hw", "hw-e", "sq", "sa", "infaas", "hand"),
)
"""Every name. `hw-e` and `sq` are dispatch policies that need no controller."""


@dataclass(frozen=True)
class Conditions:
    """What a scheduler is made for."""

    fleet: Fleet
    deadline_s: float | None = None
    phases: Sequence[Span] = ()
    """Of the workload; none where its state cannot be seen, as live."""
    periodic: bool = False
    """Whether these follow each other at set times."""
    batches: Sequence[Batch | None] = ()
    """By class; empty where no class serves batches."""


def controller_of(spec: PolicySpec, conditions: Conditions) -> Controller | None:
    """The controller that a scheduling policy names; None for those that are all dispatch.

    Parameters
    ----------
    spec
        Name and options, as `inferway.deployment` reads them; options left out have their defaults
        there.

    Raises
    ------
    ValueError
        For an unknown name, and where the scheduler lacks what it needs.
    """
    name, fleet = spec.policy, conditions.fleet
    options = {one: value for one, value in spec.options.items() if one not in ("event", "slot")}
    slot_s: Any = spec.options.get("slot")
    rejection = spec.options.get("event") == "rejection"
    if name in ("hw-e", "sq"):
        return None
    if name in ("lw", "hw"):
        from inferway.scheduling.fixed import Fixed, heaviest, lightest, only

        return Fixed(fleet, only(fleet, (lightest if name == "lw" else heaviest)(fleet)))
    if name == "hand":
        from inferway.scheduling.hand_rule import HandRule

        return HandRule(fleet, slot_s=slot_s, **options, on_rejection=rejection)
    if name == "infaas":
        from inferway.scheduling.infaas import Infaas

        deadline_s = _deadline(name, conditions)
        return Infaas(
            fleet, deadline_s=deadline_s, slot_s=slot_s, **options, on_rejection=rejection
        )
    if name == "sa":
        return _stationary(conditions, slot_s=slot_s, on_rejection=rejection, **options)
    if name.startswith("rl-") and name in SCHEDULERS:
        return _learned(name, conditions, slot_s=slot_s, on_rejection=rejection, **options)
    raise ValueError(f"unknown scheduling policy {name!r}: expected one of {', '.join(SCHEDULERS)}")


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


def _stationary(
    conditions: Conditions, *, slot_s: float, violations: float, on_rejection: bool
) -> Controller:
    from inferway.scheduling.sa import StationaryApproximation

    if not conditions.phases:
        raise ValueError("sa goes by the workload's state, which a live server cannot see")
    rates = [span.rate_per_s for span in conditions.phases]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        raise ValueError("sa needs the arrival rate, and a trace does not say it")
    return StationaryApproximation(
        conditions.fleet,
        known,
        deadline_s=_deadline("sa", conditions),
        slot_s=slot_s,
        violations=violations,
        on_rejection=on_rejection,
    )


def _deadline(name: str, conditions: Conditions) -> float:
    if conditions.deadline_s is None:
        raise ValueError(f"{name} needs a deadline to keep: give the task one")
    return conditions.deadline_s


def _learned(
    name: str, conditions: Conditions, *, slot_s: float, checkpoint: Path, on_rejection: bool
) -> Controller:
    from inferway.scheduling.store import Store, networks_of

    fleet = conditions.fleet
    networks = networks_of(
        checkpoint, fleet, policy=name, deadline_s=conditions.deadline_s, slot_s=slot_s
    )
    for network in networks:
        _check_workload(network, conditions)
        _check_batches(network, conditions)
    return Store(networks, fleet, slot_s, on_rejection)


def _check_workload(network: Network, conditions: Conditions) -> None:
    about, phases = network.about, conditions.phases
    if not about.phases:
        return
    if not phases:
        raise ValueError(
            f"{about.policy} goes by the workload's state, which a live server cannot see"
        )
    if about.phases != len(phases) or (about.longest_phase_s is not None) != conditions.periodic:
        kind = "periodic" if about.longest_phase_s is not None else "random"
        raise ValueError(
            f"{network.path} was trained for a workload of {about.phases} {kind} phases; this one "
            f"has {len(phases)} {'periodic' if conditions.periodic else 'random'} ones"
        )


def _check_batches(network: Network, conditions: Conditions) -> None:
    about = network.about
    if about.batch_sizes is None:
        return
    offered = dict(zip(conditions.fleet.variants, conditions.batches, strict=False))
    for variant, sizes in zip(about.variants, about.batch_sizes, strict=True):
        batch = offered.get(variant)
        here = (1,) if batch is None else batch.sizes
        if {1, *here} != {1, *sizes}:
            raise ValueError(
                f"{network.path} was trained for batches of {', '.join(map(str, sizes))} at "
                f"{variant}, which serves batches of {', '.join(map(str, here))}"
            )
