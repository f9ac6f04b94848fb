"""A while in which all services of the twin take ten times as long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from inferway.deployment import ServiceTime
from inferway.deployment.tasks import Batch
from inferway.deployment.workloads import PoissonArrivals
from inferway.site import Fleet
from inferway.site.chances import PAUSE
from inferway.site.view import Floats
from inferway.twin.engine import GeneralEngine, engine_of
from inferway.twin.scenario import Scenario
from inferway.twin.service_walk import ServiceWalk

SMALL, LARGE = 0, 1
RATE_PER_S, SLOW_S = 20.0, 10
MEAN_S = (0.002, 0.0113)


@dataclass(frozen=True)
class Passing(ServiceWalk):
    """Ten times as long for the first seconds, then as is said."""

    low: float = 1.0
    high: float = 10.0

    def begin(self, random: np.random.Generator, count: int = 1) -> Floats:
        """Slow."""
        return np.full(count, self.high)

    def after(self, factor: Floats, time_s: float, random: np.random.Generator) -> Floats:
        """By a thousandth less each second, which counts them, until it is over."""
        over = factor < self.high - 1e-3 * (SLOW_S - 1.5)
        return np.where(over, self.low, factor - 1e-3)


def engine_with(walk: ServiceWalk, policy: str, **options: Any) -> GeneralEngine:
    rates = 1.0 / np.array(MEAN_S)
    fleet = Fleet(("small", "large"), rates, np.array([0.8, 0.95]), np.array([1, 1]))
    options.setdefault("arrivals", PoissonArrivals(process="poisson", rate=RATE_PER_S))
    scenario = Scenario(
        fleet=fleet,
        service=tuple(ServiceTime("deterministic", mean_s) for mean_s in MEAN_S),
        policy=policy,
        target=0.95 if policy == "tad" else None,
        deadline_s=0.060,
        walk=walk,
        **options,
    )
    engine = engine_of(scenario, seed=5)
    assert isinstance(engine, GeneralEngine)
    return engine


def sent(engine: GeneralEngine, from_s: int, to_s: int) -> float:
    """Share of the requests of some seconds that were sent to the large one."""
    before = engine.tally.sent[0].copy(), engine.tally.arrived[0]
    for second in range(from_s, to_s):
        engine.advance(10_000, second + 1.0)
        engine.slow_down()
    arrived = engine.tally.arrived[0] - before[1]
    return float((engine.tally.sent[0] - before[0])[LARGE] / arrived)


@pytest.mark.parametrize("policy", ["deadline", "tad"])
def test_what_was_slow_for_a_while_is_asked_as_before(policy: str) -> None:
    engine = engine_with(Passing(), policy)
    assert engine.slowness[0] == 10.0
    assert sent(engine, 0, SLOW_S) < 0.1
    assert engine.slowness[0] == 1.0
    # The next chance comes as late as it was slow for, at most, and two pauses.
    back = 2 * SLOW_S + int(2 * PAUSE / RATE_PER_S) + 1
    sent(engine, SLOW_S, back)
    at_first = engine_with(ServiceWalk(low=1.0, high=1.0), policy)
    sent(at_first, 0, back)
    assert sent(engine, back, back + 60) == pytest.approx(sent(at_first, back, back + 60), abs=0.02)
    assert engine.site.row_s[LARGE, 0] == pytest.approx(MEAN_S[LARGE])


@pytest.mark.parametrize("policy", ["deadline", "tad"])
def test_who_waits_for_a_batch_is_joined_by_those_that_fill_it(policy: str) -> None:
    pairs = Batch(sizes=(2,), service_s=(0.014,))
    arrivals = PoissonArrivals(process="poisson", rate=10 * RATE_PER_S)
    engine = engine_with(Passing(), policy, batches=(None, pairs), arrivals=arrivals)
    sent(engine, 0, 2 * SLOW_S)
    # A lone one would wait there in vain, and then the next.
    assert engine.site.row_s[LARGE, 1] == pytest.approx(0.014 / 2)
    assert engine.site.chances[LARGE] == 0
