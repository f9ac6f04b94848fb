"""The twin of a site whose devices are given out anew."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import inferway
from inferway.deployment import Deployment, DeploymentError
from inferway.site.fleet import fleet_of
from inferway.twin.assigned import simulate_assigned
from inferway.twin.engine import GeneralEngine, engine_of
from inferway.twin.scenario import Scenario, scenario_of

# Task a has its burst while b is quiet, and the other way round.
POOL = """\
tasks:
  a: &task
    deadline: 100 ms
    variants:
      low: {accuracy: 0.7, load_time: 1 s, service: {gpu: {mean: 5 ms}}}
      high: {accuracy: 0.9, load_time: 2 s, service: {gpu: {mean: 20 ms}}}
  b: *task
nodes:
  here:
    devices: {gpu: {count: 8}}
    instances: {a/high: 4, b/high: 4}
dispatch: {policy: deadline}
placement: {policy: assign}
workload:
  a: {arrivals: {process: phases, phases: [{for: 60 s, rate: 600/s}, {for: 60 s, rate: 50/s}]}}
  b: {arrivals: {process: phases, phases: [{for: 60 s, rate: 50/s}, {for: 60 s, rate: 600/s}]}}
"""


def loaded(folder: Path, text: str = POOL) -> Deployment:
    file = folder / "pool.yaml"
    file.write_text(text, encoding="utf-8")
    return inferway.load(file)


@pytest.fixture
def pool(tmp_path: Path) -> Deployment:
    return loaded(tmp_path)


def test_one_learned_policy_follows_the_copies_that_a_task_has(tmp_path: Path) -> None:
    about = {
        **{"policy": "rl-po", "task": "a", "variants": ["low", "high"], "counts": [8, 8]},
        **{"accuracies": [0.7, 0.9], "service_s": [0.005, 0.02], "buffer": 5, "deadline_s": 0.1},
        **{"slot_s": 1.0, "outages": [[60.0, 60.0], [60.0, 60.0]], "schema": 1},
    }
    sizes = [(16 * 14, 8), (8, 8), (8, 16)]
    arrays = {f"weight_{i}": np.zeros(size, np.float32) for i, size in enumerate(sizes)}
    arrays |= {f"bias_{i}": np.zeros(size[1], np.float32) for i, size in enumerate(sizes)}
    arrays["bias_2"][8:] = 9.0  # high ones, while there are any
    np.savez(tmp_path / "any.npz", about=np.array(json.dumps(about)), **arrays)
    text = POOL.replace("    instances", "    buffer: 5\n    late: serve\n    instances")
    learned = text.replace(
        "dispatch: {policy: deadline}", "scheduling: {policy: rl-po, checkpoint: any.npz}"
    )
    found, ruled = (
        inferway.simulate(loaded(tmp_path, one), queries=40_000) for one in (learned, text)
    )
    assert found.placement is not None
    assert found.placement.moves > 0
    # Once low copies have come as well, the rule uses them, and this policy hardly does.
    shares = [of.tasks["a"].classes["low"].share for of in (found, ruled)]
    assert 0.0 < shares[0] < 0.5 * shares[1]


def test_devices_follow_the_demand(pool: Deployment) -> None:
    queries = 78_000  # 240 s
    moved = inferway.simulate(pool, queries=queries)
    still = inferway.simulate(pool, queries=queries, dry_run=True)
    assert moved.placement is not None
    assert still.placement is not None
    assert moved.totals is not None
    assert still.totals is not None
    assert moved.totals.goodput > still.totals.goodput + 0.1
    assert moved.totals.goodput <= moved.placement.bound
    # What is lost is lost before it can be known, in the first slot of a burst.
    assert moved.totals.violation_ratio < 0.5 * still.totals.violation_ratio
    assert moved.placement.slots == 24
    assert moved.placement.moves >= 8
    assert still.placement.moves == 0
    assert still.placement.copies == {"a/high:gpu": 4.0, "b/high:gpu": 4.0}
    assert still.placement.decisions  # what would be moved
    assert sum(moved.placement.copies.values()) <= 8
    told = moved.to_json()
    assert told["placement"]["decisions"][0]["moves"][0]["from"]["variant"] in ("a/high", "b/high")
    assert "would not all be served" in str(moved)
    assert "Would be moved" in str(still)


def test_copies_of_a_variant_are_on_each_of_its_devices(tmp_path: Path) -> None:
    text = (
        POOL.replace("gpu: {mean: 5 ms}", "gpu: {mean: 5 ms}, cpu: {mean: 20 ms}")
        .replace("gpu: {mean: 20 ms}", "gpu: {mean: 20 ms}, cpu: {mean: 45 ms}")
        .replace("{gpu: {count: 8}}", "{gpu: {count: 4}, cpu: {cores: 8}}")
        .replace("a/high: 4, b/high: 4", "a/high: {gpu: 2, cpu: 4}, b/high: {gpu: 2, cpu: 4}")
    )
    pool = loaded(tmp_path, text)
    assert fleet_of(pool, "a").variants == ("high:gpu", "high:cpu")
    # One name for good: also while there are copies on one of its devices alone.
    assert fleet_of(pool.with_(instances={"a/high": {"cpu": 4}}), "a").variants == ("high:cpu",)
    found = inferway.simulate(pool, queries=39_000)  # 120 s
    assert found.placement is not None
    served = set(found.placement.copies)
    for task in ("a", "b"):
        of_task = {name for name in served if name.startswith(f"{task}/")}
        assert {name.split(":")[1] for name in of_task} == {"gpu", "cpu"}
        assert {f"{task}/{name}" for name in found.tasks[task].classes} <= of_task
    sides = [
        side
        for one in found.placement.decisions
        for move in one["moves"]
        for side in move.values()
        if side is not None
    ]
    assert {side["device"] for side in sides} == {"gpu", "cpu"}
    # Places change hands on one device: a copy never takes that of another one's.
    for one in found.placement.decisions:
        for move in one["moves"]:
            if None not in move.values():
                assert move["from"]["device"] == move["to"]["device"]


BY_HARDWARE = """\
tasks:
  a: &task
    deadline: 400 ms
    variants:
      v:
        accuracy: 0.9
        service: {good: {mean: 50 ms}, poor: {mean: 50 ms}}
        batch: {good: {sizes: [1, 8], service: [50 ms, 80 ms]}}
  b: *task
nodes:
  here:
    devices: {DEVICES}
    instances: {a/v: {poor: 4}, b/v: {good: 4}}
dispatch: {policy: deadline}
placement: {policy: assign}
workload:
  a: {arrivals: {process: poisson, rate: 200/s}}
  b: {arrivals: {process: poisson, rate: 5/s}}
"""
DEVICES = ["good: {count: 4}", "poor: {count: 4}"]


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1]])
def test_copies_move_to_where_they_batch_well(tmp_path: Path, devices: list[str]) -> None:
    """A copy carries 100/s in batches of 8, which one hardware has, and 20/s one by one."""
    pool = loaded(tmp_path, BY_HARDWARE.replace("DEVICES", ", ".join(devices)))
    still = inferway.simulate(pool, queries=20_000, warmup=0, dry_run=True)
    moved = inferway.simulate(pool, queries=20_000)
    assert still.placement is not None
    assert moved.placement is not None
    assert still.placement.copies == {"a/v:poor": 4.0, "b/v:good": 4.0}
    for found in (still, moved):
        assert found.placement is not None
        (first, *_) = found.placement.decisions
        come = [move["to"] for move in first["moves"]]
        assert {"variant": "a/v", "device": "good"} in come
        assert {"variant": "a/v", "device": "poor"} not in come
    # Four single-run copies carry 80 of 200 requests per second; with batches nothing is late.
    assert still.tasks["a"].violation_ratio > 0.5
    assert moved.tasks["a"].violation_ratio < 0.02
    good = moved.tasks["a"].classes["v:good"]
    assert good.share > 0.5
    assert moved.placement.copies["a/v:good"] >= 2.0


def test_nothing_of_the_future_is_known(pool: Deployment) -> None:
    # The first slot's decision comes after its end.
    found = inferway.simulate(pool, queries=10_000)
    assert found.placement is not None
    assert found.placement.decisions[0]["at_s"] == pytest.approx(10.0)


def test_the_same_seed_gives_the_same_numbers(pool: Deployment) -> None:
    runs = [inferway.simulate(pool, queries=20_000, seed=3).to_json() for _ in range(2)]
    for run in runs:
        for task in run["tasks"].values():
            del task["queries_per_cpu_s"]
    assert runs[0] == runs[1]
    other = inferway.simulate(pool, queries=20_000, seed=4)
    assert other.tasks["a"].goodput != runs[0]["tasks"]["a"]["goodput"]


def test_no_request_is_lost_or_made(pool: Deployment) -> None:
    found, _ = simulate_assigned(
        pool, None, ["a", "b"], queries=20_000, replications=2, seed=1, warmup=10_000
    )
    for one in found.values():
        assert one.replications == 2
        assert one.warmup > 0
        answered = sum(part.share for part in one.classes.values())
        assert answered == pytest.approx(1.0)
        # Entered is answered or lost: `finished` has checked that flows balance.
        assert one.queries > 0


def test_a_retired_server_answers_what_it_has_and_takes_no_more(pool: Deployment) -> None:
    scenario = one_server(pool)
    engine = engine_of(scenario, seed=1)
    assert isinstance(engine, GeneralEngine)
    engine.count_anew()
    engine.retire(0, 1.0)
    engine.enlist(0, 2.0)
    engine.advance(1 << 30, 1.0)
    before = int(engine.tally.rejected.sum())
    engine.advance(1 << 30, 1.5)
    assert not engine.site.healthy[0]
    assert engine.site.queue[0] == 0  # within half a second it has answered its last
    assert engine.tally.rejected.sum() > before
    dropped = int(engine.tally.dropped.sum())
    assert dropped == 0  # those that it had were answered
    assert engine.tally.answered.sum() + engine.tally.rejected.sum() == engine.tally.arrived.sum()
    engine.advance(1 << 30, 3.0)
    assert engine.site.healthy[0]
    assert engine.present > 0


def one_server(pool: Deployment) -> Scenario:
    from dataclasses import replace

    alone = pool.with_(instances={"a/high": 1, "b/high": 1})
    return replace(scenario_of(alone, "a"), movable=True)


def test_servers_that_may_not_move_stay(pool: Deployment) -> None:
    engine = engine_of(scenario_of(pool, "a"), seed=1)
    assert isinstance(engine, GeneralEngine)
    with pytest.raises(ValueError, match="servers stay where they are"):
        engine.retire(0, 1.0)


def test_instances_that_do_not_fit_are_not_begun_with(tmp_path: Path) -> None:
    many = loaded(tmp_path, POOL.replace("{a/high: 4, b/high: 4}", "{a/high: 40, b/high: 4}"))
    found = inferway.simulate(many, queries=5_000)
    assert found.placement is not None
    assert sum(found.placement.copies.values()) <= 8
    none = loaded(tmp_path, POOL.replace("    instances: {a/high: 4, b/high: 4}\n", ""))
    assert inferway.simulate(none, queries=5_000).placement is not None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "    devices: {gpu: {count: 8}}\n",
            "    hardware: gpu\n",
            "gives out the `devices` of a node",
        ),
        ("  a: &task\n", "  a: &task\n    count: 2\n", "gives out devices to tasks by name"),
        ("policy: assign}", "policy: assign, peak: p0}", "peak"),
        ("policy: assign}", "policy: assign, peak: -1}", "peak"),
        (
            "dispatch:",
            "    outages: [{instances: {a/high: 1}, at: 5 s, for: 5 s}]\ndispatch:",
            "none can be named that goes away at a set time",
        ),
        (
            "workload:",
            "network: {links: [{between: [here, there], rtt: 1 ms}]}\nworkload:",
            "gives out the devices of one node",
        ),
    ],
)
def test_where_devices_cannot_be_given_out(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    with pytest.raises(DeploymentError, match=sentence):
        loaded(tmp_path, POOL.replace(old, new))


def test_what_is_of_assign_alone(pool: Deployment, tmp_path: Path) -> None:
    static = loaded(tmp_path, POOL.replace("placement: {policy: assign}\n", ""))
    with pytest.raises(ValueError, match="`dry_run` is of the placement policy assign"):
        inferway.simulate(static, dry_run=True)
    with pytest.raises(ValueError, match="`records` are not kept"):
        inferway.simulate(pool, records=tmp_path)
    assert inferway.simulate(static, queries=2_000, placement={"policy": "assign"}).placement


JOINT = """\
tasks:
  a:
    deadline: 1 s
    variants:
      low: {accuracy: 0.7, energy: 1 J, load_time: 1 s, service: {gpu: {mean: 5 ms}}}
      high: {accuracy: 0.9, energy: 4 J, load_time: 2 s, service: {gpu: {mean: 20 ms}}}
  b:
    deadline: 1 s
    variants:
      low: {accuracy: 0.5, energy: 1 J, load_time: 1 s, service: {gpu: {mean: 5 ms}}}
      high: {accuracy: 0.7, energy: 4 J, load_time: 2 s, service: {gpu: {mean: 20 ms}}}
targets:
  good: {tasks: [a, b], accuracy: 0.75}
  joules: {tasks: [a, b], energy: 3.5 J}
nodes:
  here:
    devices: {gpu: {count: 8}}
    instances: {a/high: 4, b/high: 4}
placement: {policy: assign}
workload:
  a: {arrivals: {process: phases, phases: [{for: 60 s, rate: 150/s}, {for: 60 s, rate: 50/s}]}}
  b: {arrivals: {process: phases, phases: [{for: 60 s, rate: 50/s}, {for: 60 s, rate: 150/s}]}}
"""


def test_targets_over_several_tasks_are_kept_as_devices_change_hands(tmp_path: Path) -> None:
    # Task b alone is never as accurate, and the accurate copies alone take more energy.
    found = inferway.simulate(loaded(tmp_path, JOINT), queries=24_000)  # 240 s
    assert found.placement is not None
    assert found.placement.moves > 0
    tasks = found.tasks.values()
    answers = [one.queries * (1 - one.violation_ratio) for one in tasks]
    energies_j = [1.0 + 3.0 * one.classes["high"].share for one in tasks]
    accuracies = [one.accuracy.mean for one in tasks]
    assert np.average(accuracies, weights=answers) >= 0.75 - 0.002
    assert np.average(energies_j, weights=answers) <= 3.5 * 1.01
    assert found.totals is not None
    assert found.totals.violation_ratio < 0.02
    for one in found.placement.decisions:
        assert one["targets"]["good"]["after"] >= 0.75 - 1e-6
        assert one["targets"]["joules"]["after"] <= 3.5 + 1e-6


def test_a_target_over_a_task_that_is_left_out_is_refused(tmp_path: Path) -> None:
    text = POOL.replace("workload:", "targets: {both: {tasks: [a, b], accuracy: 0.8}}\nworkload:")
    text = text.replace("dispatch: {policy: deadline}\n", "")
    with pytest.raises(ValueError, match=r"targets\.both: it is over b as well"):
        inferway.simulate(loaded(tmp_path, text), tasks=("a",), queries=1_000)


def test_a_slot_without_a_request_is_one_like_others(tmp_path: Path) -> None:
    text = POOL[: POOL.index("workload:")] + (
        "workload:\n"
        "  a: {arrivals: {process: poisson, rate: 0.02/s}}\n"
        "  b: {arrivals: {process: poisson, rate: 0.02/s}}\n"
    )
    found = inferway.simulate(loaded(tmp_path, text), queries=10, warmup=0, seed=1)
    assert found.placement is not None
    assert found.placement.slots == 50
    assert found.placement.bound == pytest.approx(0.9)
    assert 0 < sum(one.queries for one in found.tasks.values()) < 50
