"""Schedulers for many sites at once: from a batch of observations to routing.

What `inferway.scheduling` decides for one site in a call, decided here for (E, d) observations of
`inferway.learning.site.SlottedSites` with the same routings and thresholds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.policies import spec_of
from inferway.learning.site import Control, Decide
from inferway.scheduling import Conditions, Routing, controller_of
from inferway.scheduling.fixed import FixedRouting, even, heaviest, lightest, only
from inferway.scheduling.hand_rule import HandRule
from inferway.scheduling.infaas import Infaas
from inferway.scheduling.neural_policy import NeuralPolicy, pairs_of
from inferway.scheduling.sa import StationaryApproximation
from inferway.workload import phases_of

Observation = NDArray[np.float32]  # (E, d) of sites


def decider_of(policy: str, control: Control, **options: Any) -> Decide:
    """A scheduler that is no learned one.

    Parameters
    ----------
    policy
        ``lw``, ``hw``, ``sa``, ``infaas`` or ``hand``; ``split`` routes as ``sa`` does with
        ``shares`` for the most accurate class, by phase, that are given.
    control
        The sites; for ``sa`` and ``split`` with the phase in their observations.
    options
        As a deployment file has them; its defaults for what is left out.

    Raises
    ------
    ValueError
        For another name.
    """
    asked = control.scenario
    fleet, first = asked.fleet, asked.fleet.servers * _width(control)

    def phase(observation: Observation) -> NDArray[np.int64]:
        return np.asarray(observation[:, first : first + control.phases].argmax(axis=1))

    if policy == "split":
        light, heavy = only(fleet, lightest(fleet)), only(fleet, heaviest(fleet))
        shares = options["shares"]
        return _by([even(fleet, part * heavy + (1 - part) * light) for part in shares], phase)
    phases = phases_of(asked.arrivals, asked.capacity_per_s)
    conditions = Conditions(fleet, asked.deadline_s, phases=phases)
    match controller_of(spec_of("scheduling", policy, **options), conditions):
        case FixedRouting() as rule:
            return _by([rule.routing], lambda observation: np.zeros(len(observation), np.int64))
        case StationaryApproximation() as rule:
            return _by([rule.act(one) for one in range(control.phases)], phase)
        case HandRule() as hand:
            return _by([hand.calm, hand.busy], lambda seen: _high(hand, queues(control, seen)))
        case Infaas() as infaas:
            each_s = np.repeat(1 / fleet.rate, fleet.count)

            def fitting(observation: Observation) -> tuple[NDArray[np.float64], None]:
                fit: Any = queues(control, observation) * each_s < infaas.most_s
                fit = np.where(fit.any(axis=1, keepdims=True), fit, True)
                return fit / fit.sum(axis=1, keepdims=True), None

            return fitting
    raise ValueError(f"{policy} is not decided in slots: lw, hw, sa, infaas and hand are")


def queues(control: Control, observation: Observation) -> NDArray[np.int64]:
    """(E, n) requests at each server, from (E, d) observations."""
    fleet, width = control.scenario.fleet, _width(control)
    blocks = observation[:, : fleet.servers * width].reshape(-1, fleet.servers, width)
    return np.asarray(blocks[:, :, : width // 2].argmax(axis=2))


def learned(network: NeuralPolicy) -> Decide:
    """A trained policy as deployed, without noise."""
    about = network.about
    servers = sum(about.counts)
    rules = [np.array(pairs_of(sizes), np.int64) for sizes in about.batch_sizes or ()]
    ends = np.cumsum([servers, *map(len, rules)])

    def decide(observation: Observation) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
        outputs = network.forward(observation)
        logits = outputs[:, :servers].astype(np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        routing = weights / weights.sum(axis=1, keepdims=True)
        chosen = [
            rule[outputs[:, start:end].argmax(axis=1)]
            for rule, start, end in zip(rules, ends[:-1], ends[1:], strict=True)
        ]
        return routing, np.stack(chosen, axis=1) if chosen else None

    return decide


def _width(control: Control) -> int:
    """Numbers of an observation for each server."""
    buffer = control.scenario.fleet.buffer
    assert buffer is not None
    return 2 * buffer + 3


def _by(routings: Sequence[Routing], chosen: Callable[[Observation], Any]) -> Decide:
    """Each site has the routing whose number is chosen for it."""
    probabilities = np.array([routing.probabilities for routing in routings])
    return lambda observation: (probabilities[chosen(observation)], None)


def _high(rule: HandRule, queue: NDArray[np.int64]) -> NDArray[np.int64]:
    """1 where load is high."""
    waiting = np.maximum(queue[:, rule.heavy] - 1, 0).sum(axis=1)
    return np.asarray(queue[:, rule.light].any(axis=1) | (waiting >= rule.waiting), np.int64)
