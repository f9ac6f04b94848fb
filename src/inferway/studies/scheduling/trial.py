"""One point of a study: a scheduler on the paper's site for so many slots.

What `inferway.scheduling` decides for one site in a call is decided here for (E, d) observations of
`inferway.learning.site.SlottedSites` with the same routings and thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from inferway.deployment.policies import spec_of
from inferway.learning.control import Control
from inferway.learning.site import Decide, Floats, Ints, Observation, evaluate
from inferway.scheduling import Conditions, ForOneTask, Routing, controller_of
from inferway.scheduling.fixed import FixedRouting, even, heaviest, lightest, only
from inferway.scheduling.hand_rule import HandRule
from inferway.scheduling.infaas import Infaas
from inferway.scheduling.neural_policy import NeuralPolicy, fits, pairs_of
from inferway.scheduling.sa import StationaryApproximation
from inferway.studies import Point
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.train import digest, network
from inferway.twin import run
from inferway.twin.scenario import Scenario
from inferway.workload import phases_of

# Rows that decide request by request, by the twin's engines: what their scenarios differ in.
BY_EVENTS: Mapping[str, Mapping[str, Any]] = {
    "sq": {"policy": "sq", "options": {"ties": "heavy"}, "queue": "central"},
    "sq-uniform": {"policy": "sq", "options": {"ties": "uniform"}, "queue": "central"},
    "sq-tied": {"policy": "./rules.py:Tied", "queue": "central"},
    "hw-e": {"policy": "hw-e"},
    "deadline": {"policy": "deadline"},
    "believed": {"policy": "./rules.py:Believed"},
}
# Light and heavy servers where they are not two of each (Sec. 5.1.7).
_FLEETS = {"lw": (4, 0), "hw": (0, 4), "hw-e": (0, 4)}
_SHARES = ("goodput", "violations", "rejected", "late", "heavy")  # of a state's requests
_INFAAS_SLOT_S = 0.1
_SITES = 200
_WARMUP = 10_000  # requests of an event-driven run that are not counted
# CPU seconds of a slot.
_COSTS_S = {"infaas": 10e-6, "sa": 2e-6, "hand": 2e-6}


def evaluated(
    policy: str,
    workload: str,
    slots: int,
    seed: int,
    *,
    deadline_s: float = burst.DEADLINE_S,
    trained: str = "",
    file: str = "",
    events: bool = False,
    service_s: tuple[float, float] = burst.SERVICE_S,
    distribution: str = "deterministic",
    cv: float = 0.0,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run a row of Table 2 for slots of a second, over all sites; see `row_of`.

    The policy is one of `BY_EVENTS`, a name that `decider_of` knows, or a learned one's kind, with
    the shipped policy that was `trained` and its `file`'s digest, so that a row is known by what
    was evaluated. With `events`, what decides in slots runs on the twin's event-driven engine.
    """
    del file
    site = burst.scenario(
        workload,
        counts=_FLEETS.get(policy, (2, 2)),
        deadline_s=deadline_s,
        service_s=service_s,
        distribution=distribution,
        cv=cv,
        phis=(burst.LIGHT_PHI, burst.HEAVY_PHI) if policy.endswith("-b") else None,
    )
    chosen = options or {}
    if policy in BY_EVENTS:
        of_row = {"options": chosen, **BY_EVENTS[policy]}
        return _by_events(replace(site, folder=Path(__file__).parent, **of_row), slots, seed)
    if events:
        of_row = {"checkpoint": network(trained).path} if trained else {}
        return _by_events(site.scheduled(policy, **of_row, **chosen), slots, seed)
    slot_s = _INFAAS_SLOT_S if policy == "infaas" else 1.0
    control = Control(
        site,
        slot_s=slot_s,
        sees_phase=policy in ("sa", "split") or policy.startswith("rl-fo"),
        batches=policy.endswith("-b"),
    )
    if trained:
        known = network(trained)
        fits(known, site.fleet, policy=policy, deadline_s=deadline_s, slot_s=slot_s)
        decide = learned(known)
    else:
        decide = decider_of(policy, control, **chosen)
    run_of = {"slots": round(slots / slot_s), "sites": min(_SITES, slots)}
    tally = evaluate(decide, control, **run_of, seed=seed, warmup=round(10 / slot_s))
    heavy = [k for k, variant in enumerate(site.fleet.variants) if variant == "heavy"]
    lost = (tally.rejected, tally.late, tally.sent[:, heavy].sum(axis=1))
    shares = (tally.goodput, tally.violations, *(one / tally.arrived.clip(1) for one in lost))
    return row_of(
        {name: [float(of[phase]) for of in shares] for name, phase in burst.PHASES.items()}
    )


def _by_events(site: Scenario, slots: int, seed: int) -> dict[str, Any]:
    queries = round(slots * burst.mean_rate_per_s())
    phases = run(site, queries=queries, seed=seed, warmup=_WARMUP, workers=1).phases
    states = {name: phases[place] for name, place in burst.PHASES.items()}
    return row_of(
        {
            name: (one.goodput, one.violation_ratio, one.rejected + one.dropped, one.late, heavy)
            for name, one in states.items()
            for heavy in [one.dispatched.get("heavy", 0.0)]
        }
    )


def row_of(states: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Give the columns of Table 2, from the shares by state.

    ``goodput_bursty`` and so on by state; without a state's name, the mean of the two states, which
    is the paper's "overall". ``rate`` is the overall goodput in requests per second. ``heavy``
    counts what heavy instances accepted; ``scheduled`` also what was turned away, as the paper's
    heavyweight model scheduling ratio does: light servers have room for nearly all that comes, so
    that it is the heavy ones that turn away.
    """
    row: dict[str, Any] = {}
    for name, shares in zip(_SHARES, zip(*states.values(), strict=True), strict=True):
        row |= {f"{name}_{state}": share for state, share in zip(states, shares, strict=True)}
        row[name] = sum(shares) / len(shares)
    for state in states:
        row[f"scheduled_{state}"] = row[f"heavy_{state}"] + row[f"rejected_{state}"]
    return {**row, "rate": row["goodput"] * burst.mean_rate_per_s()}


def point(
    row: str,
    workload: str,
    slots: int,
    trial: int,
    *,
    policy: str = "",
    trained: str = "",
    **arguments: Any,
) -> Point:
    """One call of `evaluated`, with a shipped policy where one is named.

    The row is its policy's name if none is given. It is labeled by row, workload and trial.
    """
    name = policy or row
    given = {"policy": name, "workload": workload, "slots": slots, "seed": trial + 1, **arguments}
    if trained:
        given |= {"trained": trained, "file": digest(trained)}
    cost_s = 2 + 60e-6 * slots if "events" in arguments else 0.5 + _COSTS_S.get(name, 4e-6) * slots
    return Point({"row": row, "workload": workload, "trial": trial}, evaluated, given, cost_s)


def decider_of(policy: str, control: Control, **options: Any) -> Decide:
    """A scheduler that is no learned one, with a deployment file's options; ValueError for another.

    Those are ``lw``, ``hw``, ``infaas``, ``hand``, and for sites that see the phase ``sa``, and
    ``split``, which routes as that does with ``shares`` for the most accurate class, by phase.
    """
    site, fleet = control.scenario, control.scenario.fleet
    first = fleet.servers * control.about().layout.width

    def phase(observation: Observation) -> Ints:
        return np.asarray(observation[:, first : first + control.phases].argmax(axis=1))

    if policy == "split":
        light, heavy = only(fleet, lightest(fleet)), only(fleet, heaviest(fleet))
        shares = options["shares"]
        return _by([even(fleet, part * heavy + (1 - part) * light) for part in shares], phase)
    conditions = Conditions(
        fleet, site.deadline_s, phases=phases_of(site.arrivals, site.capacity_per_s)
    )
    made = controller_of(spec_of("scheduling", policy, **options), [conditions])
    match made.own if isinstance(made, ForOneTask) else None:
        case FixedRouting() as rule:
            return _by([rule.routing], lambda observation: np.zeros(len(observation), np.int64))
        case StationaryApproximation() as rule:
            return _by([rule.act(one) for one in range(control.phases)], phase)
        case HandRule() as hand:

            def high(observation: Observation) -> Ints:
                queue = queues(control, observation)
                waiting = np.maximum(queue[:, hand.heavy] - 1, 0).sum(axis=1)
                busy = queue[:, hand.light].any(axis=1) | (waiting >= hand.waiting)
                return np.asarray(busy, np.int64)

            return _by([hand.calm, hand.busy], high)
        case Infaas() as infaas:
            each_s = np.repeat(1 / fleet.rate, fleet.count)

            def fitting(observation: Observation) -> tuple[Floats, None]:
                fit: Any = queues(control, observation) * each_s < infaas.most_s
                fit = np.where(fit.any(axis=1, keepdims=True), fit, True)
                return fit / fit.sum(axis=1, keepdims=True), None

            return fitting
    raise ValueError(f"{policy} is not decided in slots: lw, hw, sa, infaas and hand are")


def _by(routings: Sequence[Routing], chosen: Callable[[Observation], Ints]) -> Decide:
    probabilities = np.array([routing.probabilities for routing in routings])
    return lambda observation: (probabilities[chosen(observation)], None)


def queues(control: Control, observation: Observation) -> Ints:
    """(E, n) requests at each server, from (E, d) observations."""
    servers, lengths = control.scenario.fleet.servers, 1 + (control.scenario.fleet.buffer or 0)
    width = 2 * lengths + 1
    blocks = observation[:, : servers * width].reshape(-1, servers, width)
    return np.asarray(blocks[:, :, :lengths].argmax(axis=2))


def learned(network: NeuralPolicy) -> Decide:
    """A trained policy as deployed, without noise."""
    servers = sum(network.about.counts)
    rules = [np.array(pairs_of(sizes), np.int64) for sizes in network.about.batch_sizes or ()]
    ends, flagged = np.cumsum([servers, *map(len, rules)]), network.about.layout.flagged

    def decide(observation: Observation) -> tuple[Floats, Ints | None]:
        routing, *parts = np.split(network.forward(observation), ends[:-1], axis=1)
        logits = routing.astype(np.float64)
        if flagged is not None:  # where all are away, whatever it says is rejected
            away = observation[:, flagged] == 0
            logits[away & ~away.all(axis=1, keepdims=True)] = -np.inf
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        chosen = [rule[part.argmax(axis=1)] for rule, part in zip(rules, parts, strict=True)]
        batches = np.stack(chosen, axis=1) if chosen else None
        return weights / weights.sum(axis=1, keepdims=True), batches

    return decide
