"""What a live server decided, decided again from its recording alone."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.dispatch.replay import recordings, replay
from inferway.live import ServeError
from inferway.live.upkeep import FLUSH_S

DIGITS = """
tasks:
  digits:
    accuracy_target: 0.9
    variants:
      tiny: {{model: zoo://digits/tiny}}
      small: {{model: zoo://digits/small}}
      large: {{model: zoo://digits/large}}
nodes:
  here: {{instances: {{digits/tiny: 2, digits/small: 1, digits/large: 1}}, buffer: 8{more}}}
dispatch: {policy}
"""
WIRES = 6
BURST = 8
"""Requests in a row on one connection."""


def deployment_of(folder: Path, policy: str, more: str = "") -> inferway.Deployment:
    file = folder / "digits.yaml"
    file.write_text(DIGITS.format(policy=policy, more=more))
    return inferway.load(file)


def asks(post: Callable[..., bytes], count: int) -> list[bytes]:
    """Requests of all kinds: plain, urgent, choosy, pinned, of several rows."""
    images = load_testset().images
    choose = random.Random(4)
    made = []
    for i in range(count):
        rows = 1 + (i % 7 == 0)
        data = images[i % 1000 : i % 1000 + rows]
        tensor = {
            "name": "image",
            "datatype": "FP32",
            "shape": list(data.shape),
            "parameters": {"binary_data_size": data.nbytes},
        }
        parameters: dict[str, Any] = {}
        if i % 5 == 0:
            parameters["deadline_ms"] = choose.choice([0.01, 2, 20])
        if i % 11 == 0:
            parameters["accuracy"] = choose.choice([0.5, 0.93, 0.99])
        if i % 13 == 0:
            parameters["priority"] = choose.choice([1, 9])
        path = "/v2/models/digits" + "/versions/tiny" * (i % 17 == 0) + "/infer"
        text = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        head = f"Inference-Header-Content-Length: {len(text)}\r\n"
        made.append(post(text + data.tobytes(), head, path))
    return made


def ask_all(running: Any, count: int) -> dict[int, int]:
    """Send requests in bursts over several connections; how many ended with which status."""
    wires = [running.wire() for _ in range(WIRES)]
    statuses: dict[int, int] = {}
    requests = asks(running.post, count)
    for first in range(0, count, WIRES * BURST):
        burst = [requests[first + i : first + WIRES * BURST : WIRES] for i in range(WIRES)]
        for wire, part in zip(wires, burst, strict=True):
            wire.send(b"".join(part))
        for wire, part in zip(wires, burst, strict=True):
            for _ in part:
                status = wire.read().status
                statuses[status] = statuses.get(status, 0) + 1
    return statuses


def run(start: Callable[..., Any], folder: Path, policy: str, count: int) -> None:
    running = start(deployment=deployment_of(folder, policy), record=folder / "run")
    statuses = ask_all(running, count)
    assert statuses[200] > count // 5
    assert statuses[429] > 0
    running.wait(running.server.stop())
    (recorded,) = recordings(folder / "run")
    found = replay(recorded, requests=None)
    assert (found.task, found.same_code) == ("digits", True)
    # A request that gave way to one of higher priority, or got its place back, was decided twice.
    assert count <= found.requests < 1.1 * count
    assert found.events > count
    assert found.differences == ()


@pytest.mark.parametrize("policy", ["{policy: priced}", "{policy: r-jsq, window: 100 ms}"])
def test_a_replay_finds_no_difference(start: Any, tmp_path: Path, policy: str) -> None:
    run(start, tmp_path, policy, 1_500)


@pytest.mark.parametrize("late", ["drop", "serve"])
def test_a_central_queue_is_served_and_replayed(start: Any, tmp_path: Path, late: str) -> None:
    deployment = deployment_of(tmp_path, "{policy: priced}", more=f", queue: central, late: {late}")
    running = start(deployment=deployment, record=tmp_path / "run")
    (site,) = running.server.sites
    assert site.dispatcher.site.arrived_s.shape == (4, 1)
    statuses = ask_all(running, 600)
    # 4 in service and (8 - 1) x 4 in line: a burst of 48 is too much.
    assert statuses[200] > 300
    assert statuses[429] > 0
    assert not running.call(lambda: site.held)
    running.wait(running.server.stop())
    found = replay(tmp_path / "run" / "digits", requests=None)
    # Who found others waiting was not decided on before it was the first.
    assert found.requests >= statuses[200]
    assert found.differences == ()


@pytest.mark.slow
def test_a_replay_of_ten_thousand_requests_finds_no_difference(start: Any, tmp_path: Path) -> None:
    run(start, tmp_path, "{policy: priced}", 10_000)


def test_what_is_decided_is_on_disk_soon(
    start: Any, tmp_path: Path, until: Any, patient: Any
) -> None:
    deployment = deployment_of(tmp_path, "{policy: priced}")
    running = start(deployment=deployment, record=tmp_path / "run", loop=patient, now=patient.time)
    wire = running.wire()
    wire.send(asks(running.post, 2)[1])
    assert wire.read().status == 200
    assert replay(tmp_path / "run" / "digits").requests == 0
    patient.advance(FLUSH_S)
    # The server still runs; as if it died now.
    until(lambda: replay(tmp_path / "run" / "digits").requests == 1)


def test_a_folder_that_holds_a_recording_is_refused(start: Any, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, "{policy: priced}")
    start(deployment=deployment, record=tmp_path / "run")
    with pytest.raises(ServeError, match="already holds a recording"):
        start(deployment=deployment, record=tmp_path / "run")
