"""Bodies that are begun and left, wait, or unpack to much; answers that nobody reads."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import psutil
import pytest

from inferway.live import Limits
from inferway.protocol import Signature, Tensor

KIB, MIB = 1024, 1024**2
PATH = "/v2/models/digits/infer"
BEGUN = f"POST {PATH} HTTP/1.1\r\nHost: test\r\nInference-Header-Content-Length: 2\r\n"
ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}


def rows(count: int) -> dict[str, Any]:
    """A valid request of so many rows, 16 bytes each and about 20 as JSON."""
    tensor = ONE["inputs"][0] | {"shape": [count, 4], "data": [0.5] * (4 * count)}
    return {"inputs": [tensor]}


def binary(count: int) -> tuple[bytes, str]:
    """A valid request of so many rows of zeros as raw bytes: its body and header."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [count, 4]}
    tensor["parameters"] = {"binary_data_size": 16 * count}
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + bytes(16 * count), f"Inference-Header-Content-Length: {len(head)}\r\n"


def begin(running: Any, size: int, announced: int | None = None) -> Any:
    """Begin a body on a connection of its own: in chunks, or with the length that is announced."""
    wire = running.wire()
    if announced is None:
        wire.send(f"{BEGUN}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + bytes(size))
    else:
        wire.send(f"{BEGUN}Content-Length: {announced}\r\n\r\n".encode() + bytes(size))
    return wire


@pytest.mark.parametrize("announced", [None, 60_000])
def test_unfinished_bodies_of_all_connections_share_a_cap(
    start: Any, site_of: Any, until: Any, announced: int | None
) -> None:
    running = start(site_of(), limits=Limits(bodies_bytes=100_000))
    bodies = running.server.bodies
    first, second = (begin(running, 40_000, announced) for _ in range(2))
    until(lambda: bodies.held == 80_000)
    third = begin(running, 40_000, announced)
    refused = third.read()
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert "limit of 100000 bytes" in refused.json["error"]
    assert refused.headers["connection"] == "close"
    assert third.closed()
    # What is small has room, and so has the next when one has gone.
    assert running.infer(ONE).status == 200
    first.close()
    until(lambda: bodies.held == 40_000)
    assert running.infer(*binary(3000)).status == 200
    second.close()
    until(lambda: bodies.held == 0)


def test_a_body_that_cannot_fit_is_refused_before_it_comes(
    start: Any, site_of: Any, until: Any
) -> None:
    running = start(site_of(), limits=Limits(bodies_bytes=100_000))
    never = begin(running, 0, 100_001).read()
    assert (never.status, "100000 bytes" in never.json["error"]) == (413, True)
    with closing(begin(running, 70_000, 80_000)):
        until(lambda: running.server.bodies.held == 70_000)
        for head in ("", "Expect: 100-continue\r\n"):
            wire = running.wire()
            wire.send(f"{BEGUN}{head}Content-Length: 40000\r\n\r\n".encode())
            assert wire.read().status == 503
            assert wire.closed()
    until(lambda: running.server.bodies.held == 0)


def test_bodies_that_wait_for_their_answers_count_too(
    start: Any, site_of: Any, gates: Any, until: Any
) -> None:
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates), limits=Limits(bodies_bytes=100_000))
    for gate in gates:
        gate.opened.clear()
    raw = running.post(*binary(4000))
    wire = running.wire()
    wire.send(raw)
    until(lambda: running.site.in_flight == 1)
    assert running.server.bodies.held > 64_000
    refused = running.ask(raw)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    for gate in gates:
        gate.opened.set()
    assert wire.read().status == 200
    assert running.server.bodies.held == 0
    assert running.ask(raw).status == 200


def test_what_a_body_unpacks_to_counts_too(start: Any, site_of: Any) -> None:
    running = start(site_of(), limits=Limits(bodies_bytes=200_000))
    body, header = binary(20_000)
    packed = gzip.compress(body)
    with closing(running.wire()) as wire:
        for _ in range(2):
            wire.send(running.post(packed, f"{header}Content-Encoding: gzip\r\n"))
            refused = wire.read()
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        wire.send(running.post(ONE))
        assert wire.read().status == 200
    assert running.server.bodies.held == 0


def test_the_admin_listener_counts_with_the_others(start: Any, site_of: Any, until: Any) -> None:
    running = start(site_of(), limits=Limits(bodies_bytes=100_000))
    with closing(begin(running, 90_000, 90_001)):
        until(lambda: running.server.bodies.held == 90_000)
        asked = b"POST /apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n"
        assert running.ask(asked, admin=True).status == 503
        page = running.get("/metrics", admin=True).body.decode()
        assert "inferway_body_bytes 90000.0" in page
        assert "inferway_body_limit_bytes 100000.0" in page
        assert "inferway_bodies_refused_total 1.0" in page


_PROGRAM = """
import json, sys
import numpy as np
from inferway.dispatch import Dispatcher
from inferway.live import Limits, Pool, Server, ServerOptions, TaskSite
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime
from inferway.site import Fleet

signature = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 400)),))
fleet = Fleet(("tiny",), np.array([1e3]), np.array([0.7]), np.array([1]))
dispatcher = Dispatcher(fleet, "fastest-only", target=None, rate_per_s=100.0)
site = TaskSite.of(Pool("digits", signature, dispatcher, [NullRuntime(signature)]))
limits = Limits(**json.loads(sys.argv[1]))
options = {"limits": limits, "drain_delay_s": 0.0, "log_level": "warning"}
Server([site], ServerOptions(http_port=0, admin_port=0, **options)).run(
    lambda server: print(json.dumps(server.http_port), flush=True)
)
"""


class Apart:
    """A server in a process of its own."""

    def __init__(self, limits: dict[str, int], **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(limits)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONWARNINGS": "error"},
            **options,
        )
        assert self.process.stdout is not None
        self.port = json.loads(self.process.stdout.readline())

    @property
    def resident(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def connect(self, **options: int) -> socket.socket:
        wire = socket.socket()
        for name, value in options.items():
            wire.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        wire.settimeout(60)
        wire.connect(("127.0.0.1", self.port))
        return wire

    def end(self) -> tuple[int, bytes]:
        self.process.terminate()
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log


@pytest.fixture
def apart() -> Iterator[Any]:
    """Start servers in processes of their own; killed after the test."""
    begun: list[Apart] = []

    def start(limits: dict[str, int] | None = None, **options: Any) -> Apart:
        begun.append(Apart(limits or {}, **options))
        return begun[-1]

    yield start
    for one in begun:
        one.process.kill()
        one.process.communicate()


def test_bodies_that_are_left_do_not_stay_in_memory(apart: Any, until: Any) -> None:
    server = apart()
    size, rounds, connections = 8 * MIB, 12, 4
    resident: list[int] = []
    for number in range(rounds):
        wires = [server.connect() for _ in range(connections)]
        for wire in wires:
            wire.sendall(f"{BEGUN}Content-Length: {2 * size}\r\n\r\n".encode() + bytes(size))
        for wire in wires:
            if number % 2:  # with a reset
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.close()
        with closing(server.connect()) as wire:
            wire.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n")
            assert wire.recv(65536).startswith(b"HTTP/1.1 200")
        resident.append(server.resident)
    # Everything that was begun is 384 MiB.
    until(lambda: server.resident - resident[0] < 96 * MIB)
    assert server.end() == (0, b"")


def test_json_is_bounded_and_the_binary_form_named(start: Any, site_of: Any) -> None:
    running = start(site_of(), limits=Limits(json_bytes=10_000))
    large, small = json.dumps(rows(1000)).encode(), json.dumps(rows(100)).encode()
    assert len(small) < 10_000 < len(large)
    chunked = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunked += b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large)
    zipped = "Content-Encoding: gzip\r\n"
    head = f"Inference-Header-Content-Length: {len(large)}\r\n"
    for raw in (
        running.post(large),
        chunked,
        running.post(gzip.compress(large), zipped),
        running.post(large + bytes(100), head),
        running.post(gzip.compress(large + bytes(100)), head + zipped),
    ):
        refused = running.ask(raw)
        assert refused.status == 413
        assert "limit of 10000 bytes" in refused.json["error"]
        assert "Inference-Header-Content-Length" in refused.json["error"]
    assert running.infer(small).status == 200
    assert running.infer(*binary(5000)).status == 200
    packed, header = binary(5000)
    assert running.infer(gzip.compress(packed), header + zipped).status == 200


def test_a_body_that_unpacks_to_much_is_unpacked_beside(start: Any, site_of: Any) -> None:
    running = start(site_of())
    body, header = binary(300_000)
    assert len(body) > 4 * MIB
    for name, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        raw = running.post(packed, f"{header}Content-Encoding: {name}\r\nX-Request-Id: large\r\n")
        with closing(running.wire()) as wire:
            # Answers come in the order of the requests all the same.
            wire.send(raw + running.post(ONE | {"id": "next"}) + raw)
            large = wire.read()
            assert (large.status, large.headers["x-request-id"]) == (200, "large")
            assert large.json["outputs"][0]["shape"] == [300_000, 3]
            assert wire.read().json["id"] == "next"
            assert wire.read().status == 200
        broken = bytearray(packed)
        broken[len(broken) // 2] ^= 255
        refused = running.infer(bytes(broken), f"{header}Content-Encoding: {name}\r\n")
        assert (refused.status, "damaged" in refused.json["error"]) == (400, True)
        assert running.infer(packed[:-9], f"{header}Content-Encoding: {name}\r\n").status == 400
    assert running.server.bodies.held == 0


@pytest.mark.parametrize("form", ["json", "binary"])
def test_a_body_may_unpack_to_a_multiple_of_its_size(start: Any, site_of: Any, form: str) -> None:
    running = start(site_of(), limits=Limits(json_bytes=64 * MIB))
    body, header = binary(2 * MIB)
    if form == "json":
        body, header = b" " * (32 * MIB), ""
    packed = gzip.compress(body)
    assert len(packed) < 65_000
    refused = running.infer(packed, f"{header}Content-Encoding: gzip\r\n")
    assert (refused.status, "100 times" in refused.json["error"]) == (413, True)


def test_who_goes_while_his_body_is_unpacked_leaves_nothing(
    start: Any, site_of: Any, until: Any
) -> None:
    running = start(site_of())
    body, header = binary(400_000)
    raw = running.post(gzip.compress(body), f"{header}Content-Encoding: gzip\r\n")
    for _ in range(10):
        wire = running.wire()
        wire.send(raw)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
    assert running.ask(raw).status == 200
    until(lambda: running.server.bodies.held == 0)
    assert running.site.in_flight == 0


def test_a_body_that_is_being_unpacked_is_answered_before_the_server_ends(
    start: Any, site_of: Any, until: Any
) -> None:
    running = start(site_of())
    body, header = binary(400_000)
    wire = running.wire()
    wire.send(running.post(gzip.compress(body), f"{header}Content-Encoding: gzip\r\n"))
    until(lambda: running.server.bodies.held > 0)
    ending = running.begin(running.server.stop(grace_s=20.0))
    answer = wire.read()
    assert (answer.status, answer.headers["connection"]) == (200, "close")
    ending.result(60)


def ask_raw(count: int) -> bytes:
    """A request for `count` rows of 1600 raw bytes each."""
    tensor = {"name": "image", "datatype": "FP32", "shape": [count, 4]}
    tensor["parameters"] = {"binary_data_size": 16 * count}
    message = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(message).encode()
    body = head + bytes(16 * count)
    lines = (
        f"Host: t\r\nContent-Length: {len(body)}\r\nInference-Header-Content-Length: {len(head)}"
    )
    return f"POST {PATH} HTTP/1.1\r\n{lines}\r\n\r\n".encode() + body


@pytest.mark.parametrize("closing_", [False, True])
def test_a_large_answer_is_whole_however_slowly_it_is_read(apart: Any, closing_: bool) -> None:
    server = apart()
    count = 4000
    raw = ask_raw(count)
    if closing_:
        raw = raw.replace(b"Host: t\r\n", b"Host: t\r\nConnection: close\r\n")
    with closing(server.connect(SO_RCVBUF=65536)) as wire:
        wire.sendall(raw if closing_ else raw * 2)
        data = b""
        pause = threading.Event()
        while len(data) < count * 1600:
            pause.wait(0.005)
            piece = wire.recv(131072)
            assert piece
            data += piece
        if closing_:
            while piece := wire.recv(65536):
                data += piece
    top, _, rest = data.partition(b"\r\n\r\n")
    assert top.startswith(b"HTTP/1.1 200")
    length = int(re.findall(rb"Content-Length: (\d+)", top)[0])
    assert len(rest) == length if closing_ else len(rest) >= length
    assert server.end() == (0, b"")


def test_who_drips_his_reading_is_cut_off(apart: Any) -> None:
    server = apart({"receive_s": 2})
    with closing(server.connect(SO_RCVBUF=4096)) as wire:
        wire.sendall(ask_raw(8000))
        begun_s = time.monotonic()
        got, pause = 0, threading.Event()
        # 12.8 MB at about 400 KB a second would be half a minute; at 1 MiB and with 2 s it is 14.
        try:
            while piece := wire.recv(4096):
                got += len(piece)
                pause.wait(0.01)
        except ConnectionError:
            pass
        took_s = time.monotonic() - begun_s
    assert got < 8000 * 1600
    assert took_s < 5 * 15
    assert server.end() == (0, b"")


WIDE = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 400)),))


def test_answers_that_nobody_reads_are_bounded(start: Any, site_of: Any, until: Any) -> None:
    running = start(site_of(signature=WIDE), limits=Limits(queued_bytes=4 * MIB, pipelined=200))
    site, listener = running.site, running.server._http
    with closing(running.wire()) as wire:
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * KIB)
        # 32 MB of answers, of which the system's buffers take some.
        raw, times = ask_raw(500), 40
        sending = threading.Thread(target=wire.send, args=(raw * times,))
        sending.start()
        until(lambda: listener.unread > 0)
        until(lambda: site.in_flight == 0)
        assert listener.unread < 6 * MIB
        answers = [wire.read() for _ in range(times)]
        sending.join(20)
        until(lambda: listener.unread == 0)
        # Who reads is answered as before.
        assert {answer.status for answer in answers} <= {200, 503}
        assert answers[0].status == 200
        wire.send(raw)
        assert wire.read().status == 200


def test_of_all_who_do_not_read_whoever_has_most_is_cut_off(
    start: Any, site_of: Any, until: Any
) -> None:
    running = start(site_of(signature=WIDE), limits=Limits(bodies_bytes=16 * MIB))
    listener = running.server._http
    wires = []
    for _ in range(6):
        wire = running.wire()
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 256 * KIB)
        wire.send(ask_raw(8000))
        wires.append(wire)
    until(lambda: running.site.stats.rows[0] == 6 * 8000)
    until(lambda: len(listener.connections) < 6)
    assert 0 < listener.unread <= 16 * MIB
    assert running.infer(ONE).status == 200
    whole = 0
    for wire in wires:
        try:
            whole += wire.read().status == 200
        except OSError:
            continue
    assert 1 <= whole < 6
    until(lambda: listener.unread == 0)


class Echo:
    """A runtime whose answer is what it was asked."""

    signature = Signature((Tensor("image", "FP32", (-1, 4)),), (Tensor("scores", "FP32", (-1, 4)),))

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"scores": inputs["image"]}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("form", ["flat", "nested", "binary"])
@pytest.mark.parametrize("accept", ["", "gzip", "deflate"])
def test_long_requests_and_answers_are_what_short_ones_are(
    start: Any, site_of: Any, form: str, accept: str
) -> None:
    running = start(site_of([Echo(), Echo()], signature=Echo.signature))
    values = np.arange(160_000, dtype=np.float32).reshape(-1, 4) / 7
    tensor = {"name": "image", "datatype": "FP32", "shape": list(values.shape)}
    raw, header = b"", ""
    if form == "binary":
        raw = values.tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = (values if form == "nested" else values.ravel()).tolist()
    if accept:
        header = f"Accept-Encoding: {accept}\r\n"
    for output, more in ((False, {}), (True, {"parameters": {"binary_data_output": True}})):
        head = json.dumps({"inputs": [tensor]} | more).encode()
        length = f"Inference-Header-Content-Length: {len(head)}\r\n" if raw else ""
        long, short = running.post(head + raw, length + header), running.post(ONE | {"id": "next"})
        with closing(running.wire()) as wire:
            wire.send(long + short)
            answer = wire.read()
            assert wire.read().json["id"] == "next"
        assert answer.status == 200
        assert answer.headers.get("content-encoding", "") == accept
        unpack = {"": bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}[accept]
        body = unpack(answer.body)
        if output:
            end = int(answer.headers["inference-header-content-length"])
            found = np.frombuffer(body[end:], "<f4")
            described = json.loads(body[:end])["outputs"][0]
        else:
            described = json.loads(body)["outputs"][0]
            found = np.array(described["data"], np.float32)
        assert described["shape"] == list(values.shape)
        assert (found == values.ravel()).all()
    assert running.server.bodies.held == 0


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (lambda data: data[:-1], "elements, its shape"),
        (lambda data: [*data[:-1], "x"], "is not FP32"),
        (lambda data: [*data[:-1], 1e39], "out of the range"),
        (lambda data: [*data[:-2], [1, 2]], "not of its shape"),
    ],
)
def test_a_long_request_that_is_wrong_says_why(digits: Any, wrong: Any, part: str) -> None:
    message = rows(10_000)
    tensor = message["inputs"][0]
    tensor["data"] = wrong(tensor["data"])
    refused = digits.infer(message)
    assert refused.status == 400
    assert part in refused.json["error"]
    broken = json.dumps(rows(10_000)).encode()[:-2]
    assert "not valid" in digits.infer(broken).json["error"]
    assert digits.infer(ONE).status == 200


def test_who_goes_while_his_answer_is_written_leaves_nothing(
    start: Any, site_of: Any, until: Any
) -> None:
    running = start(site_of(signature=WIDE))
    raw = running.post(rows(2000))
    for _ in range(5):
        wire = running.wire()
        wire.send(raw)
        until(lambda: running.site.in_flight == 0)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()
    assert running.infer(ONE).status == 200
    until(lambda: running.server.bodies.held == 0)
    until(lambda: not running.server._http.connections)
    assert running.server._http.unread == 0
