"""What requests take of memory: bounded while they run, and given back afterwards.

A million requests: what the server holds afterwards is what it held when it was warm.
``INFERWAY_MEMORY_REQUESTS=100000 pytest -m slow tests/live/test_memory.py`` tries it with fewer.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

WARM = 0.2
"""Share of the requests after which memory must stay: until then, rings and buffers fill."""
GROWTH_BYTES = 3 * 1024**2
SAMPLES = 200
CONNECTIONS = 4
ROUNDS_PER_CANCEL = 10

_PROGRAM = """
import json, tempfile
from pathlib import Path
import numpy as np
from onnx import TensorProto, helper, save
from inferway.dispatch import Dispatcher
from inferway.live import Pool, PoolOptions, Server, ServerOptions, TaskSite
from inferway.runtime import NullRuntime, OnnxRuntime
from inferway.site import Fleet

image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [None, 16])
scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 16])
relu = helper.make_node("Relu", ["image"], ["scores"])
graph = helper.make_graph([relu], "tiny", [image], [scores])
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "tiny.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    brief = OnnxRuntime(path)
threaded = NullRuntime(brief.signature)
rate, accuracy = np.array([1e4, 5e3]), np.array([0.7, 0.9])
fleet = Fleet(("tiny", "big"), rate, accuracy, np.array([1, 1]), buffer=64)
dispatcher = Dispatcher(fleet, "priced", target=0.8, rate_per_s=1e3, measure=True)
site = TaskSite.of(
    Pool("digits", brief.signature, dispatcher, [brief, threaded], PoolOptions(target=0.8))
)
Server([site], ServerOptions(http_port=0, admin_port=0, drain_delay_s=0.0, log_level="error")).run(
    lambda server: print(json.dumps(server.http_port), flush=True)
)
"""


def _ask(body: bytes, headers: str = "", path: str = "/v2/models/digits/infer") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def _mixture() -> list[bytes]:
    # What clients send, the wrong and the refused included.
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [1, 16]}
    raw = struct.pack("<16f", *range(16))
    binary = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 64}}]}).encode()
    length = f"Inference-Header-Content-Length: {len(binary)}\r\n"
    text = json.dumps({"inputs": [tensor | {"data": [0.5] * 16}]}).encode()
    named = json.dumps({"id": "seven", "inputs": [tensor | {"data": [0.5] * 16}]}).encode()
    hurried = json.dumps(
        {"inputs": [tensor | {"data": [0.5] * 16}], "parameters": {"deadline_ms": 1e-3}}
    ).encode()
    rows = json.dumps({"inputs": [tensor | {"shape": [3, 16], "data": [0.5] * 48}]}).encode()
    trace = "X-Request-Id: seven\r\ntraceparent: 00-" + "a" * 32 + "-" + "b" * 16 + "-01\r\n"
    pinned = "/v2/models/digits/versions/big/infer"
    return [
        *[_ask(text)] * 6,
        *[_ask(binary + raw, length)] * 6,
        *[_ask(named, trace)] * 4,
        *[_ask(text, path=pinned), _ask(rows), _ask(text, "Accept-Encoding: gzip\r\n")] * 3,
        *[_ask(hurried), _ask(b"{"), _ask(binary + raw[:-1], length)],
        _ask(text, path="/v2/models/none/infer"),
        b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /v2/models/digits/explain/seven HTTP/1.1\r\nHost: test\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\nX-Request-Id: last\r\n\r\n",
    ]


def _read(wire: socket.socket) -> bytes:
    # Answers come in order: the one to the last request is the end.
    data = bytearray()
    while not (data.endswith(b"\r\n\r\n") and data.rfind(b"X-Request-Id: last\r\n") >= 0):
        piece = wire.recv(1 << 18)
        assert piece, "the server closed the connection"
        data += piece
    return bytes(data)


def _go_away(port: int, asked: bytes) -> None:
    # With a reset, so that the server hears of it while it works.
    wire = socket.create_connection(("127.0.0.1", port))
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sendall(asked)
    wire.close()


@pytest.mark.slow
def test_a_million_requests_leave_nothing() -> None:
    total = int(os.environ.get("INFERWAY_MEMORY_REQUESTS", "1000000"))
    mixture = _mixture()
    batch = b"".join(mixture)
    rounds = max(SAMPLES, total // (CONNECTIONS * len(mixture)))
    found: Counter[bytes] = Counter()
    memory: list[int] = []
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    ) as server:
        try:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())
            process = psutil.Process(server.pid)
            wires = [socket.create_connection(("127.0.0.1", port), 60) for _ in range(CONNECTIONS)]
            for number in range(rounds):
                for wire in wires:
                    wire.sendall(batch)
                if number % ROUNDS_PER_CANCEL == 0:
                    _go_away(port, batch)
                for wire in wires:
                    found.update(re.findall(rb"HTTP/1\.1 (\d{3})", _read(wire)))
                if number * SAMPLES // rounds > len(memory):
                    memory.append(process.memory_info().rss)
            for wire in wires:
                wire.close()
            server.terminate()
            _, log = server.communicate(timeout=30)
        finally:
            server.kill()
    assert (server.returncode, log) == (0, b"")
    assert sum(found.values()) == rounds * CONNECTIONS * len(mixture)
    assert set(found) <= {b"200", b"400", b"404", b"429", b"504"}, found
    assert found[b"200"] > 0.5 * sum(found.values()), found
    warm = memory[int(len(memory) * WARM) :]
    tenth = max(1, len(warm) // 10)
    growth = float(np.median(warm[-tenth:]) - np.median(warm[:tenth]))
    print(f"{sum(found.values())} requests, {dict(found)}, {growth / 1e6:+.2f} MB once warm")
    assert growth < GROWTH_BYTES, f"{growth / 1e6:.1f} MB more after {total} requests"


FILE = """
tasks:
  digits:
    variants:
      {variant}: {{model: {model}{more}}}
nodes: {{here: {{buffer: 15}}}}
"""


@contextmanager
def serving(folder: Path, *options: str, **what: str) -> Iterator[tuple[int, int, psutil.Process]]:
    """Run `inferway serve` and give its ports and its process."""
    file = folder / "digits.yaml"
    file.write_text(FILE.format(**{"more": "", **what}))
    command = [sys.executable, "-m", "inferway", "serve", str(file), "--json", *options]
    command += ["--http-port", "0", "--admin-port", "0", "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, server.communicate(timeout=10)[1]
            ready = json.loads(line)
            yield ready["http_port"], ready["admin_port"], psutil.Process(server.pid)
            server.terminate()
            _, log = server.communicate(timeout=30)
        finally:
            server.kill()
    assert (server.returncode, log) == (0, b"")


def _images(rows: int, variant: str) -> bytes:
    data = np.random.default_rng(rows).random((rows, 1, 32, 32), np.float32)
    size = {"binary_data_size": data.nbytes}
    tensor = {"name": "image", "datatype": "FP32", "shape": data.shape, "parameters": size}
    text = json.dumps({"inputs": [tensor]}).encode()
    head = f"Inference-Header-Content-Length: {len(text)}\r\n"
    path = f"/v2/models/digits/versions/{variant}/infer"
    return _ask(text + data.tobytes(), f"{head}Connection: close\r\n", path)


def _answer(port: int, asked: bytes) -> tuple[int, Any]:
    with socket.create_connection(("127.0.0.1", port), 600) as wire:
        wire.sendall(asked)
        data = b"".join(iter(lambda: wire.recv(1 << 18), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def _highest(process: psutil.Process) -> int:
    text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize(
    ("variant", "rows", "limit", "peak_bytes"),
    [
        ("huge", 640, 24, 64 * 1024**2),  # in runs of fewer rows than elsewhere
        pytest.param("ensemble", 1024, 512, 512 * 1024**2, marks=pytest.mark.slow),
        pytest.param("huge", 4096, 512, 512 * 1024**2, marks=pytest.mark.slow),
    ],
)
def test_what_a_large_request_takes_is_bounded_and_goes_back(
    tmp_path: Path, variant: str, rows: int, limit: int, peak_bytes: int
) -> None:
    model = f"zoo://digits/{variant}"
    with serving(tmp_path, "--max-memory", str(limit), variant=variant, model=model) as (
        port,
        admin_port,
        process,
    ):
        for _ in range(3):
            assert _answer(port, _images(1, variant))[0] == 200
        before = process.memory_info().rss
        Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
        status, answer = _answer(port, _images(rows, variant))
        assert (status, answer["outputs"][0]["shape"]) == (200, [rows, 10])
        assert _highest(process) - before < peak_bytes
        deadline = time.monotonic() + 60.0
        while process.memory_info().rss > 1.2 * before:
            assert time.monotonic() < deadline, process.memory_info().rss / before
            time.sleep(0.1)
        told = _status(admin_port)["tasks"]["digits"]["variants"][variant]["memory"]
        assert told["source"] == "profile"
        assert told["largest_run_bytes"] <= limit * 1024**2 / 2
        assert 1 < told["rows_per_run"] <= 64


def _status(port: int) -> Any:
    asked = b"GET /status HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    return _answer(port, asked)[1]


def _wide(path: Path) -> None:
    """Write a model whose answers have a MiB for each row."""
    takes = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1])
    gives = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 1 << 18])
    shape = numpy_helper.from_array(np.array([1, 1 << 18], np.int64), "shape")
    node = helper.make_node("Expand", ["x", "shape"], ["y"])
    graph = helper.make_graph([node], "wide", [takes], [gives], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def _numbers(rows: int) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 1], "data": [0.5] * rows}
    asked = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    path = "/v2/models/digits/infer"
    return _ask(json.dumps(asked).encode(), "Connection: close\r\n", path)


def _outcome(port: int, asked: bytes) -> tuple[int, str]:
    with socket.create_connection(("127.0.0.1", port), 60) as wire:
        wire.sendall(asked)
        data = b"".join(iter(lambda: wire.recv(1 << 18), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return status, "" if status == 200 else json.loads(body)["error"]


def test_rows_that_cannot_fit_are_refused_with_the_number_that_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    _wide(tmp_path / "wide.onnx")
    what = {
        "variant": "wide",
        "model": "wide.onnx",
        "more": ", accuracy: 0.9, service: {mean: 1 ms}",
    }
    sources, fitting = [], set()
    for _ in range(2):
        with serving(tmp_path, "--max-memory", "16", **what) as (port, admin_port, _):
            told = _status(admin_port)["tasks"]["digits"]["variants"]["wide"]["memory"]
            sources.append(told["source"])
            assert told["one_row_bytes"] >= 1024**2
            status, reason = _outcome(port, _numbers(64))
            assert status == 413
            found = re.fullmatch(
                r"the request has 64 rows, and the limit on the memory of running requests, "
                r"16 MiB, leaves room for (\d+)",
                reason,
            )
            assert found is not None, reason
            most = int(found[1])
            fitting.add(most)
            assert 1 <= most <= 4
            assert _outcome(port, _numbers(most))[0] == 200
            assert _outcome(port, _numbers(most + 1))[0] == 413
    # Measured once, and kept.
    assert sources == ["measured", "recalled"]
    assert len(fitting) == 1
    kept = json.loads((tmp_path / "state" / "inferway" / "service-times.json").read_text())
    assert [set(entry) for entry in kept["memory"].values()] == [{"runtime", "peaks"}]


def test_what_one_row_takes_can_be_too_much(tmp_path: Path) -> None:
    model = "zoo://digits/ensemble"
    with serving(tmp_path, "--max-memory", "1", variant="ensemble", model=model) as (port, *_):
        status, answer = _answer(port, _images(1, "ensemble"))
        assert (status, answer["error"].endswith("1 MiB, leaves room for 0")) == (413, True)
