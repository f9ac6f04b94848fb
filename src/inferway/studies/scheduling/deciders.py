"""Schedulers for many sites at once: from a batch of observations to routing.

What `inferway.scheduling` decides for one site in a call, decided here for (E, d) observations of
`inferway.learning.site.SlottedSites`; a study checks that both give the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.policies import spec_of
from inferway.learning.evaluation import Decide
from inferway.learning.site import Control
from inferway.scheduling.fixed import even, heaviest, lightest, only
from inferway.scheduling.neural_policy import NeuralPolicy, pairs_of
from inferway.scheduling.sa import StationaryApproximation

Floats = NDArray[np.float64]


def decider_of(
    policy: str, control: Control, rates_per_s: tuple[float, ...], **options: Any
) -> Decide:
    """A scheduler that is no learned one.

    Parameters
    ----------
    policy
        ``lw``, ``hw``, ``sa``, ``infaas`` or ``hand``; ``split`` routes as ``sa`` does with
        ``shares`` for the most accurate class, by phase, that are given.
    control
        The sites; for ``sa`` and ``split`` with the phase in their observations.
    rates_per_s
        By phase of the workload, for ``sa``.
    options
        As a deployment file has them; its defaults for what is left out.

    Raises
    ------
    ValueError
        For another name.
    """
    if policy == "split":
        return _split(control, options["shares"])
    fleet, spec = control.scenario.fleet, spec_of("scheduling", policy, **options)
    deadline_s = control.scenario.deadline_s
    assert deadline_s is not None
    match policy:
        case "lw" | "hw":
            k = (lightest if policy == "lw" else heaviest)(fleet)
            return _fixed(even(fleet, only(fleet, k)).probabilities)
        case "hand":
            return _hand(control, float(spec.options["share"]), int(spec.options["waiting"]))
        case "infaas":
            return _infaas(control, float(spec.options["overloaded"]) * deadline_s)
        case "sa":
            found = StationaryApproximation(
                fleet,
                rates_per_s,
                deadline_s=deadline_s,
                slot_s=control.slot_s,
                violations=spec.options["violations"],
                on_rejection=False,
            )
            routings = np.array([found.act(phase).probabilities for phase in range(control.phases)])
            return _by_phase(control, routings)
    raise ValueError(f"{policy} is not decided in slots: lw, hw, sa, infaas and hand are")


def queues(control: Control, observation: NDArray[np.float32]) -> NDArray[np.int64]:
    """(E, n) requests at each server, from (E, d) observations."""
    fleet = control.scenario.fleet
    assert fleet.buffer is not None
    width = 2 * fleet.buffer + 3
    blocks = observation[:, : fleet.servers * width].reshape(-1, fleet.servers, width)
    return np.asarray(blocks[:, :, : fleet.buffer + 1].argmax(axis=2))


def learned(network: NeuralPolicy) -> Decide:
    """A trained policy as deployed, without noise."""
    about = network.about
    servers = sum(about.counts)
    rules = [np.array(pairs_of(sizes), np.int64) for sizes in about.batch_sizes or ()]
    ends = np.cumsum([servers, *map(len, rules)])

    def decide(observation: NDArray[np.float32]) -> tuple[Floats, NDArray[np.int64] | None]:
        outputs = network.forward(observation)
        logits = outputs[:, :servers].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        routing = weights / weights.sum(axis=1, keepdims=True)
        if not rules:
            return routing, None
        chosen = [
            rule[outputs[:, start:end].argmax(axis=1)]
            for rule, start, end in zip(rules, ends[:-1], ends[1:], strict=True)
        ]
        return routing, np.stack(chosen, axis=1)

    return decide


def _fixed(routing: Floats) -> Decide:
    def decide(observation: NDArray[np.float32]) -> tuple[Floats, None]:
        return np.tile(routing, (len(observation), 1)), None

    return decide


def _hand(control: Control, share: float, least: int) -> Decide:
    fleet = control.scenario.fleet
    light, heavy = only(fleet, lightest(fleet)), only(fleet, heaviest(fleet))
    calm = even(fleet, heavy).probabilities
    busy = even(fleet, share * heavy + (1 - share) * light).probabilities
    of = np.repeat(np.arange(len(fleet.rate)), fleet.count)

    def decide(observation: NDArray[np.float32]) -> tuple[Floats, None]:
        queue = queues(control, observation)
        waiting = np.maximum(queue[:, of == heaviest(fleet)] - 1, 0).sum(axis=1)
        high = queue[:, of == lightest(fleet)].any(axis=1) | (waiting >= least)
        return np.where(high[:, None], busy, calm), None

    return decide


def _infaas(control: Control, most_s: float) -> Decide:
    fleet = control.scenario.fleet
    each_s = np.repeat(1 / fleet.rate, fleet.count)

    def decide(observation: NDArray[np.float32]) -> tuple[Floats, None]:
        fit: Any = queues(control, observation) * each_s < most_s
        fit = np.where(fit.any(axis=1, keepdims=True), fit, True)
        return fit / fit.sum(axis=1, keepdims=True), None

    return decide


def _split(control: Control, shares: Sequence[float]) -> Decide:
    fleet = control.scenario.fleet
    light, heavy = only(fleet, lightest(fleet)), only(fleet, heaviest(fleet))
    routings = [even(fleet, share * heavy + (1 - share) * light) for share in shares]
    return _by_phase(control, np.array([one.probabilities for one in routings]))


def _by_phase(control: Control, routings: Floats) -> Decide:
    fleet = control.scenario.fleet
    assert fleet.buffer is not None
    first = fleet.servers * (2 * fleet.buffer + 3)

    def decide(observation: NDArray[np.float32]) -> tuple[Floats, None]:
        phase = observation[:, first : first + control.phases].argmax(axis=1)
        return routings[phase], None

    return decide
