"""Small sites to simulate: random ones, and what becomes of their requests in the engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from fleets import sure
from hypothesis import strategies as st
from plain_site import Left, PlainSite, PlainSites

from inferway.deployment import Batch, ServiceTime
from inferway.deployment.workloads import (
    Arrivals,
    ConstantArrivals,
    Phase,
    PhasedArrivals,
    PoissonArrivals,
)
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.twin import Failures, Scenario, SetOutage
from inferway.twin.engine import Kind, engine_of
from inferway.twin.joint import JointLoop, SharingEngine, engines_of
from inferway.twin.kernel.escalation import AnswerSample
from inferway.twin.kernel.state import Records

HERE = Path(__file__).parent
VERSATILE = "./policies/versatile.py:Versatile"
PATIENT = "./policies/versatile.py:Patient"
UNSURE = "./policies/versatile.py:Unsure"
SOONEST = "./policies/soonest.py:Soonest"
SETTLING = (UNSURE, "escalate")
DYADIC = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sums of such times are exact in any order, so that ties are ties everywhere."""
TARGET = 0.7


def records(
    scenario: Scenario, requests: int, seed: int, kind: Kind, block: int = 1 << 62
) -> list[Left]:
    """What becomes of so many requests, asked for in blocks, in the order in which they leave."""
    return ran(scenario, requests, seed, kind, block)[0]


def ran(
    scenario: Scenario, requests: int, seed: int, kind: Kind, block: int = 1 << 62
) -> tuple[list[Left], Any]:
    """The same, and the engine that has run."""
    found: list[Left] = []

    def sink(rows: Records) -> None:
        columns = [column[: rows.size[0]].tolist() for column in rows[:-1]]
        found.extend(Left(*row) for row in zip(*columns, strict=True))

    engine = engine_of(scenario, seed=seed, kind=kind, sink=sink)
    engine.count_anew()
    while requests > 0:
        arrived = engine.advance(min(block, requests))
        requests -= arrived
        if arrived == 0:
            break
    engine.drain()
    engine.hand_over()  # type: ignore[attr-defined]
    return found, engine


def assert_same(found: Sequence[Left], expected: Sequence[Left]) -> None:
    """Event for event; times up to the last digits of logarithms."""
    for number, (one, other) in enumerate(zip(found, expected, strict=False)):
        same = one[3:] == other[3:] and all(
            math.isclose(here, there, rel_tol=1e-9, abs_tol=1e-9)
            or (math.isnan(here) and math.isnan(there))
            for here, there in zip(one[:3], other[:3], strict=True)
        )
        assert same, f"the request that leaves as number {number}: {one}, expected {other}"
    assert len(found) == len(expected)


def compare(scenario: Scenario, requests: int, seed: int, kind: Kind) -> list[Left]:
    """Hold an engine against the plain simulator; what the latter says."""
    site = PlainSite(scenario, seed)
    expected = site.run(requests)
    found, engine = ran(scenario, requests, seed, kind)
    assert_same(found, expected)
    assert engine.site.balance[0] == pytest.approx(site.balance, abs=1e-9)
    assert engine.tally.changes.tolist() == [device.changes for device in site.devices]
    if site.settle is not None:
        _assert_same_answers(engine.again, site)
    return expected


def compare_jointly(
    scenarios: Sequence[Scenario], requests: Sequence[int], seed: int
) -> list[list[Left]]:
    """Hold the loop of tasks that share devices against the plain simulator; what that says."""
    seeds = [seed + place for place in range(len(scenarios))]
    plain = PlainSites([*scenarios], seeds)
    expected = plain.run([*requests])
    found: list[list[Left]] = [[] for _ in scenarios]

    def sink(task: int, rows: Records) -> None:
        columns = [column[: rows.size[0]].tolist() for column in rows[:-1]]
        found[task].extend(Left(*row) for row in zip(*columns, strict=True))

    engines = engines_of(
        scenarios,
        seeds=seeds,
        replication=0,
        sinks=[partial(sink, task) for task in range(len(scenarios))],
        shared=None,
    )
    loop = JointLoop(engines)
    courses = [_whole(one, count) for one, count in zip(engines, requests, strict=True)]
    met: Iterable[int] = range(len(courses))
    left = len(courses)
    while left:
        for place in met:
            left -= next(courses[place], None) is None
        met = loop.advance() if left else ()
    for engine in engines:  # who was held as its task ended may have left when another's run did
        engine.hand_over()
    changes = np.sum([engine.tally.changes for engine in engines], axis=0)
    assert changes.tolist() == [device.changes for device in plain.sites[0].devices]
    for engine, one, site in zip(engines, expected, plain.sites, strict=True):
        assert_same(found[engines.index(engine)], one)
        assert engine.site.balance[0] == pytest.approx(site.balance, abs=1e-9)
        if site.settle is not None:
            _assert_same_answers(engine.again, site)
    return expected


def _whole(engine: SharingEngine, requests: int) -> Iterator[float]:
    """So many requests arrive at one of several engines, and all leave."""
    engine.count_anew()
    yield from engine.going(requests, math.inf)
    yield from engine.emptying()
    engine.hand_over()


def _assert_same_answers(again: Any, site: PlainSite) -> None:
    """What is counted of second answers, answer by answer."""
    earned, in_time, scored = (np.zeros_like(again.earned) for _ in range(3))
    moved = np.zeros_like(again.moved)
    assert site.scenario.answers is not None
    for one in site.sent:
        earned[one.phase, one.k] += one.expected
        in_time[one.phase, one.k] += 0.0 if one.late else one.expected
        scored[one.phase, one.k] += site.scenario.answers.score[one.number, one.k]
        if one.first >= 0:
            moved[one.phase, one.first, one.k] += 1
    np.testing.assert_allclose(again.earned, earned, rtol=1e-9)
    np.testing.assert_allclose(again.in_time, in_time, rtol=1e-9)
    np.testing.assert_allclose(again.scored, scored, rtol=1e-9)
    np.testing.assert_array_equal(again.moved, moved)


def poisson(rate: float) -> Arrivals:
    """Poisson arrivals at a rate, 1/s."""
    return PoissonArrivals.read({"process": "poisson", "rate": f"{rate}/s"})


def constant(rate: float) -> Arrivals:
    """Arrivals at equal distances."""
    return ConstantArrivals.read({"process": "constant", "rate": f"{rate}/s"})


def phases(*parts: tuple[float, float, float | None]) -> Arrivals:
    """Poisson phases, each for so long, at a rate, with a target or none."""
    listed = [
        Phase.read({"for": f"{for_s} s", "rate": f"{rate}/s", "accuracy_target": target})
        for for_s, rate, target in parts
    ]
    return PhasedArrivals(process="phases", phases=tuple(listed))


@st.composite
def service_times(draw: st.DrawFn, mean_s: float) -> ServiceTime:
    """Any distribution of this mean."""
    kind = draw(
        st.sampled_from(
            ["deterministic", "exponential", "lognormal", "erlang", "hyperexponential", "empirical"]
        )
    )
    if kind == "empirical":
        samples = np.array(draw(st.lists(st.floats(0.1, 3), min_size=1, max_size=5)))
        samples *= mean_s / samples.mean()
        return ServiceTime(kind, mean_s, samples_s=tuple(samples.tolist()))
    cv = {"lognormal": st.floats(0.2, 2), "hyperexponential": st.floats(1.1, 3)}.get(kind)
    stages = draw(st.integers(1, 4)) if kind == "erlang" else 1
    return ServiceTime(kind, mean_s, cv=0.0 if cv is None else draw(cv), stages=stages)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """One to three classes of one to three servers."""
    classes = draw(st.integers(1, 3))
    each = {"min_size": classes, "max_size": classes}
    accuracy = draw(st.lists(st.sampled_from([0.5, 0.625, 0.75, 0.875]), **each))
    accuracy[0] = 0.875  # the target can be kept
    return Fleet(
        variants=tuple("abc"[:classes]),
        rate=np.array(draw(st.lists(st.sampled_from(DYADIC), **each))),
        accuracy=np.array(accuracy),
        count=np.array(draw(st.lists(st.integers(1, 3), **each))),
        buffer=draw(st.sampled_from([None, None, 1, 2, 3])),
    )


@st.composite
def sure_fleets(draw: st.DrawFn) -> Fleet:
    """The same with confidence, of all classes or of all but one."""
    fleet = sure(draw(fleets()))
    silent = draw(st.sampled_from([None, None, *range(1, len(fleet.rate))]))
    if silent is not None:
        assert fleet.confidence is not None
        fleet.confidence.mass[silent] = 0.0
        fleet.confidence.expected[silent] = fleet.accuracy
    return fleet


@st.composite
def answers_of(draw: st.DrawFn, fleet: Fleet) -> AnswerSample:
    """Some requests, each class's bin at them, and how right it is."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    shape = (draw(st.integers(1, 12)), len(fleet.rate))
    return AnswerSample(random.integers(0, 3, shape), random.random(shape))


@st.composite
def arrivals_to(draw: st.DrawFn, fleet: Fleet, *, steady: bool = False) -> Arrivals:
    """Arrivals at loads from light to too much, relative to all servers."""
    rate = float(fleet.capacity.sum())
    kinds = ["poisson", "phases"] if steady else ["poisson", "phases", "constant"]
    kind = draw(st.sampled_from(kinds))
    if kind == "constant":
        return constant(draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0])))
    load = st.floats(0.1, 1.4)
    if kind == "poisson":
        return poisson(draw(load) * rate)
    return phases(
        (draw(st.floats(1, 20)), draw(load) * rate, None),
        (draw(st.floats(1, 20)), draw(load) * rate, 0.75),
    )


@st.composite
def simple_systems(draw: st.DrawFn, policy: str, distribution: str | None = None) -> Scenario:
    """What all engines can run: own queues, one request at a time, no deadline, no failures."""
    fleet = draw(sure_fleets() if policy in SETTLING else fleets())
    means = (1 / fleet.rate).tolist()
    return Scenario(
        fleet=fleet,
        service=tuple(
            draw(service_times(mean_s))
            if distribution is None
            else ServiceTime(distribution, mean_s)
            for mean_s in means
        ),
        arrivals=draw(arrivals_to(fleet, steady=distribution == "exponential")),
        policy=policy,
        options=draw(options_of(policy, {})),
        target=TARGET,
        folder=HERE,
        answers=draw(answers_of(fleet)) if policy in SETTLING else None,
    )


@st.composite
def systems(draw: st.DrawFn, policy: str, *, hurried: bool = False) -> Scenario:
    """Anything; where they are hurried, with a deadline."""
    fleet = draw(sure_fleets() if policy in SETTLING else fleets())
    exact = draw(st.booleans())  # everything falls on a grid, and much of it together
    service = tuple(
        ServiceTime("deterministic", 1 / rate) if exact else draw(service_times(1 / rate))
        for rate in fleet.rate.tolist()
    )
    arrivals = constant(draw(st.sampled_from(DYADIC))) if exact else draw(arrivals_to(fleet))
    # Where sums are not exact, a deadline that is a sum of service times would be met or missed by
    # the rounding of whoever adds them up; such ties belong to the exact times.
    apart_s = st.floats(0.11, 6).map(lambda limit_s: limit_s + math.pi / 1e4)
    limit_s = st.sampled_from([0.25, 0.5, 1.0, 2.5]) if exact else apart_s
    names = st.sampled_from(fleet.variants)
    batches = draw(st.tuples(*(st.none() | batch_rules(1 / rate) for rate in fleet.rate.tolist())))
    failures, outages = {}, []
    if draw(st.booleans()):
        if not exact and draw(st.booleans()):
            times_s = st.floats(0.2, 10)
            failures = draw(st.dictionaries(names, st.builds(Failures, times_s, times_s)))
        for name in draw(st.lists(names, max_size=2)):
            count = draw(st.integers(1, int(fleet.count[fleet.variants.index(name)])))
            at_s, for_s = draw(st.tuples(st.sampled_from([0.5, 3.0, 7.0]), st.sampled_from(DYADIC)))
            outages.append(SetOutage(name, count, at_s, for_s))
    kinds: list[Literal["per-server", "central"]] = ["per-server", "per-server", "central"]
    queue = draw(st.sampled_from(kinds))
    room = 1 if queue == "central" else fleet.buffer or math.inf
    return Scenario(
        fleet=fleet,
        service=service,
        arrivals=arrivals,
        policy=policy,
        options=draw(options_of(policy, failures)),
        target=TARGET,
        deadline_s=draw(limit_s if hurried else st.none() | limit_s),
        late=draw(st.sampled_from(["drop", "serve"])),
        queue=queue,
        batches=tuple(filled(batch, 1 if failures else room) for batch in batches),
        failures=failures,
        outages=tuple(outages),
        folder=HERE,
        answers=draw(answers_of(fleet)) if policy in SETTLING else None,
    )


@st.composite
def shared(draw: st.DrawFn, of: st.SearchStrategy[Scenario], *, alone: bool = True) -> Scenario:
    """The same where some classes share devices, of which runs may take several slots.

    Where it may be, some hold one variant alone at a time.
    """
    scenario = draw(of)
    fleet, classes = scenario.fleet, len(scenario.fleet.rate)
    # Predictions divide by slots, and where times are exact, those must be, too.
    exact = {time.distribution for time in scenario.service} == {"deterministic"}
    slots = draw(st.lists(st.sampled_from([1, 2] if exact else [1, 2, 3]), min_size=1, max_size=2))
    each = {"min_size": classes, "max_size": classes}
    device = draw(st.lists(st.integers(-1, len(slots) - 1), **each))
    device[0] = 0
    most = [slots[d] if d >= 0 else 1 for d in device]
    devices = DeviceSlots(
        names=tuple("xy"[: len(slots)]),
        slots=np.array(slots),
        exclusive=np.array([alone and draw(st.booleans()) for _ in slots]),
        overhead_s=np.array([draw(st.sampled_from([0.0, 0.0, 0.125]))] + [0.0] * (len(slots) - 1)),
        device=np.array(device),
        taken=np.minimum(draw(st.lists(st.integers(1, 3), **each)), most),
        load_s=np.array(draw(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), **each))),
    )
    # The fleet's classes may be put into another order again: equal times, by accuracy.
    return replace(scenario, fleet=replace(fleet, devices=devices))


@st.composite
def sharing(
    draw: st.DrawFn, one: st.SearchStrategy[Scenario], other: st.SearchStrategy[Scenario]
) -> list[Scenario]:
    """Two tasks whose servers share the devices of the first."""
    first, second = draw(shared(one)), draw(other)
    devices, classes = first.fleet.devices, len(second.fleet.rate)
    assert devices is not None
    last = len(devices.slots) - 1
    on = np.array(draw(st.lists(st.integers(-1, last), min_size=classes, max_size=classes)))
    on[0] = 0
    most = [devices.slots[d] if d >= 0 else 1 for d in on]
    wide = draw(st.lists(st.integers(1, 3), min_size=classes, max_size=classes))
    load_s = draw(
        st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=classes, max_size=classes)
    )
    own = devices._replace(device=on, taken=np.minimum(wide, most), load_s=np.array(load_s))
    return [first, replace(second, fleet=replace(second.fleet, devices=own))]


@st.composite
def options_of(draw: st.DrawFn, policy: str, failures: object) -> dict[str, object]:
    """Options of a policy."""
    if policy == PATIENT:
        return {"hold": draw(st.integers(1, 3))}
    if policy == "escalate":  # a second answer pays at a price, and not always
        # At prices beyond 1e15 s, as small sites come to, rounding decides.
        return {"price": draw(st.sampled_from([0.5, 5.0, 20.0])), "step": 0.02}
    if policy == SOONEST:
        return {"looks": draw(st.sampled_from([0.3, 1.0]))}
    if policy not in (VERSATILE, UNSURE):
        return {"rate": 0.6} if policy.startswith("r-") else {}
    least = draw(st.integers(1, 2))
    again = {"again": draw(st.integers(0, 2))} if policy == UNSURE else {}
    return again | {
        "mode": draw(st.integers(0, 4)),
        "hold": draw(st.sampled_from([0, 0, 1, 2])),
        "least": 1 if failures else least,  # as `filled` says
        "most": draw(st.integers(1, 4)),
        "stale_s": draw(st.sampled_from([0.0, 0.0, 0.75, 3.0])),
    }


@st.composite
def batch_rules(draw: st.DrawFn, mean_s: float) -> Batch:
    """Sizes with and without 1, times that need not grow with them; exact parts of exact times."""
    sizes = draw(st.sampled_from([(1, 2), (2,), (1, 3, 4), (2, 5, 8)]))
    service_s = tuple(mean_s * draw(st.sampled_from([1.0, 1.25, 1.5, 2.0])) for _ in sizes)
    least, most = sorted(draw(st.tuples(st.sampled_from(sizes), st.sampled_from(sizes))))
    pad, wait = draw(st.booleans()), draw(st.sampled_from([0.0, 0.0, 0.5, 3.0]))
    return Batch(sizes, service_s, least, most, pad, wait * mean_s)


def filled(batch: Batch | None, room: float) -> Batch | None:
    """The same where nothing waits for more than there is room for.

    Where servers fail and return for ever, what waits for a batch would never leave.
    """
    return batch if batch is None or batch.min <= room else replace(batch, min=1)


def close(one: Any, other: Any, where: str = "") -> None:
    """Equal but for the last digits of sums and logarithms."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            close(value, other[name], f"{where}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for number, (here, there) in enumerate(zip(one, other, strict=True)):
            close(here, there, f"{where}[{number}]")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-9, nan_ok=True), where
    else:
        assert one == other, where
