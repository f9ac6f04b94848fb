"""Tasks that share devices, in one loop: against the plain simulator, closed forms and the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, note
from systems import (
    PATIENT,
    UNSURE,
    VERSATILE,
    compare_jointly,
    poisson,
    sharing,
    simple_systems,
    systems,
)
from test_shared_devices import QUERIES, erlang_c, mean_is
from test_twin_paths import QUICK, REQUESTS, seeds

import inferway as iw
from inferway.deployment import ServiceTime
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.twin import Scenario, engine, run, run_together


@QUICK
@given(sharing(systems(VERSATILE), systems(PATIENT)), seeds)
def test_two_tasks_event_for_event(scenarios: list[Scenario], seed: int) -> None:
    note(str(scenarios))
    compare_jointly(scenarios, [REQUESTS, REQUESTS // 2], seed)


@QUICK
@given(sharing(systems(UNSURE), systems("priced")), seeds)
def test_second_answers_beside_another_task(scenarios: list[Scenario], seed: int) -> None:
    note(str(scenarios))
    compare_jointly(scenarios, [REQUESTS, REQUESTS // 2], seed)


@QUICK
@given(sharing(simple_systems("tad-op"), simple_systems("tad-op")), seeds)
def test_lengths_alone_beside_lengths_alone(scenarios: list[Scenario], seed: int) -> None:
    note(str(scenarios))
    compare_jointly(scenarios, [REQUESTS, REQUESTS // 2], seed)


def tasks_on(
    slots: int, rates: tuple[float, float], mean_s: float = 1.0, **options: object
) -> dict[str, Scenario]:
    """Two tasks of a variant each with many servers on one device."""
    found = {}
    for name, rate in zip("ab", rates, strict=True):
        fleet = Fleet(
            (name,),
            np.array([1 / mean_s]),
            np.array([0.9]),
            np.array([400]),
            devices=DeviceSlots(
                names=("x",),
                slots=np.array([slots]),
                exclusive=np.array([False]),
                overhead_s=np.zeros(1),
                device=np.array([0]),
                taken=np.array([1]),
            ),
        )
        service = (ServiceTime("exponential", mean_s),)
        found[name] = Scenario(fleet, service, poisson(rate), policy="fastest-only", **options)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("slots", "rates"), [(1, (0.2, 0.5)), (4, (2.0, 1.2))])
def test_two_tasks_of_one_service_time_are_m_m_c(slots: int, rates: tuple[float, float]) -> None:
    results = run_together(tasks_on(slots, rates), queries=QUERIES, seed=1)
    rate = sum(rates)
    expected_s = 1 + erlang_c(slots, rate) / (slots - rate)
    for name, own in zip("ab", rates, strict=True):
        mean_is(results[name], expected_s)
        assert results[name].engine == "general"
        assert results[name].devices == {"x": pytest.approx(own / slots, rel=0.03)}


def test_a_task_that_shares_is_not_simulated_alone() -> None:
    scenario = replace(tasks_on(1, (0.2, 0.2))["a"], beside=("b",))
    with pytest.raises(ValueError, match="shares some with b, and is not simulated alone"):
        run(scenario, queries=10)


def test_who_has_a_deadline_goes_before_who_has_none() -> None:
    """Of two classes at one slot, the first is served first (Cobham, doi 10.1287/opre.2.1.70)."""
    scenarios = tasks_on(1, (0.3, 0.4), late="serve")
    scenarios["a"] = replace(scenarios["a"], deadline_s=5.0)
    results = run_together(scenarios, queries=QUERIES, seed=2)
    left_s = 0.3 + 0.4  # What is left of the run that somebody finds, s
    mean_is(results["a"], 1 + left_s / (1 - 0.3))
    mean_is(results["b"], 1 + left_s / ((1 - 0.3) * (1 - 0.7)))


@pytest.mark.parametrize("seed", range(4))
def test_who_is_held_for_another_tasks_run_leaves_as_well(seed: int) -> None:
    """At the end nothing of the task is under way, and its central queue goes on later."""
    quick, slow = tasks_on(1, (1.0, 0.2)).values()
    quick = replace(quick, queue="central")
    fleet = replace(slow.fleet, rate=np.array([1 / 40]))
    slow = replace(slow, fleet=fleet, service=(ServiceTime("deterministic", 40.0),))
    left, _ = compare_jointly([quick, slow], [8, 4], seed)
    assert len(left) == 8


def test_others_go_on_where_a_task_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_PRESENT", 2048)
    results = run_together(tasks_on(1, (50.0, 0.4)), queries=50_000, seed=4)
    crowded, other = results["a"], results["b"]
    assert not crowded.stable
    assert "requests are in the system, so it was ended there" in crowded.notes[0]
    assert other.complete
    assert other.queries == pytest.approx(0.4 * 50_000 / 50.0, rel=0.2)


def pool(tmp_path: Path) -> iw.Deployment:
    """A file of two tasks whose copies outnumber the cores."""
    variant = {"accuracy": 0.9, "service": {"mean": "10 ms", "distribution": "exponential"}}
    arrivals = {"arrivals": {"process": "poisson", "rate": "60/s"}}
    return iw.load(
        {
            "tasks": {name: {"variants": {"v": variant}} for name in "ab"},
            "nodes": {"n": {"devices": {"cpu": {"cores": 2}}, "instances": {"a/v": 2, "b/v": 2}}},
            "dispatch": {"policy": "fastest-only"},
            "workload": dict.fromkeys("ab", arrivals),
        }
    )


def test_tasks_of_a_file_wait_for_each_other(tmp_path: Path) -> None:
    deployment = pool(tmp_path)
    both = iw.simulate(deployment, queries=20_000, seed=3)
    assert list(both.tasks) == ["a", "b"]
    # Alone, M/M/2 at 30 % of its slots; together at 60 %.
    assert both.tasks["a"].response_time_s.mean > 0.0135
    one = iw.simulate(deployment, tasks=("b",), queries=20_000, seed=3, records=tmp_path)
    assert list(one.tasks) == ["b"]
    assert one.tasks["b"].response_time_s == both.tasks["b"].response_time_s


def test_workers_and_replications_change_nothing(tmp_path: Path) -> None:
    deployment = pool(tmp_path)
    found = [
        iw.simulate(deployment, queries=2_000, replications=3, workers=workers).to_json()
        for workers in (1, 3)
    ]
    for one in found:
        for task in one["tasks"].values():
            del task["queries_per_cpu_s"]
    assert found[0] == found[1]
