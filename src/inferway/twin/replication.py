"""One replication: warm-up, the counted run in blocks, the way to an empty site, the checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, cast

import numpy as np

from inferway.deployment.workloads import PhasedArrivals, TraceArrivals
from inferway.dispatch.joint import BALANCE, empty_shared
from inferway.dispatch.priced import HEADROOM
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Ints
from inferway.twin.drift import Labeling, Labels, drifted
from inferway.twin.engine import CrowdedError, GeneralEngine, Kind, MarkovEngine, engine_of
from inferway.twin.joint import JointLoop, SharingEngine, engines_of, in_one_loop, seed_among
from inferway.twin.kernel.escalation import SecondAnswers
from inferway.twin.kernel.state import Records, Tally, quantiles
from inferway.twin.result import (
    ClassResult,
    Escalated,
    MeanEstimate,
    PhaseResult,
    Series,
    TaskResult,
)
from inferway.twin.scenario import Scenario, ordinary
from inferway.workload import phases_of

Engine = GeneralEngine | MarkovEngine
BLOCKS = 64
# Queries between two looks at the clock and at Ctrl-C: some hundredths of a second.
_LARGEST_BLOCK = 1 << 18
_PILOT = 16  # Blocks of a pilot
_DOUBLINGS = 6
_UNLIMITED = 1 << 62
_APART = 16.0  # Requests of all tasks together that one goes ahead of the others
_STRETCH = 4096.0  # And those in which one that is warm looks whether the others are
_RELAXATIONS = 4.0  # Longest mean service times that a pilot's block lasts at first


class ConservationError(RuntimeError):
    """A run whose counts do not add up: a fault of the simulator, never of its input."""


@dataclass
class Replicated:
    """Result of one replication."""

    tally: Tally
    queries: int  # Requests that arrived and count
    warmup: int  # Requests that arrived before them
    span_s: float  # Simulated time from the first to the last of them
    area: float  # Integral of the number in the system over that time
    # (m, 4) by block: answers, and sums of their response times, expected accuracies and scores.
    blocks: Floats
    growth: float  # How many more requests were in the system at the end than at the start
    balance: float
    cpu_s: float
    crowded: str  # Why it ended early; empty if it did not
    complete: bool
    kind: Kind
    # Time, requests in the system, and so far those dispatched, or where any may be asked of a
    # second server those answered, and the sum of their accuracies.
    samples: list[tuple[float, int, float, float]]
    lengths: Floats  # (K, L) share of server time by queue length
    held_s: Floats  # (D,) slot seconds of each device that runs have held, or changes
    changes: Ints  # (D,) times that it has begun to load another variant
    again: SecondAnswers | None = None  # What was counted of second answers, where there may be any
    labels: Labels | None = None  # What is true of the answers, where a variant has drifted


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
    of the warm-up is found, and there is none for phases, traces and drift, which begin then. The
    sink is given the replication and the records of requests that have left, and progress how many
    more queries are done, now and then. ConservationError where Little's law or the balance of
    flows does not hold.
    """
    return last_of(
        _course(
            scenario,
            queries,
            None,
            seed=seed,
            replication=replication,
            warmup=warmup,
            kind=kind,
            sink=sink,
            sample_s=sample_s,
            stop=stop or Event(),
            progress=progress,
        )
    )


def replicate_together(
    scenarios: Mapping[str, Scenario],
    *,
    queries: int,
    seed: int,
    replication: int,
    kinds: Mapping[str, Kind],
    warmup: int | None = None,
    sinks: Mapping[str, Callable[[int, Records], None]],
    stop: Event,
    progress: Mapping[str, Callable[[int], None]],
    balances: Mapping[str, float] | None = None,
) -> dict[str, Replicated]:
    """Run several tasks once, side by side in time, which share targets, devices or a policy.

    They count from the same time on, for as long as the busiest takes for so many requests. Those
    that share devices or a policy go on event by event. Else what their policies share is at most
    some requests old: each in turn goes on for a short while. Targets begin with these `balances`,
    by name, or with 0. The rest is as in `replicate`, by task.
    """
    rates = {name: one.rate_per_s for name, one in scenarios.items()}
    busiest = max(rates.values())
    told = next((one.targets for one in scenarios.values() if one.targets), ())
    shared = empty_shared(told, HEADROOM) if told else None
    for row, one in zip([] if shared is None else shared, told, strict=True):
        row[BALANCE] = (balances or {}).get(one["name"], 0.0)
    engines: dict[str, SharingEngine] = {}
    if in_one_loop(scenarios):
        made = engines_of(
            [*scenarios.values()],
            seeds=[seed_among(seed, place) for place in range(len(scenarios))],
            replication=replication,
            sinks=[
                None if (sink := sinks.get(name)) is None else partial(sink, replication)
                for name in scenarios
            ],
            shared=shared,
        )
        engines = dict(zip(scenarios, made, strict=True))
    together = Together(
        shared=shared,
        step_s=(_STRETCH if engines else _APART) / sum(rates.values()),
        span_s=queries / busiest,
        waits=set() if any(map(_begins, scenarios.values())) else set(scenarios),
    )
    courses = {
        name: _course(
            one,
            max(1, round(queries * rates[name] / busiest)),
            together,
            name=name,
            seed=seed_among(seed, place),
            replication=replication,
            warmup=warmup
            if together.waits and warmup is None
            else round((warmup or 0) * rates[name] / busiest),
            kind=kinds[name],
            sink=sinks.get(name),
            sample_s=None,
            stop=stop,
            progress=progress.get(name),
            engine=engines.get(name),
        )
        for place, (name, one) in enumerate(scenarios.items())
    }
    found: dict[str, Replicated] = {}
    with ExitStack() as stack:
        for course in courses.values():
            stack.callback(course.close)
        if engines:
            found = _in_one_loop(courses, JointLoop([*engines.values()]))
        due = [] if engines else [(0.0, name) for name in courses]
        while due:
            at = min(range(len(due)), key=lambda place: due[place][0])
            _, name = due.pop(at)
            try:
                due.append((next(courses[name]), name))
            except StopIteration as ended:
                found[name] = ended.value
    return {name: found[name] for name in scenarios}


def _in_one_loop(courses: Mapping[str, _Course], loop: JointLoop) -> dict[str, Replicated]:
    """Let tasks go on whenever the loop has brought them what they have asked for."""
    found: dict[str, Replicated] = {}
    names = list(courses)
    met: dict[int, CrowdedError | None] = dict.fromkeys(range(len(names)))
    while True:
        for number, error in met.items():
            course = courses[names[number]]
            try:
                if error is None:
                    next(course)
                else:
                    course.throw(error)
            except StopIteration as ended:
                found[names[number]] = ended.value
        if len(found) == len(names):
            return found
        met = loop.advance()


@dataclass
class Together:
    """What tasks that run side by side go by."""

    shared: Floats | None  # What their policies share
    step_s: float  # How far one goes on before the next
    span_s: float  # How long requests count
    waits: set[str]  # Tasks whose warm-up is not over, before which none counts


_Course = Generator[float, None, "Replicated"]


def last_of(course: _Course) -> Replicated:
    """Run a course to its end, whoever else is to go on."""
    while True:
        try:
            next(course)
        except StopIteration as ended:
            return cast("Replicated", ended.value)


def _course(
    scenario: Scenario,
    queries: int,
    together: Together | None,
    *,
    name: str = "",
    seed: int,
    replication: int,
    warmup: int | None,
    kind: Kind | None,
    sink: Callable[[int, Records], None] | None,
    sample_s: float | None,
    stop: Event,
    progress: Callable[[int], None] | None,
    engine: Engine | None = None,
) -> _Course:
    """Run a scenario; where it runs with others, give its time whenever they are to go on.

    Where it shares devices with these, its `engine` is there already.
    """
    moved = engine is not None  # by a loop
    engine = engine or engine_of(
        scenario,
        seed=seed,
        replication=replication,
        kind=kind,
        sink=None if sink is None else partial(sink, replication),
        shared=None if together is None else together.shared,
    )
    labeling = labeling_of(engine, scenario, seed, replication)
    step_s = None if together is None or moved else together.step_s
    clock = RunClock(engine, scenario, sample_s, labeling, step_s)
    crowded, warmed, done, start_s, start_present = "", 0, 0, 0.0, 0
    blocks: list[Any] = []
    ends_s, most = np.inf, queries
    before: Any = None
    try:
        warmed = yield from _warm_up(clock, scenario, warmup, stop)
        if together is not None:
            together.waits.discard(name)
            while together.waits and not stop.is_set():
                warmed += yield from clock.advance(_LARGEST_BLOCK, engine.now_s + together.step_s)
            ends_s, most = engine.now_s + together.span_s, _UNLIMITED
        start_s, start_present = engine.now_s, engine.present
        engine.count_anew()
        clock.samples, engine.cpu_s = [], 0.0
        block = max(1, min(_LARGEST_BLOCK, math.ceil(queries / BLOCKS)))
        before, arrived = sums(engine, labeling), 1
        while done < most and arrived and engine.now_s < ends_s and not stop.is_set():
            arrived = yield from clock.advance(min(block, most - done), ends_s)
            done += arrived
            after = sums(engine, labeling)
            blocks.append(after - before)
            before = after
            if progress is not None:
                progress(arrived)
    except CrowdedError as error:
        crowded = str(error)
        if together is not None:
            together.waits.discard(name)  # or the others would wait for it for ever
    return (
        yield from finished(
            clock,
            blocks,
            labeling,
            before=before,
            start=(start_s, start_present),
            queries=done,
            warmup=warmed,
            crowded=crowded,
            complete=done >= most
            or (done > 0 and not crowded and (clock.ended or engine.now_s >= ends_s)),
        )
    )


def finished(
    clock: RunClock,
    blocks: list[Any],
    labeling: Labeling | None,
    *,
    before: Any,
    start: tuple[float, float],
    queries: int,
    warmup: int,
    crowded: str,
    complete: bool,
) -> _Course:
    """Let a site empty, check what was counted, and put it together.

    `before` are the sums at the end of the last block, `start` the time from which requests count
    and how many were in the system then.
    """
    engine = clock.engine
    area, present, now_s = float(engine.tally.area[0]), engine.present, engine.now_s
    lengths = np.maximum(-np.diff(engine.tally.reached_s, append=0.0), 0.0)
    balance = float(engine.site.balance[0])
    held_s, changes = engine.tally.held_s.copy(), engine.tally.changes.copy()
    if not crowded:
        yield from clock.emptying()
        if blocks:
            blocks[-1] = blocks[-1] + (sums(engine, labeling) - before)
        _check(engine)
    engine.hand_over()
    return Replicated(
        tally=engine.tally,
        queries=queries,
        warmup=warmup,
        span_s=now_s - start[0],
        area=area,
        blocks=np.array(blocks).reshape(-1, 4),
        growth=float(present - start[1]),
        balance=balance,
        cpu_s=engine.cpu_s,
        crowded=crowded,
        complete=complete,
        kind=engine.kind,
        samples=clock.samples,
        lengths=lengths / np.maximum(lengths.sum(axis=1, keepdims=True), 1e-300),
        held_s=held_s,
        changes=changes,
        again=engine.again,
        labels=None if labeling is None else labeling.labels,
    )


def labeling_of(engine: Engine, scenario: Scenario, seed: int, replication: int) -> Labeling | None:
    """What labels answers, where a variant drifts."""
    if scenario.drift is None:
        return None
    return Labeling(
        engine,
        scenario.fleet,
        scenario.drift,
        measured=scenario.measured,
        rate_per_s=scenario.rate_per_s,
        seed=(seed, replication),
        shadow=scenario.shadow,
    )


class RunClock:
    """Moves an engine on, and stops it where something is due.

    That is where the site is sampled, the policy told a rate, the routing set, or labels come.
    """

    def __init__(
        self,
        engine: Engine,
        scenario: Scenario,
        sample_s: float | None,
        labeling: Labeling | None = None,
        step_s: float | None = None,
    ) -> None:
        self.engine, self._scenario = engine, scenario
        self.samples: list[tuple[float, int, float, float]] = []
        window_s = scenario.window_s if hasattr(engine.policy, "retune") else None
        slot_s = None if engine.controller is None else engine.controller.slot_s
        due: list[tuple[float | None, Callable[[], int | None]]]
        due = [(sample_s, self._sample), (window_s, self._retune), (slot_s, engine.reroute)]
        if scenario.walk is not None and isinstance(engine, GeneralEngine):
            due += [(scenario.walk.every_s, engine.slow_down)]
        # Which class the next request is to go to, where one is to be explored.
        self._explored = None if labeling is None else labeling.explored
        if labeling is not None:
            due += [(labeling.every_s, labeling.look), (labeling.explore_s, labeling.explored)]
        due += [(step_s, self._pass)]
        self._due = [(every_s, act) for every_s, act in due if every_s is not None]
        self._times = [0] * len(self._due)  # How often each was due
        self._in_window = 0
        self.ended = False  # Whether the workload has no more requests
        self._passes = False  # Whether another task is to go on now
        engine.reroute()

    def advance(self, arrivals: int, ends_s: float = np.inf) -> Generator[float, None, int]:
        """Run until so many have arrived, or until a time; how many have.

        It gives the time whenever another task is to go on.
        """
        done = 0
        while done < arrivals and self.engine.now_s < ends_s:
            next_s = [(n + 1) * one[0] for n, one in zip(self._times, self._due, strict=True)]
            until_s = min([*next_s, ends_s])
            arrived = yield from self._go(arrivals - done, until_s)
            done += arrived
            self._in_window += arrived
            if self.engine.now_s < until_s:
                self.ended = done < arrivals
                break
            for place, (_, act) in enumerate(self._due):
                if self.engine.now_s >= next_s[place]:
                    self._times[place] += 1
                    if act != self._explored:
                        act()
                    elif done < arrivals and (k := act()) is not None and k >= 0:
                        explored = yield from self._explore(k)
                        done += explored
                        self._in_window += explored
            if self._passes:
                self._passes = False
                yield self.engine.now_s
        return done

    def emptying(self) -> Generator[float, None, None]:
        """Run until the site is empty."""
        if isinstance(self.engine, SharingEngine):
            yield from self.engine.emptying()
        else:
            self.engine.drain()

    def _go(self, arrivals: int, until_s: float) -> Generator[float, None, int]:
        if isinstance(self.engine, SharingEngine):
            return (yield from self.engine.going(arrivals, until_s))
        return self.engine.advance(arrivals, until_s)

    def _explore(self, k: int) -> Generator[float, None, int]:
        if isinstance(self.engine, SharingEngine):
            return (yield from self.engine.exploring(k))
        assert isinstance(self.engine, GeneralEngine)
        return self.engine.explore(k)

    def _pass(self) -> None:
        self._passes = True

    def _sample(self) -> None:
        engine, again = self.engine, self.engine.again
        if again is None:
            sent = engine.tally.sent.sum(axis=0)
            so_far = float(sent.sum()), float(sent @ _accuracies(engine.scenario.fleet))
        else:
            so_far = float(engine.tally.answered.sum()), float(again.earned.sum())
        self.samples.append((engine.now_s, engine.present, *so_far))

    def _retune(self) -> None:
        scenario = self._scenario
        assert scenario.window_s is not None
        rate_per_s, self._in_window = self._in_window / scenario.window_s, 0
        if rate_per_s > 0:
            self.engine.policy.retune(scenario.fleet, target=scenario.target, rate_per_s=rate_per_s)


def _begins(scenario: Scenario) -> bool:
    """Tell whether what is simulated begins at the beginning, so that nothing warms up."""
    begins = isinstance(scenario.arrivals, PhasedArrivals | TraceArrivals)
    return begins or scenario.drift is not None


def _warm_up(
    clock: RunClock, scenario: Scenario, warmup: int | None, stop: Event
) -> Generator[float, None, int]:
    """Run until the site has forgotten how it began; how many requests arrived.

    Blocks of some of the longest service times are run until MSER, applied to their mean numbers
    in the system, cuts off less than half of them (White, doi 10.1177/003754979706900601); all
    are then left out.
    """
    engine = clock.engine
    if warmup is None and _begins(scenario):
        return 0
    if warmup is not None:
        left, arrived = warmup, 1
        while left > 0 and arrived and not stop.is_set():
            arrived = yield from clock.advance(min(_LARGEST_BLOCK, left))
            left -= arrived
        return warmup - left
    block = max(1, math.ceil(_RELAXATIONS * scenario.rate_per_s / float(scenario.fleet.rate.min())))
    done = 0
    means: list[float] = []
    for _ in range(_DOUBLINGS):
        while len(means) < _PILOT and not stop.is_set():
            at_s, area = engine.now_s, float(engine.tally.area[0])
            done += yield from clock.advance(block)
            means.append((engine.tally.area[0] - area) / max(engine.now_s - at_s, 1e-300))
        if stop.is_set() or truncation(np.array(means)) < _PILOT // 2:
            break
        means = [float(np.mean(pair)) for pair in zip(means[::2], means[1::2], strict=True)]
        block *= 2
    return done


def truncation(means: Floats) -> int:
    """Number of a series's first means that MSER leaves out.

    It is where the squared standard error of the mean of the rest is least.
    """
    count = len(means)
    errors = [means[cut:].var() / (count - cut) for cut in range(count - 1)]
    return int(np.argmin(errors))


def sums(engine: Engine, labeling: Labeling | None = None) -> Any:
    """(4,) answers so far, and sums of their response times, accuracies and scores."""
    tally, again = engine.tally, engine.again
    answered = tally.answered.sum(axis=0)
    if again is None:
        worth = answered @ _accuracies(engine.scenario.fleet), np.nan
    else:
        worth = again.earned.sum(), again.scored.sum()
    if labeling is not None:
        labeling.look()
        worth = labeling.counted, labeling.right
    return np.array([answered.sum(), tally.response_s.sum(), *worth])


def _check(engine: Engine) -> None:
    """Little's law and the balance of flows: both hold exactly in a right run."""
    tally = engine.tally
    answered = tally.answered.sum(axis=0)
    entered = int(tally.arrived.sum())
    left = int(tally.rejected.sum() + tally.dropped.sum() + answered.sum())
    still = engine.present - engine.uncounted
    if entered != left + still:
        raise ConservationError(
            f"{entered} requests entered, {left} left and {still} are still there: "
            "the simulator has lost or made some"
        )
    area, times = tally.area
    if engine.present == 0 and not math.isclose(area, times, rel_tol=1e-6, abs_tol=1e-6):
        raise ConservationError(
            f"the number in the system integrates to {area:g} request-seconds and the "
            f"times spent there sum to {times:g}: Little's law does not hold"
        )
    if (tally.sent.sum(axis=0) < answered).any():
        raise ConservationError("more requests were answered than dispatched")


_BATCHES = 32  # Batch means per replication; the blocks are joined to as many
_ENOUGH = 8  # Replications from which on their own spread gives the error
# Growth, in square roots of the arrivals, that no stable site shows; and how much longer the
# second half of a run takes to answer where a growth of one such root is none of chance.
_DRIFT, _RISE = 6.0, 1.5


def summarize(scenario: Scenario, outcomes: Sequence[Replicated]) -> TaskResult:
    """Put the replications of a scenario together."""
    tally = Tally._make(
        np.sum(one, axis=0) for one in zip(*(each.tally for each in outcomes), strict=True)
    )
    fleet, answered = scenario.fleet, tally.answered
    late = tally.late.sum(axis=1)
    again = [one.again for one in outcomes if one.again is not None]
    if again:
        earned = np.sum([one.earned for one in again], axis=0)
        in_time = np.sum([one.in_time for one in again], axis=0)
    else:
        accuracy = _accuracies(fleet)
        earned, in_time = answered * accuracy, (answered - tally.late) * accuracy
    counts = {
        "rejected": tally.rejected,
        "dropped": tally.dropped,
        "late": late,
        "goodput": in_time.sum(axis=1),
        "violation_ratio": tally.rejected + tally.dropped + late,
    }
    phases = tuple(
        PhaseResult(
            accuracy_target=(
                scenario.target if span.accuracy_target is None else span.accuracy_target
            ),
            rate_per_s=span.rate_per_s,
            response_time_s=_ratio(tally.response_s[p].sum(), answered[p].sum()),
            accuracy=_ratio(earned[p].sum(), answered[p].sum()),
            **_served(fleet, tally, counts, slice(p, p + 1)),
        )
        for p, span in enumerate(phases_of(scenario.arrivals, scenario.capacity_per_s))
    )
    span_s = sum(outcome.span_s for outcome in outcomes)
    whole = _served(fleet, tally, counts, slice(None))
    stable, notes = _verdict(scenario, outcomes)
    return TaskResult(
        response_time_s=_estimate(outcomes, 1),
        accuracy=_estimate(outcomes, 2),
        accuracy_target=scenario.target,
        balance=_balance(scenario, outcomes),
        classes=_classes(fleet, outcomes, tally),
        devices=_devices(fleet, outcomes),
        changes_per_s=_changes_per_s(fleet, outcomes),
        in_system=_ratio(sum(outcome.area for outcome in outcomes), span_s),
        rate_per_s=_ratio(whole["queries"], span_s),
        queries_per_cpu_s=_ratio(whole["queries"], sum(outcome.cpu_s for outcome in outcomes)),
        phases=phases,
        stable=stable,
        notes=notes,
        engine=outcomes[0].kind,
        replications=len(outcomes),
        warmup=sum(outcome.warmup for outcome in outcomes),
        simulated_s=span_s,
        complete=all(outcome.complete for outcome in outcomes),
        series=_series(outcomes),
        escalated=_escalated(fleet, again, answered.sum()),
        by_labels=_by_labels(outcomes),
        drift=None
        if scenario.drift is None
        else drifted(
            scenario.drift,
            scenario.measured,
            [one.labels for one in outcomes if one.labels is not None],
        ),
        **whole,
    )


def _accuracies(fleet: Fleet) -> Floats:
    """(K,) accuracies by which answers are graded; nan where one is unknown."""
    return np.where(fleet.graded, fleet.accuracy, np.nan)


def _balance(scenario: Scenario, outcomes: Sequence[Replicated]) -> float:
    """Mean accuracy balance at the end; nan where nothing was promised."""
    spans = phases_of(scenario.arrivals, scenario.capacity_per_s)
    if scenario.target is None and all(one.accuracy_target is None for one in spans):
        return math.nan
    return float(np.mean([outcome.balance for outcome in outcomes]))


def _served(fleet: Fleet, tally: Tally, counts: dict[str, Any], phases: slice) -> dict[str, Any]:
    """Compute what the results of a run and of its phases have in common."""
    queries = int(tally.arrived[phases].sum())
    answered, sent = tally.answered[phases].sum(axis=0), tally.sent[phases].sum(axis=0)
    return {
        **_percentiles(tally.histogram[phases].sum(axis=(0, 1))),
        "shares": {
            k: _ratio(n, answered.sum()) for k, n in zip(fleet.variants, answered, strict=True)
        },
        "dispatched": {k: _ratio(n, queries) for k, n in zip(fleet.variants, sent, strict=True)},
        "queries": queries,
        **{name: _ratio(count[phases].sum(), queries) for name, count in counts.items()},
    }


def _percentiles(histogram: Any) -> dict[str, float]:
    names = ("p50_s", "p95_s", "p99_s")
    return dict(zip(names, quantiles(histogram, (0.5, 0.95, 0.99)), strict=True))


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole > 0 else math.nan


def _estimate(outcomes: Sequence[Replicated], column: int) -> MeanEstimate:
    """A mean over answers, with an error by replications or, where they are few, by batch means.

    Both are ratios of sums over batches of unequal numbers of answers.
    """
    most = 1 if len(outcomes) >= _ENOUGH else _BATCHES
    batches = np.array(
        [
            part.sum(axis=0)
            for one in outcomes
            for part in np.array_split(one.blocks, min(most, max(1, len(one.blocks))))
        ]
    )
    answers, total = batches[:, 0].sum(), batches[:, column].sum()
    if answers == 0:
        return MeanEstimate(math.nan, math.nan)
    mean = total / answers
    if len(batches) < 2:
        return MeanEstimate(float(mean), math.nan)
    residuals = batches[:, column] - mean * batches[:, 0]
    spread = math.sqrt(float((residuals**2).sum()) * len(batches) / (len(batches) - 1))
    return MeanEstimate(float(mean), float(spread / answers))


def _classes(fleet: Fleet, outcomes: Sequence[Replicated], tally: Tally) -> dict[str, ClassResult]:
    answered, response_s = tally.answered.sum(axis=0), tally.response_s.sum(axis=0)
    weights = [max(outcome.span_s, 1e-300) for outcome in outcomes]
    lengths = np.average([outcome.lengths for outcome in outcomes], axis=0, weights=weights)
    return {
        name: ClassResult(
            share=_ratio(answered[k], answered.sum()),
            utilization=float(lengths[k, 1:].sum()),
            response_time_s=_ratio(response_s[k], answered[k]),
            queue_lengths=lengths[k],
            **_percentiles(tally.histogram[:, k].sum(axis=0)),
        )
        for k, name in enumerate(fleet.variants)
    }


def _devices(fleet: Fleet, outcomes: Sequence[Replicated]) -> dict[str, float] | None:
    if fleet.devices is None:
        return None
    span_s = sum(outcome.span_s for outcome in outcomes)
    held_s = np.sum([outcome.held_s for outcome in outcomes], axis=0)
    return {
        name: _ratio(held_s[d], span_s * fleet.devices.slots[d])
        for d, name in enumerate(fleet.devices.names)
    }


def _changes_per_s(fleet: Fleet, outcomes: Sequence[Replicated]) -> dict[str, float] | None:
    if fleet.devices is None or not fleet.devices.exclusive.any():
        return None
    span_s = sum(outcome.span_s for outcome in outcomes)
    changes = np.sum([outcome.changes for outcome in outcomes], axis=0)
    return {
        name: _ratio(changes[d], span_s)
        for d, name in enumerate(fleet.devices.names)
        if fleet.devices.exclusive[d]
    }


def _verdict(scenario: Scenario, outcomes: Sequence[Replicated]) -> tuple[bool, tuple[str, ...]]:
    notes = [ordinary(scenario.canary)] if scenario.canary else []
    crowded = [outcome.crowded for outcome in outcomes if outcome.crowded]
    growth = sum(outcome.growth for outcome in outcomes)
    arrivals, runs = sum(outcome.queries for outcome in outcomes), len(outcomes)
    phased = isinstance(scenario.arrivals, PhasedArrivals)
    steady = not phased or len(phases_of(scenario.arrivals, scenario.capacity_per_s)) == 1
    roots = (growth - scenario.fleet.servers) / math.sqrt(max(arrivals, 1))
    grows = steady and (roots > _DRIFT or (roots > 1.0 and _rise(outcomes) > _RISE))
    if crowded:
        notes.append(f"unstable: {crowded[0]}, so it was ended there")
    elif grows:
        # A reader compares with one workload, or with one recording.
        among = f"in the mean of {runs} replications, " if runs > 1 else ""
        notes.append(
            f"unstable: {among}{growth / runs:,.0f} more requests were in the system at the end "
            f"than at the start, {growth / arrivals:.2%} of the arrivals; its means depend on how "
            "long it ran"
        )
    if not all(outcome.complete for outcome in outcomes) and not crowded:
        notes.append(f"ended early: {arrivals:,} requests counted")
    return not (crowded or grows), tuple(notes)


def _rise(outcomes: Sequence[Replicated]) -> float:
    (first, first_s), (second, second_s) = np.sum(
        [
            [one.blocks[:middle, :2].sum(axis=0), one.blocks[middle:, :2].sum(axis=0)]
            for one in outcomes
            for middle in [len(one.blocks) // 2]
        ],
        axis=0,
    )
    return _ratio(second_s * first, first_s * second)


def _escalated(
    fleet: Fleet, again: Sequence[SecondAnswers], answers: int
) -> tuple[Escalated, ...] | None:
    """Shares of the answers that are of a second variant, by pair, the greatest first."""
    if not again:
        return None
    moved = np.sum([one.moved.sum(axis=0) for one in again], axis=0)
    pairs = [
        Escalated(fleet.variants[i], fleet.variants[j], _ratio(moved[i, j], answers))
        for i, j in np.argwhere(moved)
    ]
    return tuple(sorted(pairs, key=lambda pair: -pair.share))


def _by_labels(outcomes: Sequence[Replicated]) -> MeanEstimate | None:
    scored = _estimate(outcomes, 3)
    return None if math.isnan(scored.mean) else scored


def _series(outcomes: Sequence[Replicated]) -> Series | None:
    count = min(len(outcome.samples) for outcome in outcomes)
    if count == 0:
        return None
    time_s, present, sent, earned = (
        np.array([[sample[part] for sample in one.samples[:count]] for one in outcomes], np.float64)
        for part in range(4)
    )
    since, earned_since = (
        np.diff(sums, axis=1, prepend=np.zeros((len(outcomes), 1))) for sums in (sent, earned)
    )
    with np.errstate(invalid="ignore"):
        return Series(
            time_s=time_s[0],
            in_system=present,
            accuracy=earned_since / since,
            running_accuracy=earned / sent,
            dispatched=sent,
        )
