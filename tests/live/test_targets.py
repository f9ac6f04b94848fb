"""A target over two tasks of a running server: kept, told, explained, recorded, gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.deployment import measured
from inferway.dispatch import recordings
from inferway.live import apply

FILE = """
tasks:
  plain: &same
    variants:
      tiny: {{model: zoo://digits/tiny, accuracy: 0.8, energy: 1 J}}
      large: {{model: zoo://digits/large, accuracy: 0.95, energy: 4 J}}
  firm:
    accuracy_target: {own}
    variants:
      tiny: {{model: zoo://digits/tiny, accuracy: 0.6, energy: 1 J}}
      large: {{model: zoo://digits/large, accuracy: 0.9, energy: 9 J}}
targets: {targets}
nodes:
  here:
    buffer: 64
    instances: {{plain/tiny: 1, plain/large: {copies}, firm/tiny: 1, firm/large: 1}}
"""
BOTH = "{{both: {{tasks: [plain, firm], accuracy: {}}}}}"
GOAL, OWN = 0.85, 0.7
FEWEST, SLACK = 2_000, 0.0005
"""Answers from which on there is a verdict; how far below its target a kept mean may be."""


def write(
    folder: Path, *, goal: float = GOAL, own: float = OWN, targets: str = "", copies: int = 1
) -> Path:
    file = folder / "two.yaml"
    targets = targets or BOTH.format(goal)
    file.write_text(FILE.format(own=own, targets=targets, copies=copies))
    return file


@pytest.fixture
def serving(start: Any, tmp_path: Path) -> Any:
    running = start(
        deployment=inferway.load(write(tmp_path)),
        allow_apply=True,
        record=tmp_path / "recordings",
    )
    running.admin = f"http://127.0.0.1:{running.server.admin_port}"
    return running


def body(task: str, running: Any) -> bytes:
    data = load_testset().images[:1]
    size = {"binary_data_size": data.nbytes}
    shape = list(data.shape)
    tensor = {"name": "image", "datatype": "FP32", "shape": shape, "parameters": size}
    text = json.dumps({"inputs": [tensor]}).encode()
    length = f"Inference-Header-Content-Length: {len(text)}\r\n"
    raw: bytes = running.post(text + data.tobytes(), length, f"/v2/models/{task}/infer")
    return raw


def ask(running: Any, count: int) -> Any:
    """Ask so many, every fourth of them `firm`; return the last answer."""
    wire = running.wire()
    bodies = {task: body(task, running) for task in ("plain", "firm")}
    for number in range(count):
        wire.send(bodies["firm" if number % 4 == 3 else "plain"])
        answer = wire.read()
        assert answer.status == 200
    return answer


def told(running: Any) -> Any:
    return running.get("/status", admin=True).json


def test_it_is_kept_beside_the_tasks_own_and_told(serving: Any) -> None:
    answer = ask(serving, FEWEST + 400)
    status = told(serving)
    both = status["targets"]["both"]
    assert (both["tasks"], both["accuracy"], both["answers"]) == (
        ["plain", "firm"], GOAL, FEWEST + 400
    )  # fmt: skip
    assert both["state"] != "missed"
    assert both["mean"] >= GOAL - SLACK
    assert both["mean"] == pytest.approx(GOAL + both["balance"] / both["answers"])
    assert status["totals"]["accuracy"] == pytest.approx(both["mean"])
    assert status["tasks"]["firm"]["accuracy_mean"] >= OWN - SLACK
    metrics = serving.get("/metrics", admin=True).body.decode()
    lines = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if "inferway_target" in line)
    named = '{target="both"}'
    assert float(lines[f"inferway_target_accuracy_goal_ratio{named}"]) == GOAL
    mean = float(lines[f"inferway_target_accuracy_mean_ratio{named}"])
    assert mean == pytest.approx(both["mean"])
    assert float(lines[f"inferway_target_balance{named}"]) == pytest.approx(both["balance"])
    assert float(lines[f"inferway_target_kept{named}"]) == 1.0
    assert not any("energy" in name for name in lines)
    identity = answer.headers["x-request-id"]
    found = serving.get(f"/v2/models/firm/explain/{identity}").json
    (one,) = found["targets"]
    assert (one["name"], one["tasks"], one["accuracy"]) == ("both", ["plain", "firm"], GOAL)
    assert one["answers"] == FEWEST + 399
    assert one["price_ms"] > 0.0
    assert found["decided_by"] in ("both", "accuracy_target")
    fleet = serving.get("/deployment/plain", admin=True).json
    assert fleet["targets"] == ["both"]


def test_an_explanation_names_the_target_that_decided(start: Any, tmp_path: Path) -> None:
    running = start(deployment=inferway.load(write(tmp_path, own=0.01)))
    ask(running, 40)
    answer = ask(running, 1)
    found = running.get(f"/v2/models/plain/explain/{answer.headers['x-request-id']}").json
    assert found["decided_by"] == "both"
    assert (
        "of all targets both weighed most, which is over plain, firm: their mean was "
        in (found["reason"])
    )


def test_energy_is_kept_alike(start: Any, tmp_path: Path) -> None:
    targets = "{frugal: {tasks: [plain, firm], energy: 2 J}}"
    running = start(deployment=inferway.load(write(tmp_path, targets=targets, own=0.65)))
    ask(running, FEWEST + 200)
    frugal = told(running)["targets"]["frugal"]
    assert frugal["energy"] == 2.0
    assert frugal["mean"] <= 2.0 * 1.01
    metrics = running.get("/metrics", admin=True).body.decode()
    assert 'inferway_target_energy_goal_joules{target="frugal"} 2.0' in metrics


def test_a_replay_decides_the_same(serving: Any, tmp_path: Path) -> None:
    ask(serving, 300)
    serving.call(lambda: [site.pool.recording.close() for site in serving.server.sites.values()])
    folders = recordings(tmp_path / "recordings")
    assert [one.name for one in folders] == ["firm", "plain"]
    for folder, count in zip(folders, (75, 225), strict=True):
        found = inferway.replay(folder)
        assert (found.requests, found.differences, found.losses) == (count, (), ())
    # The twin follows both recordings side by side, where a target joins them.
    deployment = inferway.load(write(tmp_path, own=0.65))
    again = inferway.simulate(deployment, trace=tmp_path / "recordings", replications=1)
    assert {name: one.queries for name, one in again.tasks.items()} == {"firm": 75, "plain": 225}
    assert all(one.complete and one.trace is not None for one in again.tasks.values())


def test_a_drive_has_the_twin_of_both_beside_it(start: Any, tmp_path: Path) -> None:
    file = write(tmp_path, own=0.65)
    arrivals = "{arrivals: {process: poisson, rate: 60/s}}"
    with file.open("a") as more:
        more.write(f"workload: {{plain: {arrivals}, firm: {arrivals}}}\n")
    deployment = measured(inferway.load(file))
    running = start(deployment=deployment)
    driven = inferway.drive(deployment, f"http://{running.url}", duration=1.0, twin=True)
    assert driven.twin.keys() == {"plain", "firm"}
    for name, one in driven.twin.items():
        assert one.queries == 16 * driven.tasks[name].offered


def test_it_goes_on_where_it_is_the_same(serving: Any, tmp_path: Path) -> None:
    ask(serving, 40)
    before = told(serving)["targets"]["both"]
    assert before["balance"] != 0.0
    apply(write(tmp_path, copies=2), serving.admin)
    assert told(serving)["targets"]["both"] == before
    ask(serving, 4)
    assert told(serving)["targets"]["both"]["answers"] == 44
    # Another one beside it does not begin it anew.
    more = f"{BOTH.format(GOAL)[:-1]}, frugal: {{tasks: [firm, plain], energy: 5 J}}}}"
    now = told(serving)["targets"]["both"]
    apply(write(tmp_path, targets=more), serving.admin)
    after = told(serving)["targets"]
    assert after["both"] == now
    assert after["frugal"]["answers"] == 0
    apply(write(tmp_path, goal=0.8), serving.admin)
    changed = told(serving)["targets"]
    assert (changed["both"]["answers"], changed["both"]["accuracy"]) == (0, 0.8)
    assert list(changed) == ["both"]
    apply(write(tmp_path, targets="{}"), serving.admin)
    assert "targets" not in told(serving)
    ask(serving, 4)
