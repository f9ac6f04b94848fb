"""Python variants on real servers: every protocol, a promise, failures, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http

import inferway
from inferway.live import ServeError, apply
from prepared import INTERRUPTIBLE, prepared

LIMIT_S = 60.0
CODE = """\
import os, sys, time
import numpy as np


class Double:
    inputs = {"x": ("FP32", [-1, 4]), "name": (str, [-1])}
    outputs = {"y": ("FP32", [-1, 4]), "name": (str, [-1])}

    def predict(self, inputs):
        x = inputs["x"]
        print("rows", len(x))
        command = inputs["name"][0]
        if command == b"raise":
            raise ValueError("as asked")
        if command == b"die":
            os.kill(os.getpid(), 9)
        if command == b"hang":
            time.sleep(1000)
        return {"y": 2 * x, "name": inputs["name"]}


class Bad(Double):
    def __init__(self):
        raise ValueError("no weights")


class Digits:
    def predict(self, inputs):
        image = inputs["image"]
        scores = np.zeros((len(image), 10), np.float32)
        scores[:, 3] = 1.0
        return {"probabilities": scores}
"""
DOUBLE = """\
tasks:
  double:
    variants:
      own: {python: {class: "./mine.py:Double", timeout: 5 s}, accuracy: 0.9, BATCH}
nodes: {here: {instances: {double/own: 2}}}
"""


def lives(pid: int) -> bool:
    with suppress(OSError):
        return " Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3]
    return False


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    (tmp_path / "mine.py").write_text(CODE)

    def writer(text: str, batch: str = "price: 1") -> Path:
        path = tmp_path / "d.yaml"
        path.write_text(text.replace("BATCH", batch))
        return path

    return writer


@pytest.fixture
def double(start: Callable[..., Any], write: Callable[..., Path]) -> Any:
    deployment = inferway.load(write(DOUBLE, "service: {mean: 1 ms}"))
    return start(deployment=deployment, grpc_port=0)


def workers(running: Any, task: str = "double", variant: str = "own") -> list[int]:
    status = running.get("/status", admin=True).json
    found: list[int] = status["tasks"][task]["variants"][variant]["workers"]
    return found


def body(name: str = "a", rows: int = 1) -> dict[str, Any]:
    x = np.arange(rows * 4.0).tolist()
    return {
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [rows, 4], "data": x},
            {"name": "name", "datatype": "BYTES", "shape": [rows], "data": [name] * rows},
        ]
    }


def ask(running: Any, name: str = "a", rows: int = 1) -> Any:
    return running.infer(body(name, rows), path="/v2/models/double/infer")


def test_every_protocol_is_answered(double: Any) -> None:
    said = double.get("/v2/models/double").json
    assert said["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
    # More rows than one run has: they are run in parts.
    for rows in (1, 3, 200):
        answer = ask(double, "häher", rows)
        assert answer.status == 200, answer.body
        y, name = answer.json["outputs"]
        assert y["data"] == (2 * np.arange(rows * 4.0)).tolist()
        assert name["data"] == ["häher"] * rows
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    names = np.array([b"a", b"\xff"], object)
    clients = (
        (tritonclient.http, f"127.0.0.1:{double.server.http_port}"),
        (tritonclient.grpc, f"127.0.0.1:{double.server.grpc_port}"),
    )
    for kind, url in clients:
        given = [kind.InferInput("x", [2, 4], "FP32"), kind.InferInput("name", [2], "BYTES")]
        for one, array in zip(given, (x, names), strict=True):
            one.set_data_from_numpy(array)
        client = kind.InferenceServerClient(url)
        result = client.infer("double", given)
        np.testing.assert_array_equal(result.as_numpy("y"), 2 * x)
        assert result.as_numpy("name").tolist() == [b"a", b"\xff"]
        client.close()


def test_each_failure_is_its_requests_alone(double: Any, until: Any) -> None:
    before = workers(double)
    assert len(before) == 2
    raised = ask(double, "raise")
    assert raised.status == 500
    assert raised.json["error"].endswith("failed: predict raised ValueError: as asked")
    assert workers(double) == before
    died = ask(double, "die")
    assert died.status == 500
    assert "failed: its worker was ended by SIGKILL" in died.json["error"]
    late = ask(double, "hang")
    assert late.status == 504
    assert "predict took longer than its `timeout`, 5 s, so its worker" in late.json["error"]
    assert ask(double).status == 200
    labels = '{task="double",variant="own"}'

    def metrics() -> str:
        text: str = double.get("/metrics", admin=True).body.decode()
        return text

    until(lambda: f"inferway_worker_restarts_total{labels} 2.0" in metrics())
    assert f"inferway_workers{labels} 2.0" in metrics()
    assert {*workers(double)} != {*before}


def test_others_are_answered_while_workers_die(double: Any) -> None:
    statuses: list[int] = []
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            statuses.append(ask(double, rows=2).status)

    thread = threading.Thread(target=others)
    thread.start()
    ends_s = time.monotonic() + LIMIT_S
    try:
        for name in ("die", "hang", "die"):
            assert ask(double, name).status in (500, 504)
            seen = len(statuses)
            while len(statuses) < seen + 20:
                assert time.monotonic() < ends_s
                stop.wait(0.01)
    finally:
        stop.set()
        thread.join()
    assert {*statuses} == {200}


def test_it_batches(start: Callable[..., Any], write: Callable[..., Path], until: Any) -> None:
    batch = "service: {mean: 1 s}, batch: {sizes: [1, 3], service: [1 s, 2 s], min: 3}"
    text = DOUBLE.replace("double/own: 2", "double/own: 1")
    running = start(deployment=inferway.load(write(text, batch)))
    wires = [running.wire() for _ in range(3)]
    for i, wire in enumerate(wires):
        wire.send(running.post(body(f"n{i}"), path="/v2/models/double/infer"))
    for i, wire in enumerate(wires):
        answer = wire.read()
        assert answer.status == 200, answer.body
        assert answer.json["outputs"][1]["data"] == [f"n{i}"]
    text = running.get("/metrics", admin=True).body.decode()
    rows = 'inferway_batch_size_sum{task="double",variant="own"} '
    assert f"{rows}3.0" in text
    assert 'inferway_batch_size_count{task="double",variant="own"} 1.0' in text


PROMISE = """\
tasks:
  digits:
    accuracy_target: 0.85
    variants:
      own: {python: "./mine.py:Digits", accuracy: 0.75, service: {mean: 1 ms}}
      large: {model: zoo://digits/large, accuracy: 0.95, service: {mean: 2 ms}}
nodes: {here: {instances: {digits/own: 1, digits/large: 1}, buffer: 50}}
dispatch: {policy: tad-op}
"""


def test_a_promise_is_kept_beside_a_model_of_a_file(
    start: Callable[..., Any], write: Callable[..., Path]
) -> None:
    running = start(deployment=inferway.load(write(PROMISE)))
    image = running.get("/v2/models/digits").json["inputs"][0]
    shape = [1, *image["shape"][1:]]
    tensor = {**image, "shape": shape, "data": [0.0] * int(np.prod(shape))}
    answered: dict[str, int] = {}
    for _ in range(300):
        answer = running.infer({"inputs": [tensor]})
        assert answer.status == 200, answer.body
        variant = answer.json["model_version"]
        answered[variant] = answered.get(variant, 0) + 1
    assert {*answered} == {"own", "large"}
    task = running.get("/status", admin=True).json["tasks"]["digits"]
    assert task["accuracy_balance"] > -1.0
    assert task["accuracy_mean"] > 0.85 - 0.01
    assert "workers" not in task["variants"]["large"]


def test_another_file_is_applied_with_workers_of_its_own(
    double: Any, write: Callable[..., Path], until: Any
) -> None:
    before = workers(double)
    path = write(DOUBLE.replace("double/own: 2", "double/own: 1"), "service: {mean: 1 ms}")
    double.wait(double.server.apply(inferway.load(path)))
    assert ask(double).status == 200
    (after,) = workers(double)
    assert after not in before
    until(lambda: not any(map(lives, before)))


def served(path: Path) -> tuple[subprocess.Popen[str], list[int]]:
    command = (sys.executable, "-m", "inferway", "serve", str(path), "--json")
    process = subprocess.Popen(
        prepared(INTERRUPTIBLE, *command, "--http-port", "0", "--admin-port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    return process, [int(pid) for file in children for pid in file.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_is_left_however_the_server_ends(
    write: Callable[..., Path], number: signal.Signals
) -> None:
    process, started = served(write(DOUBLE))
    with process:
        own = [pid for pid in started if lives(pid) and os.getpgid(pid) == pid]
        assert len(own) == 2
        process.send_signal(number)
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == (-9 if number is signal.SIGKILL else 0), said
    assert "Traceback" not in said
    # What was printed is in the log, with whose it is.
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert {(one["task"], one["variant"]) for one in lines if one["event"] == "printed"} == {
        ("double", "own")
    }
    ends_s = time.monotonic() + LIMIT_S
    while any(map(lives, own)):
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def test_a_class_that_cannot_be_served_ends_the_start_with_one_sentence(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    path = write(DOUBLE, "service: {mean: 1 ms}")
    (tmp_path / "mine.py").write_text(CODE + "\nraise OSError('no weights here')\n")
    done = subprocess.run(
        [sys.executable, "-m", "inferway", "serve", str(path), "--log-level", "error"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S * 2,
        check=False,
    )
    assert done.returncode == 2
    traceback, line = done.stderr.splitlines()
    assert "mine.py" in json.loads(traceback)["traceback"]
    assert "tasks.double.variants.own: " in line
    assert line.endswith("mine.py:Double: its file does not load: OSError: no weights here")


def test_the_twin_and_check_take_it(write: Callable[..., Path]) -> None:
    text = DOUBLE + "workload: {double: {arrivals: {process: poisson, rate: 50/s}}}\n"
    path = str(write(text))
    for command in (["check", path], ["simulate", path, "--queries", "1000"]):
        done = subprocess.run(
            [sys.executable, "-m", "inferway", *command],
            capture_output=True,
            text=True,
            timeout=LIMIT_S * 3,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_deployment_that_is_refused_leaves_no_worker(
    start: Callable[..., Any], write: Callable[..., Path]
) -> None:
    running = start(
        deployment=inferway.load(write(DOUBLE, "service: {mean: 1 ms}")), allow_apply=True
    )
    before = {child.pid for child in psutil.Process().children()}
    bad = """\
  other:
    variants:
      own: {python: "./mine.py:Bad", accuracy: 0.9, BATCH}
nodes: {here: {instances: {double/own: 2, other/own: 1}}}
"""
    text = DOUBLE.replace("nodes: {here: {instances: {double/own: 2}}}\n", bad)
    path = write(text, "service: {mean: 1 ms}")
    with pytest.raises(ServeError, match="no weights"):
        apply(path, f"http://127.0.0.1:{running.server.admin_port}")
    ends_s = time.monotonic() + LIMIT_S
    while {child.pid for child in psutil.Process().children()} != before:
        assert time.monotonic() < ends_s, "workers of a deployment that was refused live"
        time.sleep(0.01)
