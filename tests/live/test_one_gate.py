"""Several tasks at one device: never more runs than it has slots, in one line, whatever ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import inferway
from inferway.dispatch import recordings
from inferway.live import apply

CODE = """\
import os, pathlib, time

HERE = pathlib.Path(__file__).parent


class Noted:
    inputs = {"name": (str, [-1])}
    outputs = {"name": (str, [-1])}

    def predict(self, inputs):
        name = inputs["name"][0].decode()
        self.note("begins", name)
        try:
            if name.startswith("fails"):
                raise ValueError("as asked")
            while name.startswith("waits") and not (HERE / "go").exists():
                time.sleep(0.002)
            time.sleep(0.002)
        finally:
            self.note("ends", name)
        return {"name": inputs["name"]}

    def note(self, what, name):
        line = f"{time.monotonic_ns()} {what} {name} {os.getpid()}\\n".encode()
        note = os.open(HERE / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(note, line)
        os.close(note)
"""
FILE = """\
tasks:
  a: {variants: {own: {python: {class: "./noted.py:Noted", timeout: 50 s}, accuracy: 0.9, SERVICE}}}
  b: {variants: {own: {python: {class: "./noted.py:Noted", timeout: 50 s}, accuracy: 0.9, SERVICE}}}
nodes:
  here:
    devices: {cpu: {cores: 1}}
    instances: {a/own: 3, b/own: 3}
    buffer: 1
dispatch: {policy: deadline}
""".replace("SERVICE", "service: {mean: 3 ms}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "noted.py").write_text(CODE)
    (tmp_path / "d.yaml").write_text(FILE)
    return tmp_path


def notes(folder: Path) -> list[tuple[int, str, str]]:
    """When what began or ended, warm-up runs aside, which have no name."""
    file = folder / "notes"
    lines = [] if not file.exists() else file.read_text().splitlines()
    found = [line.split() for line in lines]
    return sorted((int(one[0]), one[1], one[2]) for one in found if len(one) == 4)


def most_at_once(folder: Path) -> int:
    most = runs = 0
    for _, what, _ in notes(folder):
        runs += 1 if what == "begins" else -1
        most = max(most, runs)
    assert runs == 0
    return most


def began(folder: Path) -> list[str]:
    return [name for _, what, name in notes(folder) if what == "begins"]


def wire_of(running: Any, task: str, name: str, deadline_ms: int | None = None) -> Any:
    """Send a request, whose answer is yet to be read."""
    body: dict[str, Any] = {
        "inputs": [{"name": "name", "datatype": "BYTES", "shape": [1], "data": [name]}]
    }
    if deadline_ms is not None:
        body["parameters"] = {"deadline_ms": deadline_ms}
    wire = running.wire()
    wire.send(running.post(body, path=f"/v2/models/{task}/infer"))
    return wire


def cpu(running: Any) -> dict[str, int]:
    status: dict[str, int] = running.get("/status", admin=True).json["devices"]["cpu"]
    return status


@pytest.mark.parametrize("cores", [1, 4, 6])
def test_a_file_without_devices_shares_the_cores_of_the_machine(
    start: Any,
    folder: Path,
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(cores)})
    file = folder / "d.yaml"
    file.write_text(FILE.replace("    devices: {cpu: {cores: 1}}\n", ""))
    running = start(deployment=inferway.load(file))
    asked = [wire_of(running, "ab"[number % 2], f"waits{number}") for number in range(6)]
    until(lambda: len(began(folder)) == cores)
    devices = running.get("/status", admin=True).json.get("devices")
    if cores == 6:  # as many as there are instances: nobody waits
        assert not devices
    else:
        until(lambda: cpu(running) == {"slots": cores, "busy": cores, "waiting": 6 - cores})
    (folder / "go").touch()
    assert [wire.read().status for wire in asked] == [200] * 6
    assert most_at_once(folder) == cores


def test_tasks_stand_in_one_line_by_deadline(
    start: Any, folder: Path, until: Callable[..., None]
) -> None:
    running = start(deployment=inferway.load(folder / "d.yaml"))
    first = wire_of(running, "a", "waits")
    until(lambda: began(folder) == ["waits"])
    others = []
    asked = (("a", "never", None), ("b", "later", 200_000), ("a", "sooner", 100_000))
    for waiting, (task, name, deadline_ms) in enumerate(asked, 1):
        others.append(wire_of(running, task, name, deadline_ms))
        until(lambda waiting=waiting: cpu(running)["waiting"] == waiting)  # type: ignore[misc]
    assert cpu(running) == {"slots": 1, "busy": 1, "waiting": 3}
    text = running.get("/metrics", admin=True).body.decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"device": "cpu"}
    }
    assert samples["inferway_device_slots"] == 1
    assert samples["inferway_device_busy_slots"] == 1
    assert samples["inferway_device_waiting_instances"] == 3
    (folder / "go").touch()
    assert [wire.read().status for wire in (first, *others)] == [200] * 4
    assert began(folder) == ["waits", "sooner", "later", "never"]
    assert most_at_once(folder) == 1
    until(lambda: cpu(running) == {"slots": 1, "busy": 0, "waiting": 0})


def test_the_first_of_one_queue_of_all_stands_in_the_line_of_every_task(
    start: Any, folder: Path, until: Callable[..., None]
) -> None:
    text = FILE.replace("buffer: 1", "queue: central").replace(
        "b: {", "b: {dispatch: {policy: sq}, "
    )
    (folder / "d.yaml").write_text(text)
    running = start(deployment=inferway.load(folder / "d.yaml"))
    wires = []
    for waiting, (task, name) in enumerate((("a", "waits"), ("b", "next"), ("a", "last"))):
        wires.append(wire_of(running, task, name))
        until(lambda: "waits" in began(folder))
        until(lambda waiting=waiting: cpu(running)["waiting"] == waiting)  # type: ignore[misc]
    (folder / "go").touch()
    assert [wire.read().status for wire in wires] == [200] * 3
    assert began(folder) == ["waits", "next", "last"]


def test_a_recording_of_one_task_has_what_it_saw_of_the_other(start: Any, folder: Path) -> None:
    running = start(deployment=inferway.load(folder / "d.yaml"), record=folder / "run")
    statuses: list[int] = []

    def ask(task: str, k: int) -> None:
        for i in range(24):
            wire = wire_of(running, task, f"{task}{k}-{i}", 40)
            statuses.append(wire.read().status)

    threads = [
        threading.Thread(target=ask, args=(task, k)) for task in ("a", "b") for k in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    running.wait(running.server.stop())
    assert statuses.count(200) > 24
    assert most_at_once(folder) == 1
    for recorded in recordings(folder / "run"):
        found = inferway.replay(recorded, requests=None)
        assert found.requests == 72
        assert found.differences == ()
        assert found.losses == ()


def test_what_fails_or_is_cancelled_leaves_nothing_held(
    start: Any, folder: Path, until: Callable[..., None]
) -> None:
    running = start(deployment=inferway.load(folder / "d.yaml"))
    first = wire_of(running, "a", "waits")
    until(lambda: began(folder) == ["waits"])
    waiting = [wire_of(running, task, name) for task, name in (("b", "fails"), ("b", "gone"))]
    until(lambda: cpu(running)["waiting"] == 2)
    waiting[1].close()
    until(lambda: cpu(running)["waiting"] == 1)
    first.close()
    (folder / "go").touch()
    assert waiting[0].read().status == 500
    until(lambda: cpu(running) == {"slots": 1, "busy": 0, "waiting": 0})
    for task in ("a", "b"):
        assert wire_of(running, task, f"after-{task}").read().status == 200
    assert began(folder) == ["waits", "fails", "after-a", "after-b"]
    assert most_at_once(folder) == 1


def test_another_file_counts_what_fleets_before_hold(
    start: Any, folder: Path, until: Callable[..., None]
) -> None:
    running = start(deployment=inferway.load(folder / "d.yaml"), allow_apply=True)
    first = wire_of(running, "a", "waits")
    until(lambda: began(folder) == ["waits"])
    # Task a has another fleet, and only task b's is the line's.
    (folder / "d.yaml").write_text(FILE.replace("a/own: 3, b/own: 3", "a/own: 1, b/own: 1"))
    apply(folder / "d.yaml", f"http://127.0.0.1:{running.server.admin_port}")
    assert cpu(running) == {"slots": 1, "busy": 1, "waiting": 0}
    others = [wire_of(running, task, f"new-{task}") for task in ("b", "a")]
    until(lambda: cpu(running) == {"slots": 1, "busy": 1, "waiting": 2})
    # What waits can be seen not to run for a moment, and no longer.
    time.sleep(0.05)
    assert began(folder) == ["waits"]
    (folder / "go").touch()
    assert [wire.read().status for wire in (first, *others)] == [200] * 3
    assert began(folder)[0] == "waits"
    assert most_at_once(folder) == 1
    until(lambda: cpu(running) == {"slots": 1, "busy": 0, "waiting": 0})
    gate = running.server._gate
    until(lambda: running.call(lambda: len(gate._first)) == 2)
