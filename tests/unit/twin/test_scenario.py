"""From a deployment file to a scenario, and what is refused on the way to a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inferway
from inferway.deployment import Batch, ServiceTime
from inferway.deployment.workloads import PoissonArrivals
from inferway.dispatch import best_accuracy, max_escalation_rate
from inferway.site import Fleet
from inferway.site.confidence import difficulty_tables
from inferway.twin import Failures, Scenario, SetOutage, run, scenario_of

FILE = """
tasks:
  words:
    accuracy_target: 0.8
    deadline: 3 s
    energy_budget: 5 J
    variants:
      slow: {accuracy: 0.9, energy: 6 J, service: {distribution: exponential, mean: 4 s}}
      fast: {accuracy: 0.7, energy: 1 J, service: {cpu: {mean: 1 s}, tpu: {mean: 100 ms}},
             batch: {sizes: [1, 2], service: [1 s, 1.5 s]}}
nodes:
  here:
    hardware: cpu
    instances: {words/slow: 2, words/fast: 3}
    buffer: 4
    queue: central
    late: serve
    failures: {words/slow: {every: 1 h, for: 60 s}}
    outages: [{instances: {words/fast: 2}, at: 10 s, for: 5 s}]
dispatch: {policy: r-jiq, beta: 0.2, window: 30 s}
workload:
  words: {arrivals: {process: poisson, load: 0.5}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "words.yaml"
    path.write_text(FILE)
    return path


SHARED = """
tasks:
  words: {variants: {one: {accuracy: 0.9, threads: 2,
                           service: {cpu: {mean: 1 s}, tpu: {mean: 100 ms}}}}}
  other: {variants: {two: {accuracy: 0.9, service: {tpu: {mean: 1 s}}}}}
nodes:
  here:
    devices: {cpu: {cores: 4}, tpu: {count: 2}, spare: {hardware: tpu, count: 1}}
    instances: {words/one: {tpu: 2, cpu: 3}, other/two: {spare: 1}}
    failures: {words/one: {every: 1 h, for: 60 s}}
    outages: [{instances: {words/one: 4}, at: 10 s, for: 5 s}]
dispatch: {policy: fastest-only}
workload: {words: {arrivals: {process: poisson, load: 0.5}}}
"""


def test_a_class_for_each_device_that_copies_run_on(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED)
    found = scenario_of(inferway.load(path), "words")
    assert found.fleet.variants == ("one:tpu", "one:cpu")
    assert found.fleet.names == ["one", "one"]
    assert [time.mean_s for time in found.service] == [0.1, 1.0]
    assert set(found.failures) == {"one:tpu", "one:cpu"}
    assert [(one.variant, one.count) for one in found.outages] == [("one:tpu", 2), ("one:cpu", 2)]
    result = run(found, queries=2_000, seed=1)
    assert result.devices is not None
    assert set(result.devices) == {"cpu", "tpu", "spare"}
    assert result.to_json()["devices"]["tpu"] > result.devices["spare"] == 0.0


EXCLUSIVE = """
tasks:
  words: {variants: {fast: {accuracy: 0.8, load_time: 2 s, service: {mean: 10 ms}},
                     slow: {accuracy: 0.9, load_time: 3 s, service: {mean: 50 ms}}}}
  other: {variants: {two: {accuracy: 0.9, load_time: 1 s, service: {mean: 1 s}}}}
nodes:
  here:
    devices: {gpu: {count: 1, exclusive: true}, spare: {count: 2, exclusive: true}}
    instances: {words/slow: {gpu: 1}, words/fast: {gpu: 1}, other/two: {spare: 1}}
dispatch: {policy: priced}
workload: {words: {arrivals: {process: poisson, rate: 1/s}}}
"""


def test_exclusive_devices_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "exclusive.yaml"
    path.write_text(EXCLUSIVE.replace("words: {v", "words: {accuracy_target: 0.85, v", 1))
    found = scenario_of(inferway.load(path), "words")
    devices = found.fleet.devices
    assert devices is not None
    assert devices.load_s is not None
    assert devices.exclusive.tolist() == [True, True]
    assert dict(zip(found.fleet.variants, devices.load_s.tolist(), strict=True)) == {
        "fast": 2.0,
        "slow": 3.0,
    }
    result = run(found, queries=2_000, warmup=0, seed=1)  # it changes when it begins
    told = result.to_json()["changes_per_s"]
    assert told["gpu"] > 0.0
    assert told["spare"] == 0.0
    assert result.accuracy.mean >= 0.85


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "load_time: 3 s, ",
            "",
            "tasks.words.variants.slow.load_time: nodes.here.devices.gpu is `exclusive`, and",
        ),
        (
            "load_time: 2 s, ",
            "",
            "tasks.words.variants.fast.load_time: nodes.here.devices.gpu is `exclusive`, and",
        ),
    ],
)
def test_what_the_twin_has_to_know_of_exclusive_devices(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    path = tmp_path / "exclusive.yaml"
    path.write_text(EXCLUSIVE.replace(old, new, 1))
    with pytest.raises(ValueError, match=sentence):
        scenario_of(inferway.load(path), "words")


def test_tasks_of_a_file_share_an_exclusive_device(tmp_path: Path) -> None:
    path = tmp_path / "exclusive.yaml"
    one = EXCLUSIVE.replace("words/slow: {gpu: 1}, ", "").replace("{spare: 1}", "{gpu: 1}")
    arrivals = "other: {arrivals: {process: poisson, rate: 0.1/s}}, words"
    path.write_text(
        one.replace("words: {arrivals", f"{arrivals}: {{arrivals")
        .replace("rate: 1/s", "rate: 0.1/s")
        .replace("priced", "fastest-only")
    )
    deployment = inferway.load(path)
    for name, beside in (("words", ("other",)), ("other", ("words",))):
        assert scenario_of(deployment, name).beside == beside
    found = inferway.simulate(deployment, queries=40_000, seed=1).tasks
    for task in found.values():
        assert task.changes_per_s["gpu"] == pytest.approx(0.05, rel=0.1)
    # As often as not, a run needs a change, which the bound leaves out.
    assert found["words"].response_time_s.mean > 0.01 + 2.0 / 2
    best = inferway.bound(deployment).together.blind
    assert best.least_response_time_s == pytest.approx((0.01 + 1.0) / 2)
    assert best.max_factor == pytest.approx(1 / (0.1 * 1.01))


def test_who_has_to_wait_for_whom_at_devices(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED)
    assert scenario_of(inferway.load(path), "words").beside == ()
    path.write_text(SHARED.replace("{spare: 1}", "{tpu: 1}", 1))
    assert scenario_of(inferway.load(path), "words").beside == ("other",)


def test_a_task_without_requests_leaves_its_devices_to_the_others(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED.replace("{spare: 1}", "{tpu: 1}", 1))
    result = inferway.simulate(inferway.load(path), queries=2_000).tasks["words"]
    assert any("nothing is asked of other" in note for note in result.notes)


def test_only_who_shares_with_a_task_that_is_left_out_says_so() -> None:
    variants = {"x": {"accuracy": 0.8, "service": {"mean": "10 ms"}}}
    devices = {"one": {"cores": 1}, "two": {"cores": 1}}
    on = {"a/x": {"one": 1}, "b/x": {"one": 1, "two": 1}, "c/x": {"two": 1}}
    arrivals = {"arrivals": {"process": "poisson", "rate": "20/s"}}
    chain = inferway.load(
        {
            "tasks": {name: {"variants": variants} for name in "abc"},
            "nodes": {"n": {"devices": devices, "instances": on}},
            "workload": dict.fromkeys("ab", arrivals),
        }
    )
    result = inferway.simulate(chain, queries=100)
    told = {name: [n for n in one.notes if "is asked" in n] for name, one in result.tasks.items()}
    assert told["a"] == []
    assert len(told["b"]) == 1


def test_a_run_fits_its_device(tmp_path: Path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(SHARED)
    found = scenario_of(inferway.load(path), "words")
    assert found.fleet.devices is not None
    narrow = found.fleet.devices._replace(slots=np.array([1, 1, 1]))
    with pytest.raises(ValueError, match="a run takes more slots than its device has"):
        replace(found, fleet=replace(found.fleet, devices=narrow))


def test_all_of_a_file(file: Path) -> None:
    found = scenario_of(inferway.load(file), "words")
    assert found.fleet.variants == ("fast", "slow")
    assert found.fleet.rate.tolist() == [1.0, 0.25]
    assert found.fleet.buffer == 4
    assert [time.distribution for time in found.service] == ["deterministic", "exponential"]
    assert found.batches == (Batch((1, 2), (1.0, 1.5), 1, 2), None)
    assert (found.policy, found.target, found.deadline_s) == ("r-jiq", 0.8, 3.0)
    assert (found.queue, found.late, found.energy_budget) == ("central", "serve", 5.0)
    assert found.failures == {"slow": Failures(3600.0, 60.0)}
    assert found.outages == (SetOutage("fast", 2, 10.0, 5.0),)
    assert found.window_s == 30
    assert found.rate_per_s == pytest.approx(0.5 * found.capacity_per_s)
    # Until the first window is over.
    assert found.told_rate_per_s == pytest.approx(0.5 * found.capacity_per_s)
    assert found.build_options() == {"beta": 0.2, "energy_budget": 5.0}
    assert found.folder == file.parent


def test_a_rate_of_its_own(scenario: Scenario) -> None:
    assert scenario.told_rate_per_s == 3.0
    assert replace(scenario, options={"rate": 7.0}).told_rate_per_s == 7.0
    assert replace(scenario, policy="r-jiq", options={"rate": 7.0}).build_options() == {}


def test_batches_are_predicted_as_live(scenario: Scenario) -> None:
    batched = replace(scenario, batches=(None, Batch((1, 3), (1.5, 3.0), 1, 3)))
    site = batched.site(0.7, 1)
    assert site.rate.tolist() == [2.0, pytest.approx(1 / 1.5)]
    assert site.row_s[1].tolist() == [0.5] * 8
    # Linear between the two, and three in a row beyond: 1.5, 2.25, 3.75 s for 1, 2, 4 requests.
    assert site.row_s[2, :4].tolist() == [1.5, 1.125, 0.9375, 0.9375]
    assert site.sizes[1, :3].tolist() == [1, 3, 0]
    measured = replace(batched, measured_s={"good": {3: (6.0, 9.0), 1: (4.0, 5.0)}})
    site = measured.site(0.7, 1)
    assert site.rate.tolist() == [2.0, 0.25]
    assert site.row_s[2, :4].tolist() == [4.0, 2.5, 1.75, 1.75]
    assert site.slow_s[4, :4].tolist() == [5.0, 3.5, 2.75, 2.75]
    with pytest.raises(ValueError, match="good was measured at batches alone"):
        replace(batched, measured_s={"good": {3: (6.0, 9.0)}})


def test_a_batch_that_never_fills_is_refused(scenario: Scenario) -> None:
    waits = replace(scenario, batches=(None, Batch((1, 3), (1.5, 3.0), 3, 3)))
    run(waits, queries=100, warmup=0)
    small = replace(waits, fleet=replace(scenario.fleet, buffer=2))
    for wrong, room in ((small, 2), (replace(waits, queue="central"), 1)):
        message = f"good waits for 3 requests to form a batch, and a server holds {room} at most"
        with pytest.raises(ValueError, match=message):
            run(wrong, queries=10)


def test_measured_times_are_predicted_and_not_served(scenario: Scenario) -> None:
    found = replace(scenario, measured_s={"good": {1: (4.0, 9.0)}}).site(0.7, 1)
    assert found.rate.tolist() == [2.0, 0.25]
    assert found.row_s[:, 0].tolist() == [0.5, 0.5, 4.0, 4.0, 4.0]
    assert found.slow_s[:, 0].tolist() == [0.5, 0.5, 9.0, 9.0, 9.0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"service": (ServiceTime("exponential", 0.5),)}, "1 service times for 2 classes"),
        (
            {"service": (ServiceTime("exponential", 1.0), ServiceTime("exponential", 2.0))},
            "quick has a mean service time of 1 s and a rate of 2/s, which is not one over it",
        ),
        ({"batches": (None,)}, "1 batch rules for 2 classes"),
        ({"deadline_s": 0.0}, "a deadline is above 0 s, not 0"),
        ({"deadline_s": float("nan")}, "a deadline is above 0 s, not nan"),
        (
            {"failures": {"best": Failures(1.0, 1.0)}},
            "failures of best, which is none of the classes quick, good",
        ),
        (
            {"failures": {"good": Failures(0.0, 1.0)}},
            "good fails every 0 s for 1 s; both are above 0 s",
        ),
        (
            {"outages": (SetOutage("best", 1, 0.0, 1.0),)},
            "an outage of best, which is none of the classes quick, good",
        ),
        (
            {"outages": (SetOutage("good", 4, 0.0, 1.0),)},
            "an outage of 4 servers of good, which has 3",
        ),
        (
            {"outages": (SetOutage("good", 1, -1.0, 1.0),)},
            "an outage of good at -1 s for 1 s; it begins at 0 s or later and lasts",
        ),
        ({"options": {"window": 0.0}}, "a window is above 0 s, not 0"),
        ({"options": {"rate": -1.0}}, "the rate that a policy is told is above 0/s, not -1"),
    ],
)
def test_what_does_not_fit_is_refused(
    scenario: Scenario, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        replace(scenario, **change)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"queries": 0}, "queries and replications are at least 1, not 0 and 1"),
        ({"queries": 10, "replications": 0}, "queries and replications are at least 1, not 10"),
        ({"queries": 10.5}, "queries are a whole number, not 10.5"),
        ({"queries": float("inf")}, "queries are a whole number, not inf"),
        ({"queries": 10, "warmup": -1}, "a warm-up is not negative, as -1 is"),
        ({"queries": 10, "sample_s": 0.0}, "samples are more than 0 s apart, not 0"),
        ({"queries": 10, "workers": 0}, "workers are at least 1, not 0"),
        (
            {"queries": 10, "engine": "ordered"},
            "the engine ordered cannot run this; markov and general can",
        ),
    ],
)
def test_a_run_that_makes_no_sense(
    scenario: Scenario, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}"):
        run(scenario, **options)


def test_a_number_of_queries_may_be_written_with_an_exponent(scenario: Scenario) -> None:
    found = run(scenario, queries=1e3, warmup=0)  # type: ignore[arg-type]
    assert found.queries == 1000
    assert isinstance(found.queries, int)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"policy": "tadop"}, "unknown policy 'tadop'"),
        ({"target": None}, "policy tad-op tracks an accuracy target"),
        ({"policy": "r-jiq", "options": {"speed": 3}}, "policy r-jiq: .*'speed'"),
        ({"target": 0.95}, "the target 0.95 is above the best variant's accuracy 0.9"),
        ({"policy": "./nowhere.py:Mine"}, "there is no policy file"),
    ],
)
def test_a_policy_that_cannot_be_built(
    scenario: Scenario, change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(replace(scenario, **change), queries=10)


def test_a_file_without_what_is_needed(file: Path) -> None:
    deployment = inferway.load(file)
    with pytest.raises(ValueError, match="unknown task 'images'; the file has words"):
        inferway.simulate(deployment, tasks=("images",))
    with pytest.raises(ValueError, match="unknown node 'there'; the file has here"):
        inferway.simulate(deployment, node="there")
    file.write_text(FILE.split("workload:", maxsplit=1)[0])
    with pytest.raises(ValueError, match="no `workload`, so there is nothing to simulate"):
        inferway.simulate(inferway.load(file))
    with pytest.raises(ValueError, match=r"workload\.words: there is none, so there is nothing"):
        scenario_of(inferway.load(file), "words")


def test_a_policy_that_does_not_compile(scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from typing import NamedTuple\n"
        "class Mine(NamedTuple):\n"
        "    classes: int\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s):\n"
        "        return cls(2)\n"
        "    def choose(self, site, request, draw):\n"
        "        return site.nothing[0]\n"
    )
    wrong = replace(scenario, policy="./mine.py:Mine", folder=tmp_path)
    with pytest.raises(ValueError, match=r"policy ./mine.py:Mine does not compile: .*nothing"):
        run(wrong, queries=10)


def test_arrivals_that_are_none() -> None:
    from inferway.deployment.workloads import MapArrivals

    with pytest.raises(ValueError, match="not a MAP: row 0"):
        MapArrivals.read({"process": "map", "d0": [[-1.0]], "d1": [[2.0]]})
    assert np.isfinite(
        MapArrivals.read({"process": "map", "d0": [[-1.0]], "d1": [[1.0]]}).mean_rate_per_s()
    )


def test_a_target_that_only_asking_twice_reaches_is_simulated() -> None:
    tables = difficulty_tables(np.array([0.75, 0.9]), 0.9, 0.5)
    fleet = Fleet(
        ("a", "b"), np.array([4.0, 1.0]), np.array([0.75, 0.9]), np.array([2, 2]), confidence=tables
    )
    target = (0.9 + best_accuracy(fleet)) / 2
    assert target > 0.9
    scenario = Scenario(
        fleet,
        (ServiceTime("deterministic", 0.25), ServiceTime("deterministic", 1.0)),
        PoissonArrivals.read({"process": "poisson", "load": 0.5}),
        policy="escalate",
        target=target,
    )
    assert scenario.rate_per_s == pytest.approx(0.5 * max_escalation_rate(fleet, target))
    assert run(scenario, queries=20_000, workers=1).accuracy.mean == pytest.approx(
        target, abs=0.005
    )


def test_a_canary_is_told_to_be_a_variant_like_the_others(file: Path) -> None:
    usual = inferway.load(file)
    task = next(iter(usual.tasks.values()))
    best = max(task.variants.values(), key=lambda one: one.accuracy or 0.0).name
    about = {"variant": best, "at_least": 0.5}
    tried = usual.with_(**{f"tasks.{task.name}.feedback": {}, f"tasks.{task.name}.canary": about})
    without, beside = (
        inferway.simulate(one, queries=2_000, seed=1).tasks[task.name] for one in (usual, tried)
    )
    (note,) = (note for note in beside.notes if note not in without.notes)
    assert (
        note == f"{best}, which is a canary where this is served, is a variant like the others here"
    )
    assert beside.shares == without.shares
