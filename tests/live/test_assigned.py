"""A server whose devices are given out anew as demand shifts between its tasks."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import inferway
from inferway.catalog import model_path
from inferway.catalog import testset as load_testset
from inferway.live import Keys, apply

# As the file has it, a copy of small carries 5 requests a second, and one of large a single one: a
# task with many clients is to have all copies but one, whatever this machine does in a second.
FILE = """
tasks:
  a: &task
    deadline: 10 min
    variants:
      small: {model: zoo://digits/tiny, accuracy: 0.9, service: {mean: 200 ms}}
      large: {model: zoo://digits/small, accuracy: 0.95, service: {mean: 1 s}}
  b: *task
nodes:
  here:
    devices: {cpu: {cores: 4}}
    instances: {a/large: 2, b/large: 2}
placement: {policy: assign, slot: 0.5 s}
dispatch: {policy: deadline}
"""
# Each variant may run on both devices, and takes twice as long on one of them.
TWO = """
tasks:
  a: &task
    deadline: 10 min
    variants:
      small:
        {model: zoo://digits/tiny, accuracy: 0.9,
         service: {fast: {mean: 200 ms}, slow: {mean: 400 ms}}}
      large:
        {model: zoo://digits/small, accuracy: 0.95,
         service: {fast: {mean: 1 s}, slow: {mean: 2 s}}}
  b: *task
nodes:
  here:
    devices: {fast: {cores: 2}, slow: {cores: 2}}
    instances: {a/large: {fast: 1, slow: 1}, b/large: {fast: 1, slow: 1}}
placement: {policy: assign, slot: 0.5 s}
dispatch: {policy: deadline}
"""
PATIENCE_S = 90.0


def write(folder: Path, text: str = FILE) -> Path:
    file = folder / "shared.yaml"
    file.write_text(text)
    return file


def until(condition: Callable[[], bool]) -> None:
    deadline, pause = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.01)


class Demand:
    """Clients of both tasks, one request after another: one task has many, the other few."""

    def __init__(self, running: Any) -> None:
        self.statuses: list[tuple[str, int]] = []
        self.busy = "a"
        self._running, self._stopping = running, threading.Event()
        # Here: CPython 3.11 fails now and then where several threads parse an array's header.
        self._image = load_testset().images[:1]
        self._threads = [
            threading.Thread(target=self._work, args=(task, k))
            for task in ("a", "b")
            for k in (0, 1)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, task: str, number: int) -> None:
        image = self._image
        tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
        body = {"inputs": [tensor | {"data": image.ravel().tolist()}]}
        wire = self._running.wire()
        raw = self._running.post(body, path=f"/v2/models/{task}/infer")
        while not self._stopping.is_set():
            if task == self.busy or number == 0:
                wire.send(raw)
                self.statuses.append((task, wire.read().status))
            self._stopping.wait(0.01 if task == self.busy else 1.0)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(20)


@pytest.fixture
def demand(start: Any, tmp_path: Path) -> Iterator[Demand]:
    running = start(
        deployment=inferway.load(write(tmp_path)),
        allow_apply=True,
        assigned=tmp_path / "assigned.json",
    )
    made = Demand(running)
    yield made
    made.stop()


def copies(running: Any) -> dict[str, int]:
    """By task and variant, what answers now."""
    found = {}
    for name, site in running.server.sites.items():
        pool = site.present
        if pool is not None:
            for k, variant in enumerate(pool.variants):
                found[f"{name}/{variant}"] = pool.first[k + 1] - pool.first[k]
    return found


def follows(running: Any, busy: str, quiet: str) -> bool:
    there = copies(running)
    of_quiet = sum(count for name, count in there.items() if name.startswith(quiet))
    return there.get(f"{busy}/small") == 3 and of_quiet == 1


def kept_copies(folder: Path) -> list[list[Any]]:
    kept: list[list[Any]] = json.loads((folder / "assigned.json").read_text())["copies"]
    return kept


def moves(running: Any) -> dict[tuple[str, ...], float]:
    """By task, variant, device and change."""
    text = running.get("/metrics", admin=True).body.decode()
    labels = ("task", "variant", "device", "change")
    return {
        tuple(sample.labels[name] for name in labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "inferway_placement_moves_total"
    }


def test_devices_follow_the_demand_and_no_request_is_lost(demand: Demand, tmp_path: Path) -> None:
    running = demand._running
    until(lambda: follows(running, "a", "b"))
    demand.busy = "b"
    until(lambda: follows(running, "b", "a"))
    # A file that is applied anew goes on with these copies, and not with those that it lists.
    until(lambda: ["b", "small", "cpu", 3] in kept_copies(tmp_path))
    served = apply(
        write(tmp_path, FILE.replace("10 min", "9 min")),
        f"http://127.0.0.1:{running.server.admin_port}",
    )
    assert "small" in served["tasks"]["b"]
    before = len(demand.statuses)
    until(lambda: len(demand.statuses) > before + 20)
    demand.busy = "a"
    until(lambda: follows(running, "a", "b"))
    demand.stop()
    assert {status for _, status in demand.statuses} == {200}
    assert {task for task, _ in demand.statuses} == {"a", "b"}

    status = running.get("/status", admin=True).json
    placement = status["placement"]
    assert not placement["dry_run"]
    assert sum(placement["copies"].values()) <= 4
    assert placement["slots"] > 3
    told = placement["decisions"][-1]
    assert told["reason"]
    assert all(move["to"]["device"] == "cpu" for move in told["moves"])
    decisions = running.get("/decisions", admin=True).json["placement"]
    assert decisions[-1]["rates_per_s"].keys() == {"a", "b"}
    until(lambda: moves(running).get(("a", "small", "cpu", "loaded"), 0) >= 5)
    until(lambda: moves(running).get(("a", "small", "cpu", "retired"), 0) >= 2)
    # Each request is counted once, whichever fleet had it.
    answered = sum(task["requests"]["answered"] for task in status["tasks"].values())
    assert answered == len(demand.statuses)


def test_explanations_tell_which_copies_are_away(demand: Demand, tmp_path: Path) -> None:
    running, image = demand._running, load_testset().images[:1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    body = {"inputs": [tensor | {"data": image.ravel().tolist()}]}

    def told(name: str) -> Any:
        answer = running.infer(body, f"X-Request-Id: {name}\r\n", "/v2/models/a/infer")
        assert answer.status == 200
        return running.get(f"/v2/models/a/explain/{name}").json

    until(lambda: follows(running, "a", "b"))
    later: dict[str, Any] = {}

    def one_is_away() -> bool:
        later.update({"reassigned": []} | told("later"))
        there = {(one["variant"], one["state"]) for one in later["reassigned"]}
        return ("large", "away") in there

    until(one_is_away)
    assert ("large", "cpu") in {(one["variant"], one["device"]) for one in later["reassigned"]}
    assert all(one["since_ms"] >= 0.0 and one["reason"] for one in later["reassigned"])
    assert "as devices are given out anew, there was " in later["reason"]
    assert "large on cpu away" in later["reason"]
    # Another file begins anew.
    demand.stop()
    text = FILE.replace("10 min", "9 min").replace("0.5 s", "1 h")
    apply(write(tmp_path, text), f"http://127.0.0.1:{running.server.admin_port}")
    assert "reassigned" not in told("other")


@pytest.fixture
def on_two(start: Any, tmp_path: Path) -> Iterator[Demand]:
    running = start(
        deployment=inferway.load(write(tmp_path, TWO)),
        allow_apply=True,
        assigned=tmp_path / "assigned.json",
    )
    made = Demand(running)
    yield made
    made.stop()


def follows_on_two(running: Any, busy: str, quiet: str) -> bool:
    """Tell whether the quiet task has one copy, and on the slow device."""
    there = copies(running)
    of_quiet = {name: n for name, n in there.items() if name.startswith(quiet)}
    on_slow = all(name.endswith(":slow") for name in of_quiet)
    wanted = {f"{busy}/small:fast": 2, f"{busy}/small:slow": 1}
    return wanted.items() <= there.items() and on_slow and sum(of_quiet.values()) == 1


def test_copies_of_a_variant_are_given_out_on_each_of_its_devices(
    on_two: Demand, start: Any, tmp_path: Path
) -> None:
    running = on_two._running
    assert copies(running) == {
        f"{task}/large:{device}": 1 for task in ("a", "b") for device in ("fast", "slow")
    }
    until(lambda: follows_on_two(running, "a", "b"))
    on_two.busy = "b"
    until(lambda: follows_on_two(running, "b", "a"))
    until(lambda: ["b", "small", "fast", 2] in kept_copies(tmp_path))
    # An applied file goes on with these copies, and so does the next start.
    apply(
        write(tmp_path, TWO.replace("10 min", "9 min")),
        f"http://127.0.0.1:{running.server.admin_port}",
    )
    assert follows_on_two(running, "b", "a")
    on_two.stop()
    assert {status for _, status in on_two.statuses} == {200}

    page = running.get("/metrics", admin=True).body.decode()
    requests = [line for line in page.splitlines() if line.startswith("inferway_requests_total{")]
    text, moved = "\n".join(requests), moves(running)
    for device in ("fast", "slow"):
        assert moved["b", "small", device, "loaded"] >= 1
        assert f'task="b",variant="small:{device}"' in text
    status = running.get("/status", admin=True).json
    assert "b/small:fast" in status["placement"]["copies"]
    come = [move["to"] for one in status["placement"]["decisions"] for move in one["moves"]]
    assert {"variant": "b/small", "device": "slow"} in come
    answered = sum(task["requests"]["answered"] for task in status["tasks"].values())
    assert answered == len(on_two.statuses)

    running.wait(running.server.stop(grace_s=2.0))
    kept = kept_copies(tmp_path)
    again = start(
        deployment=inferway.load(tmp_path / "shared.yaml"), assigned=tmp_path / "assigned.json"
    )
    assert copies(again) == {f"{task}/{one}:{device}": n for task, one, device, n in kept}


# Copies on one kind of device carry 5 requests a second each, in batches, and on the other one.
BY_HARDWARE = """
tasks:
  a: &task
    deadline: 10 min
    variants:
      small:
        {model: zoo://digits/tiny, accuracy: 0.9,
         service: {good: {mean: 1 s}, poor: {mean: 1 s}},
         batch: {good: {sizes: [1, 8], service: [1 s, 1.6 s]}}}
  b: *task
nodes:
  here:
    devices: {DEVICES}
    instances: {a/small: {poor: 2}, b/small: {good: 2}}
placement: {policy: assign, slot: 0.5 s}
dispatch: {policy: deadline}
"""
DEVICES = ["good: {cores: 2}", "poor: {cores: 2}"]


def by_hardware(start: Any, folder: Path, devices: list[str], **options: Any) -> Any:
    text = BY_HARDWARE.replace("DEVICES", ", ".join(devices))
    return start(deployment=inferway.load(write(folder, text)), **options)


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1]], ids=["good first", "poor first"])
def test_a_busy_task_gets_the_devices_on_which_it_batches_well(
    start: Any, tmp_path: Path, devices: list[str]
) -> None:
    running = by_hardware(start, tmp_path, devices)
    demand = Demand(running)
    wanted = {"a/small:good": 2, "a/small:poor": 1, "b/small:poor": 1}
    told: dict[str, Any] = {}

    def has_them() -> bool:
        pool = running.server.sites["a"].pool
        there = copies(running)
        fleet = json.loads(running.get("/deployment/a", admin=True).body)
        if pool.options.rules is None:
            return False  # no copy on the device on which it has batches yet
        for name, rule in zip(pool.variants, pool.options.rules, strict=True):
            told[name] = {"largest": rule.largest}
        for one in fleet["classes"]:
            sizes = one["batch"] and one["batch"]["sizes"]
            told.setdefault(one["name"], {})["sizes"] = sizes
        # Of one fleet, which has not gone meanwhile.
        return there == wanted and running.server.sites["a"].present is pool

    try:
        until(has_them)
    finally:
        demand.stop()
    assert {status for _, status in demand.statuses} == {200}
    assert told["small:good"] == {"largest": 8, "sizes": [1, 8]}
    assert told["small:poor"] == {"largest": 1, "sizes": None}


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1]], ids=["good first", "poor first"])
def test_a_dry_run_says_that_it_would_get_them(
    start: Any, tmp_path: Path, devices: list[str]
) -> None:
    told: list[Any] = []
    running = by_hardware(start, tmp_path, devices, dry_run=True, reassigned=told.append)
    demand = Demand(running)

    def would_give_them() -> bool:
        everything = [[move["to"] for move in one["moves"]] for one in told]
        return any(
            come.count({"variant": "a/small", "device": "good"}) == 2
            and {"variant": "b/small", "device": "poor"} in come
            for come in everything
        )

    try:
        until(would_give_them)
    finally:
        demand.stop()
    assert copies(running) == {"a/small:poor": 2, "b/small:good": 2}


def test_what_was_measured_on_a_device_stays_when_others_have_copies(
    start: Any, tmp_path: Path
) -> None:
    running = start(deployment=inferway.load(write(tmp_path, TWO.replace("0.5 s", "1 h"))))
    server, image = running.server, load_testset().images[:1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    body = {"inputs": [tensor | {"data": image.ravel().tolist()}]}
    headers = "X-Request-Id: early\r\n"
    assert running.infer(body, headers, "/v2/models/a/infer").json["model_version"] == "large"
    told = running.get("/v2/models/a/explain/early").json
    assert told["variant"] == "large:fast"

    def measured() -> float:
        site = server.sites["a"].pool.dispatcher.site
        return float(site.measured[server.sites["a"].pool.variants.index("large:fast")].sum())

    before = running.call(measured)
    assert before > 0
    running.wait(server._reassign(server.assignment, "a", {("a", "large", "fast"): 1}))
    assert copies(running)["a/large:fast"] == 1
    assert "a/large:slow" not in copies(running)
    assert running.call(measured) == before


def test_targets_over_several_tasks_go_on_as_devices_are_given_out_anew(
    start: Any, tmp_path: Path
) -> None:
    text = FILE.replace("slot: 0.5 s", "slot: 1 h, best_effort: true").replace(
        "dispatch: {policy: deadline}", "targets: {both: {tasks: [a, b], accuracy: 0.92}}"
    )
    # Nothing answers task a yet.
    kept = {"schema": 1, "copies": [["b", "large", "cpu", 1]], "demand": {"mean": {}, "last": {}}}
    (tmp_path / "assigned.json").write_text(json.dumps(kept))
    deployment = inferway.load(write(tmp_path, text))
    running = start(deployment=deployment, assigned=tmp_path / "assigned.json")
    server, image = running.server, load_testset().images[:1]
    assert server.sites["a"].present is None
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    body = {"inputs": [tensor | {"data": image.ravel().tolist()}]}

    def ask(task: str, count: int) -> dict[str, Any]:
        for _ in range(count):
            assert running.infer(body, path=f"/v2/models/{task}/infer").status == 200
        both: dict[str, Any] = running.get("/status", admin=True).json["targets"]["both"]
        return both

    assert ask("b", 3)["answers"] == 3
    running.wait(server._reassign(server.assignment, "a", {("a", "small", "cpu"): 1}))
    # A fleet that comes counts for the target, too, and it has one price for all tasks.
    both = ask("a", 2)
    assert (both["answers"], both["mean"]) == (5, pytest.approx((3 * 0.95 + 2 * 0.9) / 5))
    running.wait(
        server._reassign(
            server.assignment, "b", {("b", "small", "cpu"): 1, ("b", "large", "cpu"): 1}
        )
    )
    policies = [site.pool.dispatcher.policy for site in server.sites.values()]
    assert policies[0].shared is policies[1].shared
    assert ask("b", 1)["answers"] == 6
    running.wait(server.apply(deployment))
    assert ask("b", 1)["answers"] == 7


def test_one_learned_policy_follows_the_copies_that_a_task_has(start: Any, tmp_path: Path) -> None:
    about = {
        **{"policy": "rl-po", "task": "a", "variants": ["small", "large"], "counts": [2, 2]},
        **{"accuracies": [0.9, 0.95], "service_s": [0.2, 1.0], "buffer": 15, "deadline_s": 600.0},
        **{"slot_s": 1.0, "outages": [[60.0, 60.0], [60.0, 60.0]], "schema": 1},
    }
    sizes = [(4 * 33 + 4, 8), (8, 8), (8, 4)]
    arrays = {f"weight_{i}": np.zeros(size, np.float32) for i, size in enumerate(sizes)}
    arrays |= {f"bias_{i}": np.zeros(size[1], np.float32) for i, size in enumerate(sizes)}
    np.savez(tmp_path / "any.npz", about=np.array(json.dumps(about)), **arrays)
    text = FILE.replace("slot: 0.5 s", "slot: 1 h").replace(
        "dispatch: {policy: deadline}", "scheduling: {policy: rl-po, checkpoint: any.npz}"
    )
    text = text.replace("instances: {", "buffer: 15\n    instances: {")
    running = start(deployment=inferway.load(write(tmp_path, text)))
    server = running.server

    def routing(**given: int) -> Any:
        held = {("a", name, "cpu"): count for name, count in given.items()}
        running.wait(server._reassign(server.assignment, "a", held))
        return running.call(lambda: server.sites["a"].pool.dispatcher.routing)

    assert routing(large=1) == pytest.approx([1.0])
    assert routing(small=2, large=1) == pytest.approx([1 / 3] * 3)
    # More copies than it was trained for are left to `deadline`, until there are fewer again.
    assert routing(small=3) is None
    assert routing(small=1, large=2) == pytest.approx([1 / 3] * 3)


def test_a_last_copy_serves_until_another_has_come(start: Any, tmp_path: Path) -> None:
    text = FILE.replace("cores: 4", "cores: 2").replace("large: 2", "large: 1")
    running = start(deployment=inferway.load(write(tmp_path, text)))
    demand = Demand(running)
    try:
        for busy in ("a", "b"):
            demand.busy = busy
            until(lambda busy=busy: f"{busy}/small" in copies(running))  # type: ignore[misc]
    finally:
        demand.stop()
    assert {status for _, status in demand.statuses} == {200}
    assert sum(copies(running).values()) == 2


def test_a_restart_goes_on_with_the_copies_of_before(
    demand: Demand, start: Any, tmp_path: Path
) -> None:
    running = demand._running
    demand.busy = "b"
    until(lambda: follows(running, "b", "a"))

    async def decides_no_more() -> bool:
        kept = ["b", "small", "cpu", 3] in kept_copies(tmp_path)
        if kept:
            running.server.assignment.retire()
        return kept

    until(lambda: running.wait(decides_no_more()))
    demand.stop()
    running.wait(running.server.stop(grace_s=2.0))
    kept = kept_copies(tmp_path)
    again = start(
        deployment=inferway.load(tmp_path / "shared.yaml"), assigned=tmp_path / "assigned.json"
    )
    assert copies(again) == {f"{task}/{variant}": n for task, variant, _, n in kept}
    (tmp_path / "assigned.json").write_text("{damaged")
    afresh = start(
        deployment=inferway.load(tmp_path / "shared.yaml"), assigned=tmp_path / "assigned.json"
    )
    assert copies(afresh) == {"a/large": 2, "b/large": 2}


def test_a_dry_run_moves_nothing_and_tells_what_it_would(start: Any, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    running = start(
        deployment=inferway.load(write(tmp_path)),
        assigned=tmp_path / "assigned.json",
        dry_run=True,
        reassigned=told.append,
    )
    demand = Demand(running)
    try:
        coming = {"variant": "a/small", "device": "cpu"}
        until(lambda: any(move["to"] == coming for one in told for move in one["moves"]))
    finally:
        demand.stop()
    assert all(one["dry_run"] for one in told)
    assert copies(running) == {"a/large": 2, "b/large": 2}
    assert not (tmp_path / "assigned.json").exists()
    assert moves(running) == {}


def test_a_label_counts_after_its_variant_has_gone(start: Any, tmp_path: Path) -> None:
    text = FILE.replace("slot: 0.5 s", "slot: 1 h").replace(
        "deadline: 10 min", "deadline: 10 min\n    feedback: {}"
    )
    keys = Keys(["infer=a-key-of-who-asks", "feedback=a-key-of-who-says"])
    running = start(deployment=inferway.load(write(tmp_path, text)), keys=keys)
    server, image = running.server, load_testset().images[:1]
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    body = {"inputs": [tensor | {"data": image.ravel().tolist()}]}
    asks = "X-Request-Id: early\r\nAuthorization: Bearer a-key-of-who-asks\r\n"
    answer = running.infer(body, asks, "/v2/models/a/infer")
    assert answer.json["model_version"] == "large"
    running.wait(server._reassign(server.assignment, "a", {("a", "small", "cpu"): 2}))
    says, score = "Authorization: Bearer a-key-of-who-says\r\n", {"id": "early", "score": 1.0}
    told = running.infer(score, says, "/v2/models/a/feedback")
    assert told.json["matched"] == 1
    assert server.sites["a"].answers.measured["large"].labels == 1


def test_a_task_without_a_copy_takes_feedback_on_answers_of_before(
    start: Any, tmp_path: Path
) -> None:
    text = FILE.replace("slot: 0.5 s", "slot: 1 h, best_effort: true").replace(
        "deadline: 10 min", "deadline: 10 min\n    feedback: {}"
    )
    kept = {"schema": 1, "copies": [["b", "large", "cpu", 2]], "demand": {"mean": {}, "last": {}}}
    (tmp_path / "assigned.json").write_text(json.dumps(kept))
    deployment = inferway.load(write(tmp_path, text))
    running = start(deployment=deployment, assigned=tmp_path / "assigned.json")
    site = running.server.sites["a"]
    assert site.present is None
    assert (book := site.answers) is not None
    running.wait(running.server.apply(deployment))
    assert running.server.sites["a"].answers is book


def test_a_variant_that_cannot_be_loaded_is_left_alone(start: Any, tmp_path: Path) -> None:
    model = tmp_path / "own.onnx"
    model.write_bytes(model_path("digits", "tiny").read_bytes())
    text = FILE.replace("zoo://digits/tiny", model.as_uri())
    running = start(deployment=inferway.load(write(tmp_path, text)))
    assert copies(running) == {"a/large": 2, "b/large": 2}
    model.write_bytes(b"no model")
    demand = Demand(running)
    try:
        until(lambda: "a/small" in running.server.assignment.status()["barred"])
    finally:
        demand.stop()
    assert {status for _, status in demand.statuses} == {200}
    assert copies(running)["a/large"] >= 1
    moves_at = running.server.sites["a"].log.moves.at
    until(lambda: all(one["state"] != "warming" for one in moves_at(time.monotonic())))
    until(lambda: not running.server.assignment.shift.under_way)
