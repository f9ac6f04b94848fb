"""What a live server decided, decided again from its recording alone."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

import inferway
from inferway.catalog import testset as load_testset
from inferway.dispatch import recordings
from inferway.dispatch.recording import END, LEAVE, NEXT, START, TURN
from inferway.dispatch.replay import events
from inferway.live import ServeError

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


def run(start: Callable[..., Any], folder: Path, policy: str, count: int, more: str = "") -> Path:
    running = start(deployment=deployment_of(folder, policy, more), record=folder / "run")
    statuses = ask_all(running, count)
    assert statuses[200] > count // 5
    assert statuses[429] > 0
    running.wait(running.server.stop())
    (recorded,) = recordings(folder / "run")
    found = inferway.replay(recorded, requests=None)
    assert (found.task, found.same_code) == ("digits", True)
    # A request that gave way to one of higher priority, or got its place back, was decided twice.
    assert count <= found.requests < 1.1 * count
    assert found.events > count
    assert found.differences == ()
    return recorded


@pytest.mark.parametrize("policy", ["{policy: priced}", "{policy: r-jsq, window: 100 ms}"])
def test_a_replay_finds_no_difference(start: Any, tmp_path: Path, policy: str) -> None:
    run(start, tmp_path, policy, 1_500)


@pytest.mark.parametrize("policy", ["{policy: priced}", "{policy: deadline}"])
def test_runs_take_turns_at_their_device_in_the_order_in_which_they_are_due(
    start: Any, tmp_path: Path, policy: str
) -> None:
    recorded = run(start, tmp_path, policy, 1_500, ", devices: {cpu: {cores: 1}}")
    runs, waiting, waited, turn = 0, dict[int, float](), 0, -1
    for row in np.concatenate([rows for _, rows in events(recorded)]):
        server = int(row["server"])
        if row["kind"] == TURN:
            if runs or waiting:
                waiting.setdefault(server, float(row["value"]))
                waited += 1
            else:
                turn = server
        elif row["kind"] == NEXT and waiting and not runs:
            # One whose requests have all expired meanwhile does not start, and waits no longer.
            turn = min(waiting, key=waiting.__getitem__)
            del waiting[turn]
        elif row["kind"] == START:
            assert (runs, server) == (0, turn)  # on one core
            runs += 1
        elif row["kind"] == END:
            runs -= 1
        elif row["kind"] == LEAVE:
            waiting.pop(server, None)
    assert runs == 0
    assert waiting == {}
    assert waited > 100


@pytest.mark.parametrize("late", ["drop", "serve"])
def test_a_central_queue_is_served_and_replayed(start: Any, tmp_path: Path, late: str) -> None:
    deployment = deployment_of(tmp_path, "{policy: priced}", more=f", queue: central, late: {late}")
    running = start(deployment=deployment, record=tmp_path / "run")
    site = running.site
    assert site.pool.dispatcher.site.arrived_s.shape == (4, 1)
    statuses = ask_all(running, 600)
    # 4 in service and (8 - 1) x 4 in line: a burst of 48 is too much.
    assert statuses[200] > 300
    assert statuses[429] > 0
    assert not running.call(lambda: site.pool.held)
    running.wait(running.server.stop())
    found = inferway.replay(tmp_path / "run" / "digits", requests=None)
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
    assert inferway.replay(tmp_path / "run" / "digits").requests == 0
    patient.advance(1.0)
    # The server still runs; as if it died now.
    until(lambda: inferway.replay(tmp_path / "run" / "digits").requests == 1)


def test_a_folder_that_holds_a_recording_is_refused(start: Any, tmp_path: Path) -> None:
    deployment = deployment_of(tmp_path, "{policy: priced}")
    start(deployment=deployment, record=tmp_path / "run")
    with pytest.raises(ServeError, match="already holds a recording"):
        start(deployment=deployment, record=tmp_path / "run")


@contextmanager
def serving(folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    """Run `inferway serve --record`, and give its process and ports."""
    file = deployment_of(folder, "{policy: priced}").path
    command = [sys.executable, "-m", "inferway", "serve", str(file), "--json", "--no-grpc"]
    command += ["--http-port", "0", "--admin-port", "0", "--drain-delay", "0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--record", str(folder / "run")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (folder / "log").read_text()
        yield process, json.loads(line)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def recording_of(port: int) -> tuple[dict[str, Any], dict[str, float]]:
    """Read what the server says of its recording, on both pages."""
    url = f"http://127.0.0.1:{port}"
    with urlopen(f"{url}/status", timeout=20) as answer:
        said = json.load(answer)["tasks"]["digits"]["recording"]
    with urlopen(f"{url}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("inferway_recording_"):
            name, value = line.split()
            assert name.endswith('{task="digits"}'), line
            found[name.removesuffix('{task="digits"}')] = float(value)
    return said, found


def test_a_recording_that_is_refused_says_so_and_goes_on(tmp_path: Path, until: Any) -> None:
    asked = 0
    with serving(tmp_path) as (process, ports):

        def ask(count: int) -> None:
            nonlocal asked
            url = f"http://127.0.0.1:{ports['http_port']}/v2/models/digits/infer"
            data = load_testset().images[:1]
            image: dict[str, Any] = {"name": "image", "datatype": "FP32"}
            image |= {"shape": list(data.shape), "data": data.ravel().tolist()}
            for _ in range(count):
                request = Request(url, json.dumps({"inputs": [image]}).encode())
                with urlopen(request, timeout=20) as answer:
                    assert answer.status == 200
            asked += count

        ask(5)
        said, metrics = recording_of(ports["admin_port"])
        assert (said["writing"], said["folder"]) == (True, str(tmp_path / "run" / "digits"))
        assert metrics["inferway_recording_writing"] == 1
        until(lambda: inferway.replay(tmp_path / "run" / "digits").requests == 5)
        # No file may grow any further, and none may begin.
        size = (tmp_path / "run" / "digits" / "000001.events").stat().st_size
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 7, hard))
        ask(5)
        until(lambda: not recording_of(ports["admin_port"])[0]["writing"])
        ask(3)
        said, metrics = recording_of(ports["admin_port"])
        assert (said["reason"], said["gaps"]) == ("File too large", 1)
        assert time.time() - 60 < said["since"] < time.time()
        assert said["lost_decisions"] == metrics["inferway_recording_lost_decisions_total"] == 8
        assert said["lost_events"] == metrics["inferway_recording_lost_events_total"] > 8
        assert metrics["inferway_recording_writing"] == 0
        assert metrics["inferway_recording_gaps_total"] == 1
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        until(lambda: recording_of(ports["admin_port"])[0]["writing"])
        ask(4)
        said, metrics = recording_of(ports["admin_port"])
        assert (said["folder"], said["gaps"]) == (str(tmp_path / "run" / "digits.2"), 1)
        assert metrics["inferway_recording_writing"] == 1
        until(lambda: "recording again" in (tmp_path / "log").read_text())
    assert process.returncode == 0
    # The log itself was refused too, and says so by now.
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert {"recording again"} <= {line["event"] for line in lines}
    done = subprocess.run(
        [sys.executable, "-m", "inferway", "replay", str(tmp_path / "run"), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)["tasks"].values()
    assert (first["requests"], second["requests"], second["gap"]["decisions"]) == (5, 4, 8)
    assert asked == 5 + 4 + 8
    assert "digits.2: nothing was recorded from " in done.stderr
    assert ": 8 decisions and " in done.stderr


def test_a_full_disk_is_a_gap_between_two_sections(
    start: Any, disk: Path, tmp_path: Path, until: Any
) -> None:
    running = start(deployment=deployment_of(tmp_path, "{policy: priced}"), record=disk / "run")
    site = running.site
    ask_all(running, 96)
    until(lambda: inferway.replay(disk / "run" / "digits").requests >= 96)
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    until(lambda: ask_all(running, 96) and running.call(lambda: site.pool.recording.gap))
    ask_all(running, 96)
    filler.unlink()
    until(lambda: running.call(lambda: site.pool.recording.gap is None))
    ask_all(running, 96)
    lost = site.pool.recording.losses
    running.wait(running.server.stop())
    first, second = (inferway.replay(one, requests=None) for one in recordings(disk / "run"))
    assert (first.differences, second.differences) == ((), ())
    assert second.gap is not None
    assert (second.gap.decisions, second.gap.events) == (lost.decisions, lost.events)
    assert second.gap.decisions >= 96
    assert second.requests >= 96
    assert first.ended is not None
    assert first.ended.reason == "No space left on device"


def test_a_site_that_takes_over_on_a_full_disk_is_recorded_later(
    start: Any, disk: Path, tmp_path: Path, until: Any
) -> None:
    running = start(deployment=deployment_of(tmp_path, "{policy: priced}"), record=disk / "run")
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    other = deployment_of(tmp_path, "{policy: priced}", more=", queue: central")
    running.wait(running.server.apply(other))
    site = running.site
    ask_all(running, 96)
    until(lambda: running.call(lambda: site.pool.recording.gap))
    filler.unlink()
    until(lambda: running.call(lambda: site.pool.recording.gap is None))
    ask_all(running, 96)
    running.wait(running.server.stop())
    found = [inferway.replay(one, requests=None) for one in recordings(disk / "run")]
    assert [one.ended is None for one in found] == [True, True]
    assert found[1].gap is not None
    assert found[1].gap.decisions > 40
    assert found[1].requests > 40
    assert found[1].differences == ()
