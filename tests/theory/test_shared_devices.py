"""The twin where classes share devices, against closed forms and what must hold in any case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from systems import HERE, VERSATILE, assert_same, compare, poisson, records, shared, systems
from test_twin_paths import QUICK, seeds

import inferway as iw
from inferway.deployment import ServiceTime
from inferway.dispatch.batching import run_s_of
from inferway.site import Fleet, fleet_of
from inferway.site.devices import DeviceSlots
from inferway.twin import Scenario, TaskResult, run, scenario_of
from inferway.twin.engine import engine_of, kinds_of

QUERIES = 400_000
# Standard errors that a mean may be away; with fixed seeds, a test that passes keeps passing.
ERRORS = 4.0
LOTS, LOSSY = "./policies/lots.py:Lots", "./policies/lots.py:Lossy"


def sharing(
    slots: list[int],
    rate: float,
    mean_s: tuple[float, float] = (1.0, 1.0),
    taken: tuple[int, int] = (1, 1),
    law: str = "exponential",
    device: tuple[int, int] = (0, 0),
    overhead_s: float = 0.0,
    **options: object,
) -> Scenario:
    """Two classes of many servers, the faster one first, each asked for half of all requests."""
    fleet = Fleet(
        ("a", "b"),
        1 / np.array(mean_s),
        np.array([0.8, 0.9]),
        np.array([400, 400]),
        devices=DeviceSlots(
            names=tuple("xy"[: len(slots)]),
            slots=np.array(slots),
            exclusive=np.zeros(len(slots), bool),
            overhead_s=np.array([overhead_s] + [0.0] * (len(slots) - 1)),
            device=np.array(device),
            taken=np.array(taken),
        ),
    )
    given: dict[str, object] = {"policy": LOTS, "folder": HERE}
    service = tuple(ServiceTime(law, one) for one in mean_s)
    return Scenario(fleet, service, poisson(rate), **{**given, **options})  # type: ignore[arg-type]


def mean_is(result: TaskResult, expected_s: float) -> None:
    found = result.response_time_s
    assert found.stderr < 0.05 * expected_s
    assert abs(found.mean - expected_s) < ERRORS * found.stderr


def erlang_c(count: int, load: float) -> float:
    lost = 1.0
    for n in range(1, count + 1):
        lost = load * lost / (n + load * lost)
    return lost / (1 - load / count * (1 - lost))


@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (2, 0.8), (8, 0.9)])
def test_two_classes_on_c_slots_are_m_m_c(slots: int, load: float) -> None:
    rate = load * slots
    result = run(sharing([slots], rate), queries=QUERIES, seed=1)
    assert result.engine == "general"
    assert result.devices == {"x": pytest.approx(load, rel=0.02)}
    mean_is(result, 1 + erlang_c(slots, rate) / (slots - rate))


@pytest.mark.parametrize("law", ["deterministic", "exponential", "hyperexponential"])
def test_classes_of_other_times_wait_alike_on_one_slot(law: str) -> None:
    mean_s, rate = (0.5, 1.5), 0.7
    cv = {"deterministic": 0.0, "exponential": 1.0, "hyperexponential": 2.0}[law]
    scenario = sharing([1], rate, mean_s)
    scenario = replace(scenario, service=tuple(ServiceTime(law, one, cv=cv) for one in mean_s))
    result = run(scenario, queries=2 * QUERIES, seed=2)
    second = sum(one**2 * (1 + cv**2) for one in mean_s) / 2
    wait_s = rate * second / (2 * (1 - rate))  # Pollaczek and Khinchine
    mean_is(result, 1.0 + wait_s)
    for own_s, one in zip(mean_s, ("a", "b"), strict=True):
        assert result.classes[one].response_time_s == pytest.approx(own_s + wait_s, rel=0.06)


@pytest.mark.parametrize("law", ["deterministic", "exponential"])
def test_what_the_server_does_for_a_request_comes_before_its_run(law: str) -> None:
    mean_s, rate, overhead_s = (0.5, 1.5), 0.6, 0.25
    scenario = sharing([1], rate, mean_s, law=law, overhead_s=overhead_s)
    result = run(scenario, queries=2 * QUERIES, seed=2)
    alone = 1.0 if law == "exponential" else 0.0
    second = sum((one + overhead_s) ** 2 + alone * one**2 for one in mean_s) / 2
    wait_s = rate * second / (2 * (1 - rate * (1.0 + overhead_s)))  # Pollaczek and Khinchine
    mean_is(result, 1.0 + overhead_s + wait_s)
    assert result.devices == {"x": pytest.approx(rate * (1.0 + overhead_s), rel=0.02)}


def test_what_is_done_for_requests_is_the_slots_of_their_own_device() -> None:
    # The second class runs on a device where the server does nothing.
    result = run(sharing([1, 1], 1.0, device=(0, 1), overhead_s=0.25), queries=QUERIES, seed=4)
    mixed_s = 1.25 + 0.5 * (1.25**2 + 1.0) / (2 * (1 - 0.5 * 1.25))
    assert result.classes["a"].response_time_s == pytest.approx(mixed_s, rel=0.05)
    assert result.classes["b"].response_time_s == pytest.approx(1 / (1 - 0.5), rel=0.05)


@pytest.mark.parametrize("late", [0.0, 0.25])
def test_predictions_have_what_the_server_does(late: float) -> None:
    # A deadline of a run and of what comes before it is met by who finds the device free.
    limit_s = 1.25 - late
    scenario = sharing(
        [1], 0.01, law="deterministic", policy="deadline", deadline_s=limit_s, overhead_s=0.25
    )
    result = run(scenario, queries=2_000, seed=5)
    assert result.late == 0
    assert result.rejected > 0.99 if late else result.rejected < 0.05


@pytest.mark.parametrize("law", ["deterministic", "exponential"])
def test_nobody_waits_where_only_idle_servers_are_asked(law: str) -> None:
    # Runs of one and of two cores; how long they take does not matter (Kaufman, Roberts).
    slots, mean_s, taken, rate = 6, (1.0, 2.0), (1, 2), 3.0
    weight = np.zeros(slots + 1)
    weight[0] = 1.0
    for used in range(1, slots + 1):
        weight[used] = (
            sum(
                rate / 2 * own_s * slot * weight[used - slot]
                for own_s, slot in zip(mean_s, taken, strict=True)
                if used >= slot
            )
            / used
        )
    weight /= weight.sum()
    blocked = np.array([weight[slots], weight[slots - 1 :].sum()])
    scenario = sharing([slots], rate, mean_s, taken, law, policy=LOSSY)
    result = run(scenario, queries=QUERIES, seed=3)
    assert result.rejected == pytest.approx(blocked.mean(), rel=0.02)
    shares = (1 - blocked) / (1 - blocked).sum()
    assert [result.shares[one] for one in "ab"] == pytest.approx(shares, rel=0.01)
    # And they hold what they take, without a wait.
    assert result.response_time_s.mean == pytest.approx(shares @ mean_s, rel=0.01)


def test_devices_of_their_own_do_not_touch() -> None:
    scenario = sharing([1, 2], 1.5, device=(0, 1))
    result = run(scenario, queries=QUERIES, seed=4)
    alone_s = 1 / (1 - 0.75)
    two_s = 1 + erlang_c(2, 0.75) / (2 - 0.75)
    assert result.classes["a"].response_time_s == pytest.approx(alone_s, rel=0.05)
    assert result.classes["b"].response_time_s == pytest.approx(two_s, rel=0.05)


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_who_is_predicted_in_time_is(slots: int) -> None:
    # Where times are known and runs take one slot each, the order of arrival is all there is.
    scenario = sharing(
        [slots], 1.6 * slots, (0.5, 1.0), law="deterministic", policy="deadline", deadline_s=2.2
    )
    result = run(scenario, queries=50_000, seed=5)
    assert result.rejected > 0.01
    assert result.late == 0
    # What waits is taken to be shared out evenly, which is at most one run short.
    assert result.dropped <= (0 if slots == 1 else 0.02)


@pytest.mark.parametrize("policy", ["priced", "escalate"])
def test_one_core_for_all_variants_keeps_a_third_of_the_greatest_rate(policy: str) -> None:
    file = Path(__file__).parents[2] / "examples/digits.yaml"
    one_core = {"nodes.here.devices": {"cpu": {"cores": 1}}}
    deployment = iw.load(file).with_(load=1 / 3, policy=policy, **one_core)
    fleet, least = fleet_of(deployment, "digits"), iw.bound(deployment)["digits"]
    rate, shares = least.rate_per_s, np.array([least.shares[one] for one in fleet.variants])
    assert rate is not None
    result = iw.simulate(deployment, queries=100_000, seed=6).tasks["digits"]
    assert result.rejected < 1e-3
    assert result.accuracy.mean == pytest.approx(0.9355, abs=5e-4)
    # The bound's mix of variants, on one core, whoever waits there (Pollaczek and Khinchine).
    mean_s, second = shares @ (1 / fleet.rate), shares @ (1 / fleet.rate**2)
    blind_s = mean_s + rate * second / (2 * (1 - rate * mean_s))
    assert result.response_time_s.mean < blind_s


@pytest.mark.parametrize("policy", ["priced", VERSATILE])
@QUICK
@given(st.data(), seeds)
def test_room_for_all_changes_nothing(policy: str, data: st.DataObject, seed: int) -> None:
    scenario = data.draw(shared(systems(policy), alone=False))
    note(str(scenario))
    devices = scenario.fleet.devices
    assert devices is not None
    ample = devices._replace(slots=devices.slots * 0 + 99, overhead_s=devices.overhead_s * 0)
    alone = replace(scenario, fleet=replace(scenario.fleet, devices=None))
    wide = replace(scenario, fleet=replace(scenario.fleet, devices=ample))
    expected = records(alone, 60, seed, "general")
    assert_same(records(wide, 60, seed, "general"), expected)


@given(shared(st.just(sharing([2], 1.0))))
def test_only_the_general_engine_knows_devices(scenario: Scenario) -> None:
    assert kinds_of(scenario) == ("general",)


@pytest.mark.parametrize("policy", ["tad", "tad-op"])
def test_a_target_is_tracked_where_servers_wait_for_devices_alone(policy: str) -> None:
    """A class at random wherever both slots are taken would fall short of it."""
    scenario = sharing([2], 1.2, (0.5, 1.5), policy=policy, target=0.88)
    of = replace(scenario.fleet, accuracy=np.array([0.6, 0.9]))
    result = run(replace(scenario, fleet=of), queries=QUERIES // 10, seed=5)
    assert result.accuracy.mean == pytest.approx(0.88, abs=0.002)


BY_HARDWARE = """\
tasks:
  t:
    deadline: 300 ms
    variants:
      a:
        accuracy: 0.9
        service: {cpu: {mean: 50 ms}, ampere: {mean: 20 ms}, hopper: {mean: 40 ms}}
        batch:
          cpu: {sizes: [1, 2], service: [50 ms, 95 ms]}
          ampere: {sizes: [1, 4, 8], service: [20 ms, 25 ms, 30 ms], wait: 5 ms}
nodes:
  here:
    devices:
      {cpu: {cores: 2}, gpu: {hardware: ampere, count: 1}, more: {hardware: hopper, count: 1}}
    instances: {t/a: {cpu: 2, gpu: 1, more: 1}}
    buffer: 12
dispatch: {policy: POLICY}
workload: {t: {arrivals: {process: poisson, rate: 150/s}}}
"""


@pytest.mark.parametrize("policy", ["deadline", "fastest-only", "r-jiq"])
def test_batches_are_those_of_the_hardware_of_each_device(tmp_path: Path, policy: str) -> None:
    """The twin runs each server's own table, event for event as the plain simulator does."""
    file = tmp_path / "d.yaml"
    file.write_text(BY_HARDWARE.replace("POLICY", policy))
    scenario = scenario_of(iw.load(file), "t")
    tables = dict(zip(scenario.fleet.variants, scenario.batches, strict=True))
    assert tables["a:more"] is None
    cpu, gpu = tables["a:cpu"], tables["a:gpu"]
    assert cpu is not None
    assert gpu is not None
    assert (cpu.sizes, gpu.sizes) == ((1, 2), (1, 4, 8))
    view = scenario.site(0.0, 12)
    for k, name in enumerate(scenario.fleet.variants):
        run_s = {2: 0.095} if name == "a:cpu" else {4: 0.025, 8: 0.03} if name == "a:gpu" else {}
        for rows, expected_s in run_s.items():
            assert run_s_of(view.row_s[view.first[k]], rows) == pytest.approx(expected_s)
    compare(scenario, 400, 7, "general")
    result = run(scenario, queries=20_000, seed=1)
    served = {name: one.share for name, one in result.classes.items()}
    assert all(share > 0 for share in served.values()) or policy == "fastest-only"


def digits_at(policy: str) -> Scenario:
    """The digits zoo's seven variants on two cores, most of which are taken."""
    file = Path(__file__).parents[2] / "examples/digits.yaml"
    digits = iw.load(file).with_(policy=policy, load=0.9)
    deadline_s = 0.012 if policy == "deadline" else None
    return replace(scenario_of(digits, "digits"), deadline_s=deadline_s)


def assert_alike(*engines: Any) -> None:
    """Run engines, and compare all that they count, bit by bit."""
    for engine in engines:
        engine.count_anew()
        engine.advance(20_000)
    one, other = engines
    assert one.now_s == other.now_s
    for name, counted in one.tally._asdict().items():
        np.testing.assert_array_equal(counted, getattr(other.tally, name), err_msg=name)


@pytest.mark.parametrize("policy", ["priced", "escalate", "deadline"])
def test_what_nobody_looks_ahead_at_changes_no_decision(policy: str) -> None:
    scenario = digits_at(policy)
    seldom, always = (engine_of(scenario, seed=4, kind="general") for _ in range(2))
    assert seldom.site.devices.lazily
    assert seldom.site.devices.prompt == (policy != "escalate")
    site = always.site._replace(devices=always.site.devices._replace(lazily=False, prompt=False))
    always.world = always.world._replace(bound=always.world.bound._replace(site=site))
    assert_alike(seldom, always)


@pytest.mark.parametrize("policy", ["priced", "deadline"])
def test_slots_kept_for_the_next_run_count_as_given_and_taken(policy: str) -> None:
    keeping, giving = (engine_of(digits_at(policy), seed=4, kind="general") for _ in range(2))
    assert keeping.world.rules.unwatched
    rules = giving.world.rules._replace(unwatched=False)
    giving.world = giving.world._replace(rules=rules)
    assert_alike(keeping, giving)
