"""The engines against the plain simulator, event for event, and against each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fleets import sure
from hypothesis import Phase, given, note, settings
from hypothesis import strategies as st
from plain_site import ANSWERED, DROPPED, LATE, REJECTED, MarkovSite
from systems import (
    HERE,
    PATIENT,
    SOONEST,
    UNSURE,
    VERSATILE,
    assert_same,
    compare,
    constant,
    poisson,
    records,
    shared,
    simple_systems,
    systems,
)

from inferway.deployment import Batch, ServiceTime
from inferway.dispatch import POLICIES
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.twin import Failures, Scenario, SetOutage
from inferway.twin.engine import engine_of, kinds_of
from inferway.twin.kernel.escalation import AnswerSample

REQUESTS = 80
# To shrink a path takes minutes and makes it little shorter; the first difference says it all.
QUICK = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
WIDE = settings(QUICK, max_examples=150)
seeds = st.integers(0, 2**31)


@QUICK
@given(systems(VERSATILE), seeds)
def test_general_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(systems(PATIENT), seeds)
def test_batches_by_the_rule_of_the_file_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(systems(UNSURE), seeds)
def test_second_answers_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(systems("escalate"), seeds)
def test_escalation_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(simple_systems("tad-op"), seeds)
def test_lengths_alone_are_enough_for_most_policies(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(shared(systems(VERSATILE)), seeds)
def test_shared_devices_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(shared(systems(PATIENT)), seeds)
def test_batches_on_shared_devices_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(shared(systems(UNSURE)), seeds)
def test_second_answers_on_shared_devices_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


def on_device(scenario: Scenario, slots: int, taken: tuple[int, int]) -> Scenario:
    """The same where both classes share a device."""
    devices = DeviceSlots(
        names=("x",),
        slots=np.array([slots]),
        exclusive=np.array([False]),
        overhead_s=np.zeros(1),
        device=np.array([0, 0]),
        taken=np.array(taken),
    )
    return replace(scenario, fleet=replace(scenario.fleet, devices=devices))


def test_runs_that_are_overdue_give_their_slots_at_once() -> None:
    scenario = two_classes(arrivals=poisson(0.5), options={"mode": 3})
    compare(on_device(scenario, 3, (1, 3)), 400, 1, "general")


@QUICK
@given(shared(simple_systems("tad-op")), seeds)
def test_a_server_is_idle_where_its_device_is(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@QUICK
@given(shared(systems("priced")), seeds)
def test_queues_are_weighed_at_devices_event_for_event(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare(scenario, REQUESTS, seed, "general")


@pytest.mark.parametrize("policy", ["deadline", "escalate", SOONEST])
def test_deadlines_at_shared_devices_event_for_event(policy: str) -> None:
    @QUICK
    @given(shared(systems(policy, hurried=True)), seeds)
    def check(scenario: Scenario, seed: int) -> None:
        note(str(scenario))
        compare(scenario, REQUESTS, seed, "general")

    check()


@pytest.mark.parametrize(("slots", "taken"), [(1, (1, 1)), (2, (1, 1)), (2, (1, 2)), (3, (2, 1))])
def test_late_ones_are_left_out_at_shared_devices(slots: int, taken: tuple[int, int]) -> None:
    scenario = two_classes(
        policy=SOONEST, arrivals=poisson(3.0), deadline_s=2.5001, late="drop", options={}
    )
    left = compare(on_device(scenario, slots, taken), 600, 1, "general")
    assert any(one.outcome == REJECTED for one in left)


@QUICK
@given(simple_systems("tad-op", "deterministic"), seeds)
def test_ordered_is_general(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    expected = compare(scenario, REQUESTS, seed, "ordered")
    assert_same(records(scenario, REQUESTS, seed, "general"), expected)


@QUICK
@given(simple_systems("tad-op", "exponential"), seeds)
def test_markov_count_for_count(scenario: Scenario, seed: int) -> None:
    note(str(scenario))
    compare_counts(scenario, seed)


def compare_counts(scenario: Scenario, seed: int) -> None:
    engine = engine_of(scenario, seed=seed, kind="markov")
    engine.count_anew()
    engine.advance(REQUESTS)
    engine.drain()
    expected = MarkovSite(scenario, seed).count(REQUESTS)
    tally = engine.tally
    assert tally.arrived.tolist() == expected.arrived
    assert tally.rejected.tolist() == expected.rejected
    assert tally.sent.tolist() == tally.answered.tolist() == expected.sent
    np.testing.assert_allclose(tally.response_s, expected.response_s, rtol=1e-9)
    assert engine.site.balance[0] == pytest.approx(expected.balance, abs=1e-9)
    assert engine.now_s == pytest.approx(expected.now_s, rel=1e-9)


def two_classes(**options: object) -> Scenario:
    """Two fast servers and one slow one."""
    fleet = Fleet(("a", "b"), np.array([2.0, 0.5]), np.array([0.6, 0.9]), np.array([2, 1]))
    given: dict[str, object] = {
        "service": (ServiceTime("exponential", 0.5), ServiceTime("exponential", 2.0)),
        "arrivals": poisson(3.0),
        "policy": VERSATILE,
        "target": 0.65,
        "folder": HERE,
    }
    return Scenario(fleet=fleet, **{**given, **options})  # type: ignore[arg-type]


def test_queues_longer_than_the_view_at_first_has_places() -> None:
    scenario = two_classes(
        arrivals=poisson(20.0),
        deadline_s=9.0,
        late="serve",
        failures={"a": Failures(15.0, 5.0)},
        outages=(SetOutage("b", 1, 10.0, 3.0),),
    )
    left = compare(scenario, 400, 3, "general")
    assert sum(one.outcome == LATE for one in left) > 100


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_blocks_change_nothing(block: int) -> None:
    """Nor do the pool's and the view's growth, which falls on the last arrival of many blocks."""
    scenario, requests = two_classes(arrivals=poisson(30.0), deadline_s=1e3, late="serve"), 3000
    whole = records(scenario, requests, 5, "general")
    assert max(one.left_s - one.arrived_s for one in whole) > 300
    assert_same(records(scenario, requests, 5, "general", block), whole)


def test_chunks_of_the_workload_change_nothing() -> None:
    scenario = replace(two_classes(), policy="tad-op")
    whole = records(scenario, 70_000, 5, "general")
    assert_same(records(scenario, 70_000, 5, "general", 4096), whole)


def test_everything_at_once() -> None:
    """Arrivals, ends of service, failures and returns fall on the same instants."""
    scenario = two_classes(
        arrivals=constant(4.0),
        service=(ServiceTime("deterministic", 0.5), ServiceTime("deterministic", 2.0)),
        outages=(SetOutage("a", 2, 3.0, 1.0), SetOutage("a", 1, 4.0, 0.5)),
        deadline_s=1.0,
    )
    compare(scenario, 200, 1, "general")


def test_a_service_may_begin_at_the_very_deadline() -> None:
    """Servers are twice as slow as predicted: what was to be done by 4 s begins then."""
    scenario = Scenario(
        fleet=Fleet(("a",), np.array([0.5]), np.array([0.9]), np.array([1])),
        service=(ServiceTime("deterministic", 4.0),),
        arrivals=constant(1.0),
        policy=VERSATILE,
        measured_s={"a": {1: (2.0, 2.0)}},
        deadline_s=3.0,
        folder=HERE,
    )
    left = compare(scenario, 40, 1, "general")
    assert [one.started_s for one in left if one.outcome == LATE][:2] == [0.0, 4.0]


@pytest.mark.parametrize("late", ["drop", "serve"])
def test_the_first_answer_goes_out_at_the_deadline(late: str) -> None:
    """b is asked again, predicted to take .75 s, and takes 2 s: then nobody waits any longer."""
    scenario = two_classes(
        arrivals=constant(0.25),
        service=(ServiceTime("deterministic", 0.5), ServiceTime("deterministic", 2.0)),
        policy=UNSURE,
        options={"again": 1},
        measured_s={"a": {1: (0.5, 0.5)}, "b": {1: (0.75, 0.75)}},
        deadline_s=1.5,
        late=late,
        answers=AnswerSample(np.zeros((1, 2), np.int64), np.zeros((1, 2))),
    )
    scenario = replace(scenario, fleet=sure(scenario.fleet))
    left = compare(scenario, 10, 1, "general")
    assert {one.server for one in left} <= {0, 1}
    assert {one.outcome for one in left} == {ANSWERED}
    assert [one.left_s - one.arrived_s for one in left] == pytest.approx([1.5] * 10)
    # b's server goes away before the deadline, and at once the first answer is sent.
    outages = tuple(SetOutage("b", 1, 4.0 * n + 1.0, 1.0) for n in range(10))
    left = compare(replace(scenario, outages=outages), 10, 1, "general")
    assert [one.left_s - one.arrived_s for one in left] == pytest.approx([1.0] * 10)
    # In time, it is b's that is sent.
    left = compare(replace(scenario, deadline_s=2.5), 10, 1, "general")
    assert [one.server for one in left] == [2] * 10
    assert [one.left_s - one.arrived_s for one in left] == pytest.approx([2.5] * 10)


@pytest.mark.parametrize("late", ["drop", "serve"])
def test_who_waits_for_a_batch_leaves_at_the_deadline(late: str) -> None:
    """Every 2 s one comes; two are waited for, and two answers take as long as one."""
    scenario = Scenario(
        fleet=Fleet(("a",), np.array([2.0]), np.array([0.9]), np.array([1])),
        service=(ServiceTime("deterministic", 0.5),),
        arrivals=constant(0.5),
        policy="fastest-only",
        batches=(Batch((1, 2), (0.5, 0.5), 2, 2),),
        deadline_s=1.0,
        late=late,  # type: ignore[arg-type]
    )
    left = compare(scenario, 10, 1, "general")
    stays_s = [one.left_s - one.arrived_s for one in left]
    if late == "drop":
        assert stays_s == pytest.approx([1.0] * 10)
        assert {one.outcome for one in left} == {DROPPED}
        left = compare(replace(scenario, deadline_s=2.25), 10, 1, "general")
        stays_s = [one.left_s - one.arrived_s for one in left]
        assert {one.outcome for one in left} == {ANSWERED, LATE}
    assert stays_s == pytest.approx([2.5, 0.5] * 5)


@pytest.mark.parametrize("mode", [1, 3])
def test_who_is_served_in_one_batch_is_waited_for_once(mode: int) -> None:
    """Predicted waits, with batches begun, waited for and broken off."""
    scenario = two_classes(
        arrivals=constant(4.0),
        service=(ServiceTime("deterministic", 0.5), ServiceTime("deterministic", 2.0)),
        batches=(None, Batch((1, 2, 3), (2.0, 2.5, 3.0), 1, 3)),
        options={"mode": mode, "least": 2, "most": 4, "stale_s": 2.25},
        deadline_s=3.5,
        outages=(SetOutage("b", 1, 4.25, 0.5), SetOutage("a", 1, 6.0, 1.5)),
    )
    compare(scenario, 200, 1, "general")
    compare(replace(scenario, arrivals=poisson(3.0)), 200, 1, "general")


@pytest.mark.slow
def test_deadlines_and_holding_back_in_rings() -> None:
    for queue in ("central", "per-server"):
        scenario = two_classes(
            arrivals=constant(4.0),
            service=(ServiceTime("deterministic", 0.5), ServiceTime("deterministic", 2.0)),
            deadline_s=1.0,
            queue=queue,
            options={"hold": 2, "mode": 1},
        )
        compare(scenario, 200, 1, "ordered")


@pytest.mark.slow
@pytest.mark.parametrize("policy", [VERSATILE, PATIENT, UNSURE, *POLICIES])
def test_every_policy_event_for_event(policy: str) -> None:
    @WIDE
    @given(systems(policy), seeds)
    def check(scenario: Scenario, seed: int) -> None:
        note(str(scenario))
        compare(scenario, REQUESTS, seed, "general")

    check()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [VERSATILE, PATIENT, UNSURE, *POLICIES])
def test_every_policy_ordered_is_general(policy: str) -> None:
    @WIDE
    @given(simple_systems(policy, "deterministic"), seeds)
    def check(scenario: Scenario, seed: int) -> None:
        note(str(scenario))
        compare(scenario, REQUESTS, seed, "ordered")

    check()


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_markov_and_with_times(policy: str) -> None:
    @WIDE
    @given(simple_systems(policy, "exponential"), seeds)
    def check(scenario: Scenario, seed: int) -> None:
        note(str(scenario))
        if "markov" in kinds_of(scenario):
            compare_counts(scenario, seed)
        # A deadline that nobody misses makes the engine keep up every time of the view.
        timed = replace(scenario, deadline_s=1e12, late="serve")
        expected = records(scenario, REQUESTS, seed, "general")
        assert_same(records(timed, REQUESTS, seed, "general"), expected)

    check()
