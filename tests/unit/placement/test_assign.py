"""Assign: what is forecast, when devices change hands, and in which order."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from inferway.dispatch.joint_bounds import JointMean
from inferway.placement.assign import Assign, DemandForecast, Key, Shift, Step, pairs
from inferway.placement.assignment import Asked, Option, Slots, fluid_bound
from inferway.placement.assignment import assign as solve


def option(task: str, variant: str, device: str, rate: float, accuracy: float) -> Option:
    return Option(task, variant, device, rate, 1.0 / rate, accuracy, 0.0, 0.0, 1, None, 1.0)


LOW, HIGH = ("a", "low", "gpu"), ("a", "high", "gpu")
OTHER = ("b", "low", "gpu")
OPTIONS = [
    option(*LOW, 100.0, 0.7),
    option(*HIGH, 20.0, 0.9),
    option(*OTHER, 100.0, 0.7),
    option("b", "high", "gpu", 20.0, 0.9),
]


def policy(peak: float | str = 1.0, slots: int = 4, **means: JointMean) -> Assign:
    tasks = {"a": Asked(0.0), "b": Asked(0.0)}
    return Assign(
        Slots({"gpu": slots}),
        OPTIONS,
        tasks,
        slot_s=10.0,
        peak=peak,
        best_effort=False,
        means=means,
    )


def test_growth_is_followed_at_once_and_decline_step_by_step() -> None:
    forecast = DemandForecast(["a"], 1.2)
    assert forecast.see({"a": 10.0})[0]["a"] == pytest.approx(12.0)
    assert forecast.see({"a": 20.0})[0]["a"] == pytest.approx(24.0)
    assert forecast.see({"a": 10.0})[0]["a"] == pytest.approx(1.2 * 12.5)
    # Nothing is known of a task that nobody asks for, but that there is one.
    assert forecast.see({})[0]["a"] == pytest.approx(1.2 * 6.25)


def test_what_is_expected_is_the_rate_without_its_peak() -> None:
    forecast = DemandForecast(["a"], 1.5)
    assert forecast.see({"a": 10.0}) == ({"a": 15.0}, {"a": 10.0})


def test_copies_answer_what_is_expected_best_and_have_room_for_the_peak() -> None:
    # Two accurate copies of each carry 40/s, and have no room for 44/s; the fast ones have.
    rates, held = {"a": 36.0, "b": 36.0}, {HIGH: 2, ("b", "high", "gpu"): 2}
    assert policy(1.1).step(rates, held).copies == held
    found = policy(1.25).step(rates, held)
    assert found.rates_per_s == {"a": 45.0, "b": 45.0}
    # Three accurate copies have room for one task's peak, and a fast one for the other's.
    assert sorted(found.copies.values()) == [1, 3]
    assert all(
        found.copies.get((task, "high", "gpu")) == 3 or found.copies.get((task, "low", "gpu")) == 1
        for task in ("a", "b")
    )
    assert found.reason == "a, b would not all be served"
    # It is told of what is expected, which these answer in full.
    assert found.accuracy == pytest.approx(0.8)
    assert found.accuracy_before == pytest.approx(0.9)


def test_a_task_with_a_target_keeps_it_at_its_peak() -> None:
    tasks = {"a": Asked(0.0, target=0.75)}
    assign = Assign(Slots({"gpu": 2}), OPTIONS, tasks, slot_s=10.0, peak=1.5, best_effort=False)
    found = assign.step({"a": 50.0}, {LOW: 2})
    assert found.copies == {LOW: 1, HIGH: 1}
    # At 75/s, 20/s at 0.9 make up for no more than 60/s at 0.7.
    assert found.accuracy == pytest.approx(min(1.0, 80 / 75) * 0.75, abs=0.01)


def test_no_copies_are_worth_more_than_the_bound_with_their_reserve() -> None:
    slots = Slots({"gpu": 3})
    rates, reserves = {"a": 30.0, "b": 30.0}, {"a": 10.0, "b": 40.0}
    asked = {name: Asked(rates[name], reserves[name]) for name in rates}
    found = solve(slots, OPTIONS, asked)
    assert found is not None
    bound = fluid_bound(slots, OPTIONS, rates, reserves)
    assert found.worth <= bound + 1e-9
    assert bound < fluid_bound(slots, OPTIONS, rates)
    carried = {"a": 0.0, "b": 0.0}
    for one in OPTIONS:
        carried[one.task] += found.copies.get(one.key, 0) * one.carried_per_s
    assert carried["a"] >= 40.0
    assert carried["b"] >= 70.0


def test_a_percentile_is_of_the_last_slots() -> None:
    forecast = DemandForecast(["a"], "p95")
    for rate in [20.0, *[10.0] * 29]:
        asked = forecast.see({"a": rate})[0]["a"]
    assert 10.0 < asked < 20.0
    assert forecast.see({"a": 10.0})[0]["a"] == pytest.approx(10.0, abs=1e-3)  # it is forgotten


def test_devices_go_to_the_task_that_asks_for_more() -> None:
    assign = policy()
    held = {HIGH: 2, ("b", "high", "gpu"): 2}
    calm = assign.step({"a": 30.0, "b": 30.0}, held)
    assert calm.copies == held
    assert calm.moves == ()
    busy = assign.step({"a": 250.0, "b": 10.0}, held)
    assert busy.copies[LOW] >= 2
    assert sum(n for key, n in busy.copies.items() if key[0] == "b") >= 1
    assert "a would not all be served" in busy.reason
    # Two copies carry 40/s of the 250/s of a; b has 20/s by its moving mean.
    assert busy.accuracy_before is not None
    assert busy.accuracy is not None
    assert busy.accuracy_before == pytest.approx((40 + 20) * 0.9 / 270)
    assert busy.accuracy_before < busy.accuracy < 0.9
    assert len(busy.moves) >= 2
    told = busy.to_json()
    assert told["moves"][0]["to"]["device"] == "gpu"
    assert told["rates_per_s"] == busy.rates_per_s
    assert told["accuracy_before"] == busy.accuracy_before
    assert told["accuracy"] == busy.accuracy


def test_targets_over_several_tasks_are_kept_by_the_copies_together() -> None:
    # Task a has 60 requests a second, b has 20, and four copies carry what they have.
    rates, held = {"a": 60.0, "b": 20.0}, {LOW: 2, ("b", "high", "gpu"): 1}
    both = JointMean(("a", "b"), accuracy=0.85)
    found = policy(both=both).step(rates, held)
    assert found.copies == {HIGH: 3, ("b", "high", "gpu"): 1}
    assert found.reason == "the target both would not be kept"
    before, after = found.targets["both"]
    # By the copies of before, the program serves as much of a as the target lets pass.
    assert before == pytest.approx(0.85)
    assert after == pytest.approx(0.9)
    assert found.to_json()["targets"] == {"both": {"before": before, "after": after}}
    # Weighted by answers: what b is ahead of the target pays for some of a.
    kept = policy(both=JointMean(("a", "b"), accuracy=0.75)).step(rates, held)
    assert kept.targets == {} or kept.targets["both"][0] == pytest.approx(
        (60 * 0.7 + 20 * 0.9) / 80
    )
    # Without any, nothing is told of them.
    assert "targets" not in policy().step(rates, held).to_json()


def test_an_energy_that_several_tasks_have_together_is_kept() -> None:
    options = [replace(one, energy=4.0 if one.variant == "high" else 1.0) for one in OPTIONS]
    tasks = {"a": Asked(0.0), "b": Asked(0.0)}
    every: dict[str, Any] = {"slot_s": 10.0, "peak": 1.0, "best_effort": False}
    means = {"joules": JointMean(("a", "b"), energy=2.5)}
    free = Assign(Slots({"gpu": 4}), options, tasks, **every)
    kept = Assign(Slots({"gpu": 4}), options, tasks, means=means, **every)
    rates, held = {"a": 20.0, "b": 20.0}, {LOW: 1, OTHER: 1}
    # Of equal rates, half of the answers may take 4 J and half 1 J.
    assert free.step(rates, held).accuracy == pytest.approx(0.9)
    found = kept.step(rates, held)
    assert found.accuracy == pytest.approx(0.8)
    assert found.targets["joules"] == (pytest.approx(1.0), pytest.approx(2.5))


def test_what_is_told_is_an_accuracy_whatever_a_move_costs() -> None:
    # As much as three copies carry, and one copy of four: it takes a second to load each.
    served = policy().step({"a": 0.0, "b": 900.0}, {OTHER: 3, LOW: 1})
    assert served.moves == ()
    assert served.accuracy == served.accuracy_before
    assert served.accuracy == pytest.approx((300 * 0.7 + 0.1 * 0.7) / 900.1)
    better = policy().step({"a": 10.0, "b": 10.0}, {LOW: 1, OTHER: 1})
    assert better.accuracy_before == pytest.approx(0.7)
    assert better.accuracy == pytest.approx(0.9)
    assert better.reason == "a mean accuracy of 0.9000 where it would be 0.7000"


def test_of_copies_that_devices_do_not_hold_no_accuracy_is_told() -> None:
    found = policy().step({"a": 10.0, "b": 10.0}, {LOW: 9, OTHER: 1})
    assert found.accuracy_before is None
    assert found.accuracy == pytest.approx(0.9)
    assert found.reason.startswith("the devices do not hold what is there")
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["accuracy_before"] is None


def test_what_gains_less_than_it_costs_stays() -> None:
    assign = policy()
    # A copy of the accurate variant more for 20/s: better by a hair than what is there.
    held = {LOW: 1, HIGH: 1, ("b", "high", "gpu"): 2}
    assert assign.step({"a": 21.0, "b": 40.0}, held).copies == held


def test_moves_are_paired_by_device() -> None:
    found = pairs({LOW: 2, OTHER: 1}, {LOW: 1, HIGH: 2, OTHER: 1})
    assert found == [(LOW, HIGH), (None, HIGH)]


def done(shift: Shift) -> list[Step]:
    steps = []
    while (step := shift.next()) is not None:
        steps.append(step)
    return steps


def test_a_copy_is_drained_before_its_place_is_given_away_and_ready_before_it_serves() -> None:
    shift = Shift(Slots({"gpu": 4}), OPTIONS, {LOW: 2, OTHER: 2})
    shift.wanted = {LOW: 3, OTHER: 1}
    assert done(shift) == [Step("retire", OTHER)]
    assert shift.serving == Counter({LOW: 2, OTHER: 1})
    assert done(shift) == []  # its place is not free yet
    shift.drained(OTHER)
    assert done(shift) == [Step("load", LOW)]
    assert shift.serving[LOW] == 2
    assert shift.there == {LOW: 3, OTHER: 1}
    shift.loaded(LOW)
    assert shift.serving == Counter({LOW: 3, OTHER: 1})
    assert not shift.under_way


def test_a_quarter_of_a_device_is_on_the_way_at_most() -> None:
    shift = Shift(Slots({"gpu": 8}), OPTIONS, {LOW: 8})
    shift.wanted = {HIGH: 8}
    assert done(shift) == [Step("retire", LOW)] * 2
    shift.drained(LOW)
    assert done(shift) == [Step("load", HIGH)]
    shift.loaded(HIGH)
    assert done(shift) == [Step("retire", LOW)]


def test_the_last_copy_of_a_task_goes_when_another_is_ready() -> None:
    shift = Shift(
        Slots({"gpu": 2, "cpu": 1}),
        [*OPTIONS, option("a", "low", "cpu", 5.0, 0.7)],
        {LOW: 1, OTHER: 1},
    )
    cpu = ("a", "low", "cpu")
    shift.wanted = {cpu: 1, OTHER: 2}
    assert done(shift) == [Step("load", cpu)]
    shift.loaded(cpu)
    assert done(shift) == [Step("retire", LOW)]
    # Where nothing else can make room, it goes first.
    alone = Shift(Slots({"gpu": 1}), OPTIONS, {LOW: 1})
    alone.wanted = {HIGH: 1}
    assert done(alone) == [Step("retire", LOW)]


def test_every_state_of_a_shift_keeps_to_the_slots() -> None:
    slots = Slots({"gpu": 4})
    shift = Shift(slots, OPTIONS, {LOW: 4})
    shift.wanted = {HIGH: 1, OTHER: 2, LOW: 1}
    going: list[Key] = []
    coming: list[Key] = []
    for _ in range(40):
        for step in done(shift):
            (going if step.kind == "retire" else coming).append(step.key)
        used = sum((shift.serving + shift.draining + shift.loading).values())
        assert used <= 4
        if going:
            shift.drained(going.pop())
        elif coming:
            shift.loaded(coming.pop())
    assert {key: n for key, n in shift.serving.items() if n} == shift.wanted
