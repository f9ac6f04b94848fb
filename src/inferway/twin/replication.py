"""One replication: warm-up, the counted run in blocks, the way to an empty site, the checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Any

import numpy as np

from inferway.deployment.workloads import PhasedArrivals, TraceArrivals
from inferway.site.view import Floats, Ints
from inferway.twin.engine import CrowdedError, Engine, Kind, engine_of
from inferway.twin.kernel.counters import Tally
from inferway.twin.kernel.state import Records
from inferway.twin.scenario import Scenario

BLOCKS = 64
_LARGEST_BLOCK = 1 << 18
"""Queries between two looks at the clock and at Ctrl-C: some hundredths of a second."""
_PILOT = 16
"""Blocks of a pilot."""
_DOUBLINGS = 6
_RELAXATIONS = 4.0
"""Longest mean service times that a pilot's block lasts at first."""


class ConservationError(RuntimeError):
    """A run whose counts do not add up: a fault of the simulator, never of its input."""


@dataclass
class Samples:
    """The site over time, sampled at equal distances."""

    time_s: list[float] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    sent: list[Ints] = field(default_factory=list)
    """(K,) dispatches since the start, by class."""


@dataclass
class Replicated:
    """What one replication gave."""

    tally: Tally
    queries: int
    """Requests that arrived and count."""
    warmup: int
    """Requests that arrived before them."""
    span_s: float
    """Simulated time from the first to the last of them."""
    area: float
    """Integral of the number in the system over that time."""
    blocks: Floats
    """(m, 3) by block: answers, sum of their response times, sum of their accuracies."""
    growth: float
    """How many more requests were in the system at the end than at the start."""
    balance: float
    cpu_s: float
    crowded: str
    """Why it ended early; empty if it did not."""
    complete: bool
    kind: Kind
    series: Samples
    lengths: Floats
    """(K, L) share of server time by queue length."""


def replicate(
    scenario: Scenario,
    *,
    queries: int,
    seed: int,
    replication: int,
    warmup: int | None = None,
    kind: Kind | None = None,
    sink: Callable[[int, Records], None] | None = None,
    sample_s: float | None = None,
    stop: Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> Replicated:
    """Run a scenario once.

    The requests that count are fewer where a trace ends before. Without a number of them, the end
    of the warm-up is found, and there is none for phases and traces, whose beginning is meant. The
    sink is given the replication and the records of requests that have left, and progress how many
    more queries are done, now and then. ConservationError where Little's law or the balance of
    flows does not hold.
    """
    stop = stop or Event()
    engine = engine_of(
        scenario,
        seed=seed,
        replication=replication,
        kind=kind,
        sink=None if sink is None else partial(sink, replication),
    )
    clock = _Clock(engine, scenario, sample_s)
    crowded, warmed, done = "", 0, 0
    start_s, start_present = 0.0, 0
    blocks: list[tuple[float, ...]] = []
    area = 0.0
    try:
        warmed = _warm_up(clock, scenario, warmup, stop)
        start_s, start_present = engine.now_s, engine.present
        engine.count_anew()
        clock.series = Samples()
        engine.cpu_s = 0.0
        block = max(1, min(_LARGEST_BLOCK, math.ceil(queries / BLOCKS)))
        before = _sums(engine, scenario)
        while done < queries and not stop.is_set():
            arrived = clock.advance(min(block, queries - done))
            done += arrived
            after = _sums(engine, scenario)
            blocks.append(tuple(after - before))
            before = after
            if progress is not None:
                progress(arrived)
            if arrived == 0:
                break
    except CrowdedError as error:
        crowded = str(error)
    area, present, now_s = float(engine.tally.area[0]), engine.present, engine.now_s
    lengths = engine.tally.lengths / np.maximum(
        engine.tally.lengths.sum(axis=1, keepdims=True), 1e-300
    )
    balance = float(engine.site.balance[0])
    if not crowded:
        engine.drain()
        if blocks:
            blocks[-1] = tuple(np.add(blocks[-1], _sums(engine, scenario) - before))
        _check(engine)
    engine.hand_over()
    return Replicated(
        tally=engine.tally,
        queries=done,
        warmup=warmed,
        span_s=now_s - start_s,
        area=area,
        blocks=np.array(blocks).reshape(-1, 3),
        growth=float(present - start_present),
        balance=balance,
        cpu_s=engine.cpu_s,
        crowded=crowded,
        complete=done >= queries,
        kind=engine.kind,
        series=clock.series,
        lengths=lengths,
    )


class _Clock:
    """Moves an engine on, and stops it where something is due.

    That is where the site is sampled, the policy told a rate, or the routing set.
    """

    def __init__(self, engine: Engine, scenario: Scenario, sample_s: float | None) -> None:
        self.engine = engine
        self.series = Samples()
        self._scenario = scenario
        self._sample_s = sample_s
        self._window_s = scenario.window_s if hasattr(engine.policy, "retune") else None
        self._slot_s = None if engine.controller is None else engine.controller.slot_s
        self._samples, self._windows, self._slots = 0, 0, 0
        self._in_window = 0
        engine.reroute()

    def advance(self, arrivals: int) -> int:
        done = 0
        while done < arrivals:
            until_s = min(
                self._next(self._sample_s, self._samples),
                self._end_of_window(),
                self._next(self._slot_s, self._slots),
            )
            if until_s == np.inf:
                return done + self.engine.advance(arrivals - done)
            arrived = self.engine.advance(arrivals - done, until_s)
            done += arrived
            self._in_window += arrived
            if self.engine.now_s < until_s:
                break
            if self.engine.now_s >= self._next(self._sample_s, self._samples):
                self._sample()
            if self.engine.now_s >= self._end_of_window():
                self._retune()
            if self.engine.now_s >= self._next(self._slot_s, self._slots):
                self._slots += 1
                self.engine.reroute()
        return done

    def _end_of_window(self) -> float:
        return self._next(self._window_s, self._windows)

    def _next(self, every_s: float | None, count: int) -> float:
        return np.inf if every_s is None else (count + 1) * every_s

    def _sample(self) -> None:
        self._samples += 1
        self.series.time_s.append(self.engine.now_s)
        self.series.present.append(self.engine.present)
        self.series.sent.append(self.engine.tally.sent.sum(axis=0))

    def _retune(self) -> None:
        self._windows += 1
        assert self._window_s is not None
        rate_per_s, self._in_window = self._in_window / self._window_s, 0
        if rate_per_s > 0:
            self.engine.policy.retune(
                self._scenario.fleet, target=self._scenario.target, rate_per_s=rate_per_s
            )


def _warm_up(clock: _Clock, scenario: Scenario, warmup: int | None, stop: Event) -> int:
    """Run until the site has forgotten how it began; how many requests arrived.

    Blocks of some of the longest service times are run until MSER, applied to their mean numbers
    in the system, cuts off less than half of them (White, doi 10.1177/003754979706900601); all
    are then left out.
    """
    engine = clock.engine
    if warmup is None and isinstance(scenario.arrivals, PhasedArrivals | TraceArrivals):
        return 0
    if warmup is not None:
        done = 0
        while done < warmup and not stop.is_set():
            arrived = clock.advance(min(_LARGEST_BLOCK, warmup - done))
            done += arrived
            if arrived == 0:
                break
        return done
    block = max(1, math.ceil(_RELAXATIONS * scenario.rate_per_s / float(scenario.fleet.rate.min())))
    done = 0
    means: list[float] = []
    for _ in range(_DOUBLINGS):
        while len(means) < _PILOT and not stop.is_set():
            at_s, area = engine.now_s, float(engine.tally.area[0])
            done += clock.advance(block)
            means.append((engine.tally.area[0] - area) / max(engine.now_s - at_s, 1e-300))
        if stop.is_set() or truncation(np.array(means)) < _PILOT // 2:
            break
        means = [float(np.mean(pair)) for pair in zip(means[::2], means[1::2], strict=True)]
        block *= 2
    return done


def truncation(means: Floats) -> int:
    """How many of the first of a series of means MSER leaves out.

    It is where the squared standard error of the mean of the rest is least.
    """
    count = len(means)
    errors = [means[cut:].var() / (count - cut) for cut in range(count - 1)]
    return int(np.argmin(errors))


def _sums(engine: Engine, scenario: Scenario) -> Any:
    answered = engine.tally.answered.sum(axis=0)
    return np.array(
        [answered.sum(), engine.tally.response_s.sum(), answered @ scenario.fleet.accuracy]
    )


def _check(engine: Engine) -> None:
    """Little's law and the balance of flows: both hold exactly in a right run."""
    tally = engine.tally
    entered = int(tally.arrived.sum())
    left = int(tally.rejected.sum() + tally.dropped.sum() + tally.answered.sum())
    still = engine.present - engine.uncounted
    if entered != left + still:
        raise ConservationError(
            f"{entered} requests entered, {left} left and {still} are still there: "
            "the simulator has lost or made some"
        )
    if engine.present == 0 and not math.isclose(
        tally.area[0], tally.area[1], rel_tol=1e-6, abs_tol=1e-6
    ):
        raise ConservationError(
            f"the number in the system integrates to {tally.area[0]:g} request-seconds and the "
            f"times spent there sum to {tally.area[1]:g}: Little's law does not hold"
        )
    answered = tally.answered.sum(axis=0)
    if (tally.sent.sum(axis=0) < answered).any():
        raise ConservationError("more requests were answered than dispatched")
