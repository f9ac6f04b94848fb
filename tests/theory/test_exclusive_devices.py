"""The twin where a device holds one variant at a time, against times computed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from plain_site import Left
from systems import (
    HERE,
    compare,
    compare_jointly,
    constant,
    poisson,
    ran,
    shared,
    sharing,
    simple_systems,
    systems,
)
from test_twin_paths import QUICK, seeds

from inferway.deployment import ServiceTime
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.twin import Scenario, run, run_together
from inferway.twin.engine import kinds_of

LOTS, TURNS = "./policies/lots.py:Lots", "./policies/turns.py:Turns"
MEAN_S, LOAD_S = (0.5, 0.75), (1.0, 2.0)


def changing(
    arrivals: object,
    slots: int = 1,
    *,
    mean_s: tuple[float, float] = MEAN_S,
    load_s: tuple[float, float] = LOAD_S,
    taken: tuple[int, int] = (1, 1),
    **options: object,
) -> Scenario:
    """Two classes of many servers, the faster one first, on a device that holds one of both."""
    fleet = Fleet(
        ("a", "b"),
        1 / np.array(mean_s),
        np.array([0.8, 0.9]),
        np.array([400, 400]),
        devices=DeviceSlots(
            names=("x",),
            slots=np.array([slots]),
            exclusive=np.array([True]),
            overhead_s=np.zeros(1),
            device=np.zeros(2, np.int64),
            taken=np.array(taken),
            load_s=np.array(load_s),
        ),
    )
    given: dict[str, object] = {"policy": TURNS, "folder": HERE}
    service = tuple(ServiceTime("deterministic", one) for one in mean_s)
    return Scenario(fleet, service, arrivals, **{**given, **options})  # type: ignore[arg-type]


def sojourns(scenario: Scenario, requests: int) -> list[tuple[int, float]]:
    """Class and response time of each request, in the order of arrival."""
    found, _ = ran(scenario, requests, 1, "general")
    in_order = sorted(found, key=lambda one: one.arrived_s)
    return [(class_of(one), one.left_s - one.arrived_s) for one in in_order]


def class_of(one: Left) -> int:
    return int(one.server >= 400)


def test_alternating_requests_change_the_device_each_time() -> None:
    # It holds the fastest at the start; nothing waits.
    told = sojourns(changing(constant(1 / 5)), 5)
    assert told == [(0, 0.5), (1, 2.75), (0, 1.5), (1, 2.75), (0, 1.5)]
    # The first of each pair waits for what is left of the second one's change and run.
    told = sojourns(changing(constant(1 / 2.5)), 5)
    assert told == [(0, 0.5), (1, 2.75), (0, 1.75), (1, 2.75), (0, 1.75)]
    result = run(changing(constant(1 / 2.5)), queries=2_000, warmup=2, seed=1)
    assert result.response_time_s.mean == pytest.approx((1.75 + 2.75) / 2)
    assert result.devices == {"x": pytest.approx((1.5 + 2.75) / 5, rel=1e-3)}
    assert result.changes_per_s == {"x": pytest.approx(1 / 2.5, rel=1e-3)}


def test_those_of_one_variant_that_follow_each_other_share_a_change() -> None:
    told = sojourns(changing(constant(1.0), options={"first": 1, "second": 3}), 6)
    # Arrivals at 1, 2, ... s; b is loaded from 2 to 4 s, a from 6.25 to 7.25, b from 7.75 to 9.75.
    starts = [1.0, 4.0, 4.75, 5.5, 7.25, 9.75]
    expected = [starts[i] + MEAN_S[k] - (i + 1) for i, k in enumerate((0, 1, 1, 1, 0, 1))]
    assert [one for _, one in told] == pytest.approx(expected)


def test_a_run_takes_its_own_slots_and_a_change_all_of_them() -> None:
    # Two b at once after a change, which waits for both a.
    scenario = changing(
        constant(4.0), 2, options={"first": 2, "second": 2}, mean_s=(1.0, 2.0), load_s=(0.5, 3.0)
    )
    ends = [0.25 + 1.0, 0.5 + 1.0, *[1.5 + 3.0 + 2.0] * 2, *[6.5 + 0.5 + 1.0] * 2]
    expected = [end - 0.25 * (i + 1) for i, end in enumerate(ends)]
    assert [one for _, one in sojourns(scenario, 6)] == pytest.approx(expected)


@pytest.mark.parametrize("law", ["deterministic", "exponential"])
def test_one_slot_serves_in_order_with_the_changes_in_between(law: str) -> None:
    scenario = changing(poisson(0.3), policy=LOTS)
    scenario = replace(scenario, service=tuple(ServiceTime(law, one) for one in MEAN_S))
    found, engine = ran(scenario, 3_000, 3, "general")
    free_s, held, changes = 0.0, 0, 0
    for one in sorted(found, key=lambda one: one.arrived_s):
        k, starts_s = class_of(one), max(free_s, one.arrived_s)
        if k != held:
            starts_s, held, changes = starts_s + LOAD_S[k], k, changes + 1
        assert one.started_s == pytest.approx(starts_s)
        free_s = one.left_s
    assert engine.tally.changes.tolist() == [changes]
    assert changes > 1_000


def test_a_fair_coin_is_m_g_1_with_a_change_at_every_other_run() -> None:
    # Whether a run needs a change is a coin of its own where both variants take as long.
    own_s, load_s, rate = 0.5, 1.0, 0.6
    scenario = changing(poisson(rate), mean_s=(own_s, own_s), load_s=(load_s, load_s), policy=LOTS)
    result = run(scenario, queries=400_000, seed=2)
    mean_s = own_s + load_s / 2
    second = (own_s**2 + (own_s + load_s) ** 2) / 2
    expected_s = mean_s + rate * second / (2 * (1 - rate * mean_s))  # Pollaczek and Khinchine
    found = result.response_time_s
    assert abs(found.mean - expected_s) < 4 * found.stderr < 0.2 * expected_s
    assert result.devices == {"x": pytest.approx(rate * mean_s, rel=0.02)}
    assert result.changes_per_s == {"x": pytest.approx(rate / 2, rel=0.02)}


@pytest.mark.parametrize("taken", [(1, 1), (1, 2), (3, 2)])
def test_two_variants_never_run_at_the_same_time(taken: tuple[int, int]) -> None:
    scenario = changing(poisson(0.5), 3, taken=taken, policy=LOTS)
    found, _ = ran(scenario, 2_000, 5, "general")
    assert len(found) == 2_000
    ends_s, held, running = 0.0, 0, list[Left]()
    for one in sorted(found, key=lambda one: one.started_s):
        k = class_of(one)
        if k != held:
            assert one.started_s >= ends_s + LOAD_S[k] - 1e-9
            held = k
        ends_s = max(ends_s, one.left_s)
        running = [*(other for other in running if other.left_s > one.started_s), one]
        assert sum(taken[class_of(other)] for other in running) <= 3


def test_who_is_predicted_in_time_is() -> None:
    scenario = changing(poisson(2.0), policy="./policies/turns.py:Timely", deadline_s=6.0)
    few = replace(scenario.fleet, count=np.array([1, 2]))
    result = run(replace(scenario, fleet=few), queries=20_000, seed=5)
    assert result.rejected > 0.01
    assert result.late == 0
    assert result.dropped == 0
    assert result.changes_per_s is not None
    assert result.changes_per_s["x"] > 0.1


@pytest.mark.parametrize("policy", ["priced", "tad-op", "deadline", "fastest-only"])
@QUICK
@given(st.data(), seeds)
def test_policies_see_changes_event_for_event(policy: str, data: st.DataObject, seed: int) -> None:
    kind = systems if policy in ("priced", "deadline") else simple_systems
    scenario = data.draw(shared(kind(policy)).filter(_is_exclusive))
    note(str(scenario))
    compare(scenario, 60, seed, "general")


@pytest.mark.parametrize("policy", ["priced", "deadline"])
@QUICK
@given(st.data(), seeds)
def test_policies_of_two_tasks_see_changes_event_for_event(
    policy: str, data: st.DataObject, seed: int
) -> None:
    pairs = sharing(systems(policy), systems(policy))
    scenarios = data.draw(pairs.filter(lambda pair: all(map(_uses_exclusive, pair))))
    note(str(scenarios))
    compare_jointly(scenarios, [40, 30], seed)


def one_of_two(name: str, mean_s: float, load_s: float, arrivals: object, **options: object) -> Any:
    """A task of one variant with many servers, on a device that holds one variant of any task."""
    fleet = Fleet(
        (name,),
        np.array([1 / mean_s]),
        np.array([0.9]),
        np.array([400]),
        task=name,
        devices=DeviceSlots(
            names=("x",),
            slots=np.array([1]),
            exclusive=np.array([True]),
            overhead_s=np.zeros(1),
            device=np.array([0]),
            taken=np.array([1]),
            load_s=np.array([load_s]),
        ),
    )
    service = (ServiceTime("deterministic", mean_s),)
    given: dict[str, Any] = {"policy": "fastest-only", **options}
    return Scenario(fleet, service, arrivals, **given)  # type: ignore[arg-type]


def test_two_tasks_that_alternate_change_the_device_each_time() -> None:
    # At the start it holds the fastest of both, and of those that come at once, a's goes first.
    a = one_of_two("a", 0.5, 1.0, constant(1 / 5))
    b = one_of_two("b", 0.75, 2.0, constant(1 / 5))
    of_a, of_b = compare_jointly([a, b], [3, 3], 1)
    assert [one.left_s for one in of_a] == [0.5, 5 + 1.5, 10 + 1.5]
    assert [one.left_s for one in of_b] == [0.5 + 2.75, 6.5 + 2.75, 11.5 + 2.75]


@pytest.mark.parametrize("deadline_s", [None, 100.0])
def test_tasks_wait_for_it_in_the_order_in_which_they_are_due(deadline_s: float | None) -> None:
    a = one_of_two("a", 0.5, 1.0, constant(1 / 2))
    b = one_of_two("b", 4.0, 2.0, constant(1 / 2), deadline_s=deadline_s)
    of_a, of_b = compare_jointly([a, b], [2, 2], 1)
    # The first of b is loaded from 0.5 to 2.5 s. Both of the next come at 2 s.
    assert (of_a[0].left_s, of_b[0].left_s) == (0.5, 6.5)
    then = (6.5 + 1.5, 8.0 + 6.0) if deadline_s is None else (10.5 + 1.5, 6.5 + 4.0)
    assert (of_a[1].left_s, of_b[1].left_s) == then


def test_two_tasks_at_equal_rates_are_m_g_1_with_a_change_at_every_other_run() -> None:
    own_s, load_s, rate = 0.5, 1.0, 0.6
    tasks = {name: one_of_two(name, own_s, load_s, poisson(rate / 2)) for name in "ab"}
    results = run_together(tasks, queries=200_000, seed=2)  # which checks that none is lost
    mean_s = own_s + load_s / 2
    second = (own_s**2 + (own_s + load_s) ** 2) / 2
    expected_s = mean_s + rate * second / (2 * (1 - rate * mean_s))  # Pollaczek and Khinchine
    for found in results.values():
        time = found.response_time_s
        assert abs(time.mean - expected_s) < 4 * time.stderr < 0.2 * expected_s
        assert found.devices == {"x": pytest.approx(rate * mean_s / 2, rel=0.03)}
        assert found.changes_per_s == {"x": pytest.approx(rate / 4, rel=0.03)}


def test_beside_a_task_on_other_devices_it_is_as_if_alone() -> None:
    scenario = changing(constant(1 / 2.5), 2, policy="priced", target=0.85)
    devices = scenario.fleet.devices
    assert devices is not None
    two = devices._replace(
        names=("x", "y"),
        slots=np.array([2, 1]),
        exclusive=np.array([True, False]),
        overhead_s=np.zeros(2),
    )
    scenario = replace(scenario, fleet=replace(scenario.fleet, devices=two))
    other = one_of_two("b", 0.75, 2.0, constant(0.5))
    own = two._replace(device=np.array([1]), taken=np.array([1]), load_s=np.array([2.0]))
    other = replace(other, fleet=replace(other.fleet, devices=own))
    alone, _ = ran(scenario, 100, 1, "general")
    beside, _ = compare_jointly([scenario, other], [100, 100], 1)
    assert beside == alone


def _uses_exclusive(scenario: Scenario) -> bool:
    devices = scenario.fleet.devices
    assert devices is not None
    return bool(devices.exclusive[devices.device[devices.device >= 0]].any())


def _is_exclusive(scenario: Scenario) -> bool:
    devices = scenario.fleet.devices
    return devices is not None and bool(devices.exclusive.any())


@given(shared(st.just(changing(poisson(1.0)))))
def test_only_the_general_engine_knows_devices(scenario: Scenario) -> None:
    assert kinds_of(scenario) == ("general",)
