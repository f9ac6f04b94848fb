"""A million requests: what the server holds afterwards is what it held when it was warm.

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
from collections import Counter
from typing import Any

import numpy as np
import psutil
import pytest

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
from inferway.live import Server, Site
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
site = Site("digits", brief.signature, dispatcher, [brief, threaded], target=0.8)
Server([site], http_port=0, admin_port=0, drain_delay_s=0.0, log_level="error").run(
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
