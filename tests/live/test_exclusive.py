"""A device that holds one variant at a time, served: changes, failures, records and restarts."""

from __future__ import annotations

import json
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.dispatch import recordings
from inferway.live import ServeError

# Each writes down when it comes and goes and what it runs, in files that all processes see.
CODE = """
import atexit, os, time
from pathlib import Path
import numpy as np

HERE = Path(__file__).parent


class Small:
    inputs = {"x": ("FP32", [-1, 1])}
    outputs = {"y": ("FP32", [-1, 1])}
    factor = 2.0

    def __init__(self):
        if (HERE / f"broken-{type(self).__name__}").exists():
            raise ValueError("no weights")
        self.note("load")
        atexit.register(self.note, "unload")

    def note(self, what):
        with (HERE / "journal").open("a") as journal:
            journal.write(f"{what} {type(self).__name__} {os.getpid()}\\n")

    def predict(self, inputs):
        if inputs["x"].any():
            self.note("run")
        return {"y": inputs["x"] * self.factor}


class Large(Small):
    factor = 3.0


class Least(Small):
    factor = 4.0
"""
FILE = """
tasks:
  times:
    accuracy_target: 0.5
    variants:
      small: {python: ./models.py:Small, accuracy: 0.8, load_time: 7 s, service: {mean: 1 ms}}
      large: {python: ./models.py:Large, accuracy: 0.9, load_time: 7 s, service: {mean: 2 ms}}
nodes:
  here:
    devices: {gpu: {count: 1, exclusive: true}}
    instances: {times/small: 1, times/large: 1}
dispatch: {policy: POLICY}
"""
DIGITS = """
tasks:
  digits:
    accuracy_target: 0.6
    variants: {tiny: {model: zoo://digits/tiny}, small: {model: zoo://digits/small}}
nodes:
  here:
    devices: {cpu: {cores: 2, exclusive: true}}
    instances: {digits/tiny: 1, digits/small: 1}
"""
# Two tasks on one device, the fastest of all variants the second one's.
TWO = """
tasks:
  times:
    accuracy_target: 0.5
    deadline: 60 s
    variants:
      small: {python: ./models.py:Small, accuracy: 0.8, load_time: 100 s, service: {mean: 2 ms}}
      large: {python: ./models.py:Large, accuracy: 0.9, load_time: 100 s, service: {mean: 4 ms}}
  sums:
    accuracy_target: 0.5
    deadline: 60 s
    variants:
      least: {python: ./models.py:Least, accuracy: 0.7, load_time: 100 s, service: {mean: 1 ms}}
nodes:
  here:
    devices: {gpu: {count: 1, exclusive: true}}
    instances: {times/small: 1, times/large: 1, sums/least: 1}
dispatch: {policy: priced}
"""
LIMIT_S = 60.0
BODY: dict[str, Any] = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [5.0]}]
}


def written(folder: Path, policy: str = "priced", **changes: str) -> inferway.Deployment:
    (folder / "models.py").write_text(CODE)
    file, text = folder / "times.yaml", FILE.replace("POLICY", policy)
    for old, new in changes.items():
        text = text.replace(old, new)
    file.write_text(text)
    return inferway.load(file)


def ask(running: Any, variant: str) -> Any:
    return running.infer(BODY, path=f"/v2/models/times/versions/{variant}/infer")


def told(running: Any) -> dict[str, Any]:
    status = json.loads(running.get("/status", admin=True).body)
    return status["tasks"]["times"]["devices"]["gpu"]  # type: ignore[no-any-return]


def journal(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "journal").read_text().splitlines()]


def one_at_a_time(folder: Path) -> None:
    """Hold against the journal that no variant was loaded beside another, or ran unloaded."""
    loaded: set[tuple[str, str]] = set()
    for what, name, process in journal(folder):
        if what == "load":
            assert not loaded  # the other has gone before
            loaded.add((name, process))
        elif what == "unload":
            loaded.remove((name, process))
        else:
            assert (name, process) in loaded
    assert len(loaded) <= 1  # the last ends with the server


def test_both_are_never_loaded_and_changes_are_timed(start: Any, tmp_path: Path) -> None:
    running = start(deployment=written(tmp_path), record=tmp_path / "run")
    assert told(running)["holds"] == "small"
    assert told(running)["changes"] == 0
    for number in range(6):
        variant, factor = ("small", 2.0) if number % 2 else ("large", 3.0)
        answer = ask(running, variant)
        assert answer.status == 200
        assert json.loads(answer.body)["outputs"][0]["data"] == [5.0 * factor]
        assert told(running)["holds"] == variant
        assert ask(running, variant).status == 200  # without a change
    now = told(running)
    assert now["changes"] == 6
    assert 0.0 < now["change_seconds"] < 42.0
    assert 0.0 < now["load_s"]["small"] < 7.0  # measured, whatever the file says
    changes = running.site.pool.dispatcher.site.devices.changes
    assert changes.load_s.tolist() == [now["load_s"]["small"], now["load_s"]["large"]]
    in_force = json.loads(running.get("/deployment/times", admin=True).body)
    assert [one["load_s"] for one in in_force["classes"]] == changes.load_s.tolist()
    metrics = running.get("/metrics", admin=True).body.decode()
    assert 'inferway_device_changes_total{device="gpu",task="times"} 6.0' in metrics
    assert 'inferway_load_seconds{task="times",variant="large"}' in metrics
    running.wait(running.server.stop())
    one_at_a_time(tmp_path)
    (recorded,) = recordings(tmp_path / "run")
    found = inferway.replay(recorded, requests=None)
    assert found.differences == ()
    assert found.requests == 12


def test_load_times_are_kept_from_one_run_to_the_next(start: Any, tmp_path: Path) -> None:
    deployment, times = written(tmp_path), tmp_path / "times.json"
    running = start(deployment=deployment, times=times)
    running.wait(running.server.stop())
    kept = json.loads(times.read_text())
    assert len(kept["loads"]) == 2
    kept["loads"] = dict.fromkeys(kept["loads"], 1000.0)
    times.write_text(json.dumps(kept))
    running = start(deployment=deployment, times=times)
    # What was kept counts beside what has been measured since.
    assert all(100.0 < load_s < 1000.0 for load_s in told(running)["load_s"].values())


def test_who_waits_for_a_change_is_predicted_and_explained(start: Any, tmp_path: Path) -> None:
    running = start(deployment=written(tmp_path))
    least_ms = 1e3 * told(running)["load_s"]["large"]
    path = "/v2/models/times/versions/large/infer"
    assert running.infer(BODY, "X-Request-Id: one\r\n", path=path).status == 200
    explained = json.loads(running.get("/v2/models/times/explain/one").body)
    assert explained["predicted_latency_ms"] > least_ms
    waits_ms = {one["variant"]: one["predicted_wait_ms"] for one in explained["candidates"]}
    assert waits_ms == {"small": 0.0, "large": pytest.approx(least_ms, abs=0.01)}
    assert [one["idle"] for one in explained["candidates"]] == [1, 0]


def test_a_variant_that_cannot_be_loaded_rests_and_the_other_answers(
    start: Any, tmp_path: Path
) -> None:
    running = start(deployment=written(tmp_path, "most-accurate-only"))
    (tmp_path / "broken-Large").touch()
    answer = running.infer(BODY, path="/v2/models/times/infer")  # large is asked, and small answers
    assert answer.status == 200
    assert json.loads(answer.body)["outputs"][0]["data"] == [10.0]
    answer = ask(running, "large")
    assert answer.status == 503
    assert ask(running, "small").status == 200
    assert told(running)["holds"] == "small"
    (tmp_path / "broken-Large").unlink()
    limit_s = time.monotonic() + LIMIT_S
    while ask(running, "large").status != 200:  # it is tried again by and by
        assert time.monotonic() < limit_s
    assert told(running)["holds"] == "large"


def test_one_queue_of_all_does_not_wait_for_who_never_falls_idle(
    start: Any, tmp_path: Path
) -> None:
    """A device that holds another variant, or none, is idle for nobody until it is changed."""
    exclusive = "exclusive: true}}"
    central = {exclusive: exclusive + "\n    queue: central"}
    running = start(deployment=written(tmp_path, "sq", **central))
    assert ask(running, "large").status == 200
    assert told(running)["holds"] == "large"
    (tmp_path / "broken-Small").touch()
    assert ask(running, "small").status == 503
    assert told(running)["holds"] is None
    assert running.infer(BODY, path="/v2/models/times/infer").status == 200
    assert told(running)["holds"] == "large"


def test_who_leaves_during_a_change_and_who_comes(start: Any, tmp_path: Path) -> None:
    running = start(deployment=written(tmp_path))
    path = "/v2/models/times/versions/{}/infer"
    gone = running.wire()
    gone.send(running.post(BODY, path=path.format("large")))
    gone.close()
    wires = [running.wire() for _ in range(12)]
    for number, wire in enumerate(wires):
        wire.send(running.post(BODY, path=path.format(("small", "large")[number % 2])))
    answers = [wire.read() for wire in wires]
    assert [one.status for one in answers] == [200] * 12
    assert [json.loads(one.body)["outputs"][0]["data"][0] for one in answers] == [10.0, 15.0] * 6
    devices = running.site.pool.dispatcher.site.devices
    assert devices.used.tolist() == [0]
    assert devices.changes.loads.tolist() == [-1]


def test_a_server_ends_in_the_midst_of_a_change(start: Any, tmp_path: Path) -> None:
    running = start(deployment=written(tmp_path))
    wire = running.wire()
    wire.send(running.post(BODY, path="/v2/models/times/versions/large/infer"))
    while running.call(lambda: running.site.pool.in_flight) == 0:
        pass
    running.wait(running.server.stop())
    assert wire.read().status == 200  # what has come is answered
    ended = [what for what, *_ in journal(tmp_path)]
    assert 0 <= ended.count("load") - ended.count("unload") <= 1  # the last ends with the server


def test_models_in_this_process_change_as_well(start: Any, tmp_path: Path) -> None:
    file = tmp_path / "digits.yaml"
    file.write_text(DIGITS)
    running = start(deployment=inferway.load(file))
    models: list[Any] = running.site.pool.runtimes
    assert [one.loaded for one in models] == [True, False]
    image = {"name": "image", "datatype": "FP32", "shape": [1, 1, 32, 32], "data": [0.0] * 1024}
    for variant, loaded in (("small", [False, True]), ("tiny", [True, False])):
        path = f"/v2/models/digits/versions/{variant}/infer"
        assert running.infer({"inputs": [image]}, path=path).status == 200
        assert [one.loaded for one in models] == loaded


def two(folder: Path, policy: str = "priced", **changes: str) -> inferway.Deployment:
    (folder / "models.py").write_text(CODE)
    file, text = folder / "two.yaml", TWO.replace("priced", policy)
    for old, new in changes.items():
        text = text.replace(old, new)
    file.write_text(text)
    return inferway.load(file)


def held(running: Any) -> list[str | None]:
    """What the device holds, as each task says it."""
    status = json.loads(running.get("/status", admin=True).body)
    return [one["devices"]["gpu"]["holds"] for one in status["tasks"].values()]


VARIANTS = [("times", "small", 2.0), ("sums", "least", 4.0), ("times", "large", 3.0)]


def test_tasks_share_a_device_that_holds_one_variant_of_all(start: Any, tmp_path: Path) -> None:
    running = start(deployment=two(tmp_path), record=tmp_path / "run")
    assert held(running) == ["sums/least", "least"]  # the fastest of all
    for number in range(9):
        task, variant, factor = VARIANTS[number % 3]
        path = f"/v2/models/{task}/versions/{variant}/infer"
        answer = running.infer(BODY, path=path)
        assert answer.status == 200
        assert json.loads(answer.body)["outputs"][0]["data"] == [5.0 * factor]
        assert held(running)[task == "sums"] == variant
        assert held(running)[task != "sums"] == f"{task}/{variant}"
        assert running.infer(BODY, path=path).status == 200  # without a change
    status = json.loads(running.get("/status", admin=True).body)["tasks"]
    assert [one["devices"]["gpu"]["changes"] for one in status.values()] == [6, 3]
    running.wait(running.server.stop())
    one_at_a_time(tmp_path)
    found = [inferway.replay(one, requests=None) for one in recordings(tmp_path / "run")]
    assert [one.differences for one in found] == [(), ()]
    assert [one.losses for one in found] == [(), ()]
    assert sorted(one.requests for one in found) == [6, 12]


@pytest.mark.parametrize("fastest", ["sums/least", "times/small"])
def test_who_is_served_finds_the_fastest_of_all(start: Any, tmp_path: Path, fastest: str) -> None:
    slower = {} if fastest == "sums/least" else {"mean: 1 ms": "mean: 9 ms"}
    running = start(deployment=two(tmp_path, **slower), wait=False)
    starting = running.begin(running.server.start())

    def seen() -> list[tuple[bool, str | None]]:
        sites = running.server.sites.values()
        return [(one.ready, one.pool.held_variants.name_of("gpu")) for one in sites]

    while not wait([starting], 0.02).done:  # and not at every moment, which would hold it up
        for ready, holds in running.call(seen):
            assert not ready or holds in (fastest, fastest.partition("/")[2])
    starting.result()
    task, _, variant = fastest.partition("/")
    assert held(running) == [variant if one == task else fastest for one in ("times", "sums")]


@pytest.mark.parametrize("policy", ["priced", "deadline", "sq"])
def test_tasks_in_a_hurry_take_turns_at_what_they_share(
    start: Any, tmp_path: Path, policy: str
) -> None:
    running = start(deployment=two(tmp_path, policy), record=tmp_path / "run")
    wires = [running.wire() for _ in range(24)]
    for number, wire in enumerate(wires):
        task, variant, _ = VARIANTS[number % 3]
        pinned = f"/versions/{variant}" if number % 4 else ""
        wire.send(running.post(BODY, path=f"/v2/models/{task}{pinned}/infer"))
    answers = [wire.read() for wire in wires]
    assert {one.status for one in answers} == {200}
    for number, answer in enumerate(answers):
        task, _, factor = VARIANTS[number % 3]
        (told,) = json.loads(answer.body)["outputs"][0]["data"]
        assert told / 5.0 in ((factor,) if number % 4 else {"sums": (4.0,)}.get(task, (2.0, 3.0)))
    for site in running.server.sites.values():
        devices = site.pool.dispatcher.site.devices
        assert devices.used.tolist() == [0]
        assert devices.changes.loads.tolist() == [-1]
        assert not devices.waits.any()
    running.wait(running.server.stop())
    one_at_a_time(tmp_path)
    found = [inferway.replay(one, requests=None) for one in recordings(tmp_path / "run")]
    assert [one.differences for one in found] == [(), ()]
    assert [one.losses for one in found] == [(), ()]


def test_the_change_to_another_tasks_variant_is_predicted(start: Any, tmp_path: Path) -> None:
    running = start(deployment=two(tmp_path))
    load_ms = (
        1e3
        * json.loads(running.get("/status", admin=True).body)["tasks"]["times"]["devices"]["gpu"][
            "load_s"
        ]["small"]
    )
    # The device holds the other task's variant, so that each of these has to be loaded.
    path = "/v2/models/times/versions/small/infer"
    assert running.infer(BODY, "X-Request-Id: one\r\n", path=path).status == 200
    explained = json.loads(running.get("/v2/models/times/explain/one").body)
    waits_ms = {one["variant"]: one["predicted_wait_ms"] for one in explained["candidates"]}
    assert waits_ms["small"] == pytest.approx(load_ms, abs=0.01)
    assert [one["idle"] for one in explained["candidates"]] == [0, 0]


def test_what_one_task_cannot_load_costs_the_other_nothing(start: Any, tmp_path: Path) -> None:
    running = start(deployment=two(tmp_path))
    (tmp_path / "broken-Small").touch()
    assert running.infer(BODY, path="/v2/models/times/versions/small/infer").status == 503
    assert held(running) == [None, None]
    assert running.infer(BODY, path="/v2/models/sums/infer").status == 200
    assert held(running) == ["sums/least", "least"]
    (tmp_path / "broken-Least").touch()
    assert running.infer(BODY, path="/v2/models/times/versions/large/infer").status == 200
    assert held(running) == ["large", "times/large"]


def test_a_task_that_is_put_in_anew_takes_its_turns(start: Any, tmp_path: Path) -> None:
    """As another file is applied, its variants are loaded while the device is free for that.

    What was measured of loads counts meanwhile: by the file alone, nobody would be in time.
    """
    running = start(deployment=two(tmp_path), record=tmp_path / "run")
    other = two(tmp_path, **{"mean: 4 ms": "mean: 5 ms"})
    applying = running.begin(running.server.apply(other))
    answers = 0
    while not applying.done() or answers < 8:
        path = ("/v2/models/sums/infer", "/v2/models/times/infer")[answers % 2]
        assert running.infer(BODY, path=path).status == 200
        answers += 1
    applying.result()
    for task, variant, factor in VARIANTS:
        answer = running.infer(BODY, path=f"/v2/models/{task}/versions/{variant}/infer")
        assert json.loads(answer.body)["outputs"][0]["data"] == [5.0 * factor]
        assert held(running)[task == "sums"] == variant
    running.wait(running.server.stop())
    found = [inferway.replay(one, requests=None) for one in recordings(tmp_path / "run")]
    assert len(found) == 4
    assert not any(one.differences or one.losses for one in found)


def test_a_device_becomes_exclusive_and_is_no_longer(start: Any, tmp_path: Path) -> None:
    soon, exclusive = {"load_time: 100 s": "load_time: 1 s"}, ", exclusive: true"
    shared = soon | {exclusive: ""}
    running = start(deployment=two(tmp_path, **shared), record=tmp_path / "run")
    for changes in (soon, shared):
        applying = running.begin(running.server.apply(two(tmp_path, **changes)))
        while not applying.done():
            assert running.infer(BODY, path="/v2/models/sums/infer").status == 200
        applying.result()
        for task, variant, _ in VARIANTS:
            path = f"/v2/models/{task}/versions/{variant}/infer"
            assert running.infer(BODY, path=path).status == 200
    running.wait(running.server.stop())
    found = [inferway.replay(one, requests=None) for one in recordings(tmp_path / "run")]
    assert len(found) == 6
    assert not any(one.differences or one.losses for one in found)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {
                "devices: {": "devices: {cpu: {hardware: gpu, cores: 2}, ",
                "times/small: 1": "times/small: {gpu: 1, cpu: 1}",
                "times/large: 1": "times/large: {gpu: 1}",
            },
            "nodes.here.devices.gpu.exclusive: times/small has instances on cpu as well",
        ),
        (
            {"dispatch:": "placement: {policy: assign}\ndispatch:"},
            "nodes.here.devices.gpu.exclusive: `assign` gives out copies that can all run",
        ),
    ],
)
def test_what_serve_does_not_know_of_exclusive_devices(
    tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    deployment = written(tmp_path, **changes)
    with pytest.raises(ServeError, match=sentence):
        inferway.serve(deployment)
