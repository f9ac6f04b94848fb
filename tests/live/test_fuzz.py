"""A target for each reader of foreign bytes: whatever comes, only what is documented comes of it.

Inputs are valid ones with something changed, or bytes of no sense. Each has a number, and the seed
and the number make it again: with `INFERWAY_FUZZ_SEED=1`, `INFERWAY_FUZZ_FIRST=4711` and
`INFERWAY_FUZZ_INPUTS=1` a slow target takes that one alone. Without the last it takes 100,000.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "node"))

from chain import BODY, Node, line
from mutation import damaged, mutated, nested, respelled

import inferway
from inferway.cli import main
from inferway.deployment import DeploymentError
from inferway.dispatch import Dispatcher
from inferway.dispatch.offers import Offer
from inferway.dispatch.recording import EVENT, Recording
from inferway.dispatch.replay import replay
from inferway.live.control.control import LETTERS
from inferway.live.hops.forwarder import complaint
from inferway.live.hops.headers import Trail
from inferway.live.hops.wire import Answer, Wire
from inferway.live.http.connection import Connection
from inferway.live.node.listing import Change
from inferway.live.node.menu import MENU, Menu
from inferway.live.node.post import Post
from inferway.live.node.telling import Ask, Same, Tell, packed
from inferway.loadgen.answer import decode as read_answer
from inferway.network import deployed
from inferway.network.error import NetworkError
from inferway.network.gml import load_gml
from inferway.placement.agent import Agent
from inferway.placement.crossing import data_of
from inferway.placement.messages import Floor, Needed, Offers, Worst
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime, RemoteError
from inferway.runtime.remote_tensors import decode as read_remote
from inferway.site import ALL_CLASSES, Fleet
from inferway.twin.trace import read as read_trace

FEW, MANY = 2_000, 100_000
SEED = int(os.environ.get("INFERWAY_FUZZ_SEED", "1"))
FIRST = int(os.environ.get("INFERWAY_FUZZ_FIRST", "0"))
ASKED = os.environ.get("INFERWAY_FUZZ_INPUTS")
BATCH = 50
LIMIT_S = 60
"""For one input, or a batch: far more than any takes, a first compilation included."""
GROWTH_KIB = 160 * 1024
"""Of resident memory, once a tenth of the inputs has been read."""
HONEST = {501, 503, 504, 505, 508}
"""What is not offered, not there, too late or in a ring are true answers to valid requests."""

few_or_many = pytest.mark.parametrize(
    "count", [FEW, pytest.param(int(ASKED or MANY), marks=pytest.mark.slow)], ids=["few", "many"]
)


@contextmanager
def limited(seconds: int = LIMIT_S) -> Iterator[None]:
    """Raise TimeoutError in what hangs."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def in_a_line(kind: type[Exception]) -> Iterator[None]:
    """Let a refusal pass that is one line for people."""
    said = "nothing"
    try:
        yield
    except kind as error:
        said = str(error)
    assert said
    assert "\n" not in said, said
    assert len(said) < 2_000, said


class Course:
    """Gives one input after another, says which one broke what, and looks at the memory."""

    def __init__(self, name: str, make: Callable[[random.Random], Any], count: int) -> None:
        self.name, self.make, self.count = name, make, count
        self.kib: int | None = None

    def batches(self, size: int) -> Iterator[list[Any]]:
        last = FIRST + self.count
        for start in range(FIRST, last, size):
            self.numbers = range(start, min(start + size, last))
            self.given = [
                self.make(random.Random(f"{SEED} {self.name} {number}")) for number in self.numbers
            ]
            yield self.given
            if self.kib is None and start - FIRST >= self.count // 10:
                self.kib = resident_kib()
        grown = resident_kib() - (self.kib or resident_kib())
        assert grown < GROWTH_KIB, f"{self.name}: memory grew by {grown} KiB"

    def run(self, feed: Callable[[Any], object]) -> None:
        """Feed each input; whatever it raises is said with the input."""
        for batch in self.batches(BATCH):
            for place, one in enumerate(batch):
                try:
                    with limited():
                        feed(one)
                except Exception as error:
                    raise AssertionError(self.told(place)) from error

    def told(self, place: int) -> str:
        return (
            f"{self.name}: INFERWAY_FUZZ_SEED={SEED} INFERWAY_FUZZ_FIRST={self.numbers[place]}: "
            f"{self.given[place]!r:.4000}"
        )


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


@contextmanager
def unbroken(*listeners: Any) -> Iterator[list[BaseException]]:
    """Collect what listeners call their own failures."""
    errors: list[BaseException] = []
    before = [listener.broken for listener in listeners]
    for listener in listeners:
        listener.broken = errors.append
    try:
        yield errors
    finally:
        for listener, told in zip(listeners, before, strict=True):
            listener.broken = told


# --- HTTP

HEADS = (
    b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: test\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /v2/health/ready HTTP/1.1\r\nHost: test\r\n\r\n",
    b"GET /v2/models/digits HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
    b"POST /v2/repository/index HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n"
    b"Trailer: X-A\r\n\r\n2\r\n{}\r\n0\r\nX-A: 1\r\n\r\n",
    b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\n"
    b"Content-Encoding: gzip\r\nAccept-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: test\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
)
HTTP_TOKENS = (
    *(b"\r\n", b"\n", b"\r", b"\r\n\r\n", b" ", b"\t", b":", b"\x00", b"\xff", b"%00", b"%2e%2e/"),
    *(b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"CONNECT", b"TRACE", b"HTTP/1.1", b"HTTP/1.0"),
    *(b"HTTP/9.9", b"Host: test\r\n", b"Host: other\r\n", b"Content-Length: 2\r\n", b"*", b"?a=b"),
    *(b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"chunked", b"gzip"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"identity"),
    *(b"Connection: close\r\n", b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n"),
    *(b"Expect: 100-continue\r\n", b"ffffffffffffffff\r\n", b'5;ext="x"\r\nabcde\r\n'),
    b"\r\n X: y",
    *(b"X: " + b"y" * 40_000 + b"\r\n", b"/" * 20_000, b"X: y\r\n" * 300, b"traceparent: 00-\r\n"),
    *(b"Inference-Header-Content-Length: 1\r\n", b"tracestate: a=b\r\n", b"X-Request-Id: \x80\r\n"),
)  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [A-Z]")


def http(choose: random.Random) -> bytes:
    raw = b"".join(choose.choice(HEADS) for _ in range(choose.randrange(1, 4)))
    if choose.random() < 0.05:
        return choose.randbytes(choose.randrange(300))
    return respelled(raw, HTTP_TOKENS, choose)


def read_to_end(wire: socket.socket) -> bytes:
    said = b""
    with suppress(ConnectionError):  # a reset, where it went on sending after a refusal
        while piece := wire.recv(65536):
            said += piece
    return said


def exchanged(port: int, inputs: list[bytes]) -> Iterator[bytes]:
    """What comes back for each, on a connection of its own, until the server ends it."""
    wires = [socket.create_connection(("127.0.0.1", port), LIMIT_S) for _ in inputs]
    try:
        for wire, raw in zip(wires, inputs, strict=True):
            with suppress(ConnectionError, BrokenPipeError):
                wire.sendall(raw)
                wire.shutdown(socket.SHUT_WR)
        for wire in wires:
            yield read_to_end(wire)
    finally:
        for wire in wires:
            wire.close()


@few_or_many
def test_http(digits: Any, until: Any, count: int) -> None:
    course = Course("http", http, count)
    with unbroken(digits.server._http) as errors:
        for batch in course.batches(BATCH):
            with limited(5 * LIMIT_S):
                for place, said in enumerate(exchanged(digits.server.http_port, batch)):
                    statuses = [int(one) for one in _STATUS.findall(said)]
                    assert not said or statuses, course.told(place)
                    bad = [one for one in statuses if one >= 500 and one not in HONEST]
                    assert (bad, errors) == ([], []), course.told(place)
            assert digits.get("/v2/health/ready").status == 200
    until(lambda: not digits.server._http.connections)


# --- JSON and binary tensors

TENSOR = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}
MIXED = Signature(
    (
        Tensor("image", "FP32", (-1, 4)),
        Tensor("words", "BYTES", (-1, 2)),
        Tensor("flags", "BOOL", (-1,)),
        Tensor("ids", "INT64", (-1, 1)),
        Tensor("half", "FP16", (-1, -1)),
    ),
    (Tensor("scores", "FP32", (-1, 3)), Tensor("texts", "BYTES", (-1,))),
)
RAWS = {
    "image": struct.pack("<4f", 1, 2, 3, 4),
    "words": struct.pack("<I3sI0s", 3, b"abc", 0, b""),
    "flags": b"\x01",
    "ids": struct.pack("<q", -7),
    "half": struct.pack("<2e", 0.5, -2.0),
}
SHAPES = {"image": [1, 4], "words": [1, 2], "flags": [1], "ids": [1, 1], "half": [1, 2]}
VALUES: dict[str, Any] = {
    "image": [[0.1, 0.2, 0.3, 0.4]], "words": ["abc", "\u00e9"], "flags": [True], "ids": [-7],
    "half": [[0.5, -2]],
}  # fmt: skip
JSON_TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true"),
    *(b"NaN", b"Infinity", b"-", b"1e999", b"0.1", b'"data":[', b"\xff", b"\x00", b"\xef\xbb\xbf"),
    *(b'"shape":', b'"FP32"', b'"BYTES"', b'"binary_data_size":', b"[[[[", b"]]]]", b" " * 2_000),
)


def as_json(choose: random.Random) -> tuple[bytes, str, str]:
    """A body, header lines and a path."""
    inputs = [
        {"name": t.name, "datatype": t.datatype, "shape": SHAPES[t.name], "data": VALUES[t.name]}
        for t in MIXED.inputs
    ]
    message: Any = {"inputs": inputs, "id": "7"}
    if choose.random() < 0.3:
        message["parameters"] = {"deadline_ms": 1e6, "accuracy": 0.5, "priority": 1}
    if choose.random() < 0.3:
        message["outputs"] = [{"name": "scores", "parameters": {"binary_data": True}}]
    for _ in range(choose.randrange(3)):
        message = mutated(message, choose)
    body = json.dumps(message).encode()
    if choose.random() < 0.4:
        body = respelled(body, JSON_TOKENS, choose)
    if choose.random() < 0.03:
        at = choose.randrange(len(body) + 1)
        body = body[:at] + nested(choose) + body[at:]
    return body, *around(choose, body)


def as_binary(choose: random.Random) -> tuple[bytes, str, str]:
    inputs: list[Any] = []
    raw = b""
    for tensor in MIXED.inputs:
        data = RAWS[tensor.name]
        if choose.random() < 0.15:
            data = damaged(data, choose)
        parameters = {"binary_data_size": len(data)}
        inputs.append(
            {
                "name": tensor.name, "datatype": tensor.datatype, "shape": SHAPES[tensor.name],
                "parameters": parameters,
            }
        )  # fmt: skip
        raw += data
    message: Any = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    for _ in range(choose.randrange(3)):
        message = mutated(message, choose)
    body = json.dumps(message).encode()
    length: Any = len(body)
    if choose.random() < 0.2:
        length = choose.choice([0, length - 1, length + 1, 10**9, -1, "x", "0x10", "9" * 30])
    body += damaged(raw, choose) if choose.random() < 0.4 else raw
    headers, path = around(choose, body)
    return body, f"Inference-Header-Content-Length: {length}\r\n{headers}", path


def around(choose: random.Random, body: bytes) -> tuple[str, str]:
    """Header lines and a path."""
    headers, path = "", "/v2/models/mixed/infer"
    match choose.randrange(16):
        case 0:
            headers = f"Accept-Encoding: {choose.choice(['gzip;q=x', ';;', '*', 'gzip'])}\r\n"
        case 1:
            headers = f"traceparent: {choose.choice(['00-', '00-' + 'a' * 52, '-' * 55])}\r\n"
        case 2:
            headers = f"Content-Encoding: {choose.choice(['deflate', 'br', 'gzip,gzip'])}\r\n"
    if choose.random() < 0.1:
        path = choose.choice(
            ["/v2/models/mixed/versions/tiny/infer", "/v2/models//infer", "/%ff", "/v2?x"]
        )
    return headers, "/v2/repository/index" if choose.random() < 0.05 else path


def asked(running: Any, given: tuple[bytes, str, str], choose: random.Random) -> bytes:
    body, headers, path = given
    if choose.random() < 0.05 and "Encoding" not in headers:
        body = gzip.compress(body, 1)
        body = damaged(body, choose) if choose.random() < 0.5 else body
        headers += "Content-Encoding: gzip\r\n"
    made: bytes = running.post(body, headers, path)
    return made


def fuzz_bodies(running: Any, name: str, make: Callable[[random.Random], Any], count: int) -> None:
    def whole(choose: random.Random) -> tuple[bytes, tuple[bytes, str, str]]:
        given = make(choose)
        return asked(running, given, choose), given

    course = Course(name, whole, count)
    answers = Signature(MIXED.outputs, MIXED.inputs)
    with unbroken(running.server._http) as errors:
        for batch in course.batches(BATCH):
            wire = running.wire()
            with limited(5 * LIMIT_S):
                wire.send(b"".join(raw for raw, _ in batch))
                for place, (_, given) in enumerate(batch):
                    status = wire.read().status
                    good = status < 500 or status in HONEST
                    assert (good, errors) == (True, []), (status, course.told(place))
                    read_as_answer(answers, given, course.told(place))
            wire.close()
            running._wires.remove(wire)
        assert running.get("/v2/health/ready").status == 200


def read_as_answer(signature: Signature, given: tuple[bytes, str, str], told: str) -> None:
    """What asks others reads their answers: the same bytes as one of these."""
    body = given[0].replace(b'"inputs"', b'"outputs"')
    length = re.search(r"Content-Length: ([0-9]{1,9})\r", given[1])
    json_length = min(int(length[1]) + 1, len(body)) if length else None
    try:
        with suppress(RemoteError):
            read_remote(signature, 1, body, json_length)
        read_answer(body, -1 if json_length is None else json_length)
    except Exception as error:
        raise AssertionError(f"as an answer: {told}") from error


@pytest.fixture
def mixed(start: Any, site_of: Any) -> Any:
    """A server of a task that takes and gives tensors of several kinds."""
    runtimes = [NullRuntime(MIXED), NullRuntime(MIXED)]
    return start(site_of(runtimes, task="mixed", signature=MIXED))


@few_or_many
def test_json(mixed: Any, count: int) -> None:
    fuzz_bodies(mixed, "json", as_json, count)


@few_or_many
def test_binary_tensors(mixed: Any, count: int) -> None:
    fuzz_bodies(mixed, "binary", as_binary, count)


def test_what_the_bodies_are_made_of_is_valid(mixed: Any) -> None:
    inputs = [
        {"name": t.name, "datatype": t.datatype, "shape": SHAPES[t.name], "data": VALUES[t.name]}
        for t in MIXED.inputs
    ]
    assert mixed.infer({"inputs": inputs}, path="/v2/models/mixed/infer").status == 200


# --- letters between nodes

NETWORK = """
tasks:
  digits: {count: 2, variants: {tiny: {accuracy: 0.8, size: 1 MB, service: {mean: 1 ms}},
    wide: {accuracy: 0.9, size: 2 MB, service: {mean: 4 ms}}}}
network:
  tree:
    - {tier: cloud, nodes: 1, repository: true}
    - {tier: metro, nodes: 1, rtt: 20 ms, budget: 3 MB}
    - {tier: edge, nodes: 2, rtt: 6 ms, budget: 2 MB}
placement: {policy: infida, slot: 1 s}
workload: {digits: {arrivals: {process: poisson, rate: 60/s}}}
"""


class Plane:
    """A control plane that keeps what is sent, and forgets it."""

    limit_bytes = 1 << 20

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.sent = 0

    def on_letter(self, _: object) -> None: ...

    def on_neighbor(self, _: object) -> None: ...

    def send(self, _: str, __: str, data: bytes) -> bool:
        self.sent += 1
        return len(data) <= self.limit_bytes


OFFERS = (
    Offer("digits-0", "wide", "cloud", 0.95, 0.004, 0.01, 50.0, ("metro", "cloud"), True),
    Offer("digits-1", "tiny", "metro", 0.8, 0.001, 0.0, 100.0, ("metro",), False),
)
TAKES = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
MENUS = (
    Tell(9, 0, 5, 0, 1, Change(offers=OFFERS, takes=((TAKES, ("digits-0", "digits-1")),))),
    Tell(9, 5, 6, 0, 1, Change(gone=(0,), rates=((1, 50.0),))),
    Tell(9, 0, 5, 0, 2, Change(offers=OFFERS)),
    Same(9, 5),
    Ask(),
)
PLACING = (
    Floor(0, 3.5),
    Needed(0, 1, 60.0, 3.0, ((1.0, 5.0), (2.0, 6.0))),
    Worst(0, 1, 7.5),
    Offers(1, ((1.0, 50.0), (4.0, 80.0))),
)
_pack = msgspec.msgpack.Encoder().encode


def letter(choose: random.Random) -> tuple[str, str, bytes]:
    """A neighbor, a kind and the bytes."""
    menu = choose.random() < 0.5
    message: Any = choose.choice(MENUS if menu else PLACING)
    kind = MENU if menu else type(message).__name__.lower()
    content = msgspec.to_builtins(message)
    for _ in range(choose.randrange(4)):
        content = mutated(content, choose)
    try:
        data = _pack(content)
    except (OverflowError, ValueError):  # an integer that MessagePack has no room for
        data = _pack(msgspec.to_builtins(message))
    if choose.random() < 0.3:
        data = damaged(data, choose)
    if choose.random() < 0.02:
        data = data[:2] + b"\x91" * choose.choice([900, 1_100, 50_000]) + data[2:]
    if menu:
        data = zlib.compress(data, 1)
        data = damaged(data, choose) if choose.random() < 0.2 else data
    if choose.random() < 0.03:
        data = choose.randbytes(choose.randrange(60))
    if choose.random() < 0.05:
        kind = choose.choice([*LETTERS, MENU, "", "else"])
    return choose.choice(["cloud", "edge-0", "edge-1"]), kind, data


@few_or_many
def test_letters(tmp_path: Path, count: int) -> None:
    file = tmp_path / "network.yaml"
    file.write_text(NETWORK)
    network, _ = deployed(inferway.load(file))
    metro = network.nodes.index("metro")
    neighbors = ("cloud", "edge-0", "edge-1")
    (data,) = [one for one in data_of(network) if one.node == metro]
    changed: list[set[str]] = []

    async def main() -> None:
        plane: Any = Plane(*neighbors)
        post = Post(Agent(data, seed=1), plane, network.nodes)
        menu = Menu(
            "metro", plane, links_s=dict.fromkeys(neighbors, 0.01), upstream="cloud",
            changed=changed.append,
        )  # fmt: skip
        post.open()
        fed = 0

        def feed(one: tuple[str, str, bytes]) -> None:
            nonlocal fed
            fed += 1
            if fed % 100 == 0:
                post.close_slot(fed // 100, {}, {})
            if fed % 100 == 50:
                post.step()
            if fed % 1_000 == 0:
                # Whatever was believed until now, who comes anew is heard.
                menu._neighbor("cloud", False)
                menu._neighbor("cloud", True)
                menu._letter("cloud", MENU, packed(MENUS[0]))
                assert menu._heard["cloud"].listing is not None
                changed.clear()
            post._letter(*one)
            menu._letter(*one)

        Course("letters", letter, count).run(feed)
        assert sum(post.refused.values()) + sum(menu.refused.values()) > count // 4 or count < FEW

    asyncio.run(main())


# --- hop headers, of requests and of answers

HOP = (
    b"POST /v2/models/task/infer HTTP/1.1\r\nHost: 127.0.0.1:8003\r\nInferway-Node: cloud\r\n"
    b"Inferway-Variant: tiny\r\nInferway-Path: edge\r\nInferway-Deadline-Ms: 1000.000\r\n"
    b"Inferway-Predicted-Ms: 10.000\r\nX-Request-Id: mine\r\ntraceparent: 00-%s-%s-01\r\n"
    b"tracestate: a=b\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (b"0af7" * 8, b"b7ad" * 4, len(BODY), BODY)
)
HOP_TOKENS = (
    *HTTP_TOKENS,
    *(b"Inferway-Node: ", b"Inferway-Variant: ", b"Inferway-Path: ", b"Inferway-Deadline-Ms: "),
    b"Inferway-Predicted-Ms: ",
    *(b"cloud", b"edge", b"tiny", b"a,b,c", b",", b"%C3%A9", b"%", b"%ff", b"n," * 70, b"nan"),
    *(b"-5", b"inf", b"1e400", b"/v2/models/task/infer", b"/v2/models/%00/infer", b"/v2"),
)  # fmt: skip
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n"
    b"Inferway-Node: cloud\r\nInferway-Path: edge,cloud\r\nInferway-Time-Ms: 4.00,2.00\r\n"
    b"Inferway-Variant: tiny\r\nVary: Accept-Encoding\r\nInference-Header-Content-Length: 9\r\n"
    b'\r\n{"error": "no"}'
)
ANSWER_TOKENS = (
    *HOP_TOKENS,
    *(b"HTTP/1.1 503 Busy\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 101 Switch\r\n"),
    *(b"Retry-After: 5\r\n", b"Inferway-Unserved: 1\r\n", b"Inferway-Degraded: x\r\n", b" 204 "),
)


def hop(choose: random.Random) -> tuple[str, bytes]:
    """Whose port it comes to, or that it is an answer; and the bytes."""
    to = choose.choice(["edge", "cloud", "answer"])
    raw, tokens = (ANSWER, ANSWER_TOKENS) if to == "answer" else (HOP, HOP_TOKENS)
    if choose.random() < 0.03:
        return to, choose.randbytes(choose.randrange(200))
    return to, respelled(raw, tokens, choose)


class Pipe:
    """A transport that keeps what is written."""

    def __init__(self, given: socket.socket) -> None:
        self.written = b""
        self.closing = False
        self._socket = given

    def get_extra_info(self, _: str) -> socket.socket:
        return self._socket

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        self.written += b"".join(parts)

    def close(self) -> None:
        self.closing = True

    abort = write_eof = close

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


async def ask(node: Node, raw: bytes, choose: random.Random, pipe: Pipe) -> None:
    """Feed a node's port for neighbors, and wait for what it answers."""
    connection = Connection(node.peers)
    connection.connection_made(pipe)  # type: ignore[arg-type]
    at = choose.randrange(len(raw) + 1) if choose.random() < 0.2 else len(raw)
    for piece in (raw[:at], raw[at:]):
        if piece:
            connection.data_received(piece)
    deadline_s = time.monotonic() + LIMIT_S
    # What has come whole is answered; a request that has not come to its end waits for the rest.
    while any(not one.answered for one in connection.exchanges if one is not connection._current):
        assert time.monotonic() < deadline_s, "no answer"
        await asyncio.sleep(0.0005)
    connection.connection_lost(None)
    for status in _STATUS.findall(pipe.written):
        assert int(status) < 500 or int(status) in HONEST | {502}, pipe.written
    assert node.errors == []


def take(raw: bytes, choose: random.Random, pipe: Pipe) -> None:
    """Read an answer as one hop does, and say what it says."""
    answers: list[Answer] = []
    trail = Trail("edge")

    def answered(wire: Wire, answer: Answer, _: bool) -> None:
        answers.append(answer)
        wire.sending = None

    wire = Wire(answered, lambda *_: None)
    wire.connection_made(pipe)  # type: ignore[arg-type]
    wire.sending = object()
    at = choose.randrange(len(raw) + 1) if choose.random() < 0.5 else len(raw)
    for piece in (raw[:at], raw[at:]):
        if piece and not pipe.closing:
            wire.data_received(piece)
    wire.connection_lost(None)
    for answer in answers:
        lines = trail.passed(answer, b"edge", 0.01)
        assert b"\n" not in lines.replace(b"\r\n", b"")
        assert "\n" not in complaint(answer, "cloud")


@few_or_many
def test_hop_headers(count: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        ends = socket.socketpair()
        async with line("edge", "cloud") as (edge, cloud):
            await cloud.serve()
            await edge.serve(("tiny", "cloud", "cloud"))
            course = Course("hops", hop, count)
            nodes = {"edge": edge, "cloud": cloud}
            for batch in course.batches(BATCH):
                for place, (to, raw) in enumerate(batch):
                    choose = random.Random(f"{SEED} {course.numbers[place]}")
                    try:
                        with limited():
                            if to == "answer":
                                take(raw, choose, Pipe(ends[0]))
                            else:
                                await ask(nodes[to], raw, choose, Pipe(ends[0]))
                    except Exception as error:
                        raise AssertionError(course.told(place)) from error
                for node in nodes.values():
                    node.seen.clear()
            pipe = Pipe(ends[0])
            await ask(cloud, HOP, random.Random(1), pipe)
            assert pipe.written.startswith(b"HTTP/1.1 200"), pipe.written
            assert loop.is_running()
        for end in ends:
            end.close()

    asyncio.run(main())


# --- GML

GRAPHS = (
    b"""graph [
  directed 0
  delay_unit "ms"
  node [ id 0 label "Wien" Latitude 48.2 Longitude 16.4 ]
  node [ id 1 label "Graz" Latitude 47.1 Longitude 15.4 ]
  node [ id 2 label "Hub" hyperedge 1 ]
  node [ id 3 label "Linz" ]
  edge [ source 0 target 1 rtt "4 ms" ]
  edge [ source 0 target 2 ]
  edge [ source 1 target 2 latency 2.5 ]
  edge [ source 2 target 3 key 1 ]
  edge [ source 0 target 3 key "a" ]
]
""",
    b'Creator "x"\ngraph\n[\n  multigraph 1\n  node [ id 0 ]\n  node [ id 1 ]\n'
    b"  edge [ source 0 target 1 delay 3 ]\n  edge [ source 0 target 1 ]\n]\n",
)
GML_TOKENS = (
    *(b"[", b"]", b'"', b"graph [", b"node [", b"edge [", b"id", b"label", b"source", b"target"),
    *(b"hyperedge 1", b"multigraph 1", b"directed 1", b"key 0", b"Latitude", b"Longitude", b"rtt"),
    *(b"latency", b"delay", b'delay_unit "us"', b"NaN", b"INF", b"&#0;", b"&amp;", b"\xe9", b"#"),
    *(b"[ " * 600, b"- 1", b"1e999", b"+", b"name \"a\"", b"\n", b"graphics [ x 1 ]", b"id 0"),
)  # fmt: skip


def gml(choose: random.Random) -> bytes:
    return respelled(choose.choice(GRAPHS), GML_TOKENS, choose)


def scratch(tmp_path: Path) -> Path:
    """A folder where a file a millisecond wears nothing out."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        return tmp_path
    folder = memory / f"inferway-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = scratch(tmp_path)
    yield made
    if made != tmp_path:
        for one in made.iterdir():
            one.unlink()
        made.rmdir()


@few_or_many
def test_gml(folder: Path, count: int) -> None:
    file = folder / "g.gml"

    def feed(raw: bytes) -> None:
        file.write_bytes(raw)
        with in_a_line(NetworkError):
            load_gml(file)

    Course("gml", gml, count).run(feed)


# --- deployment files

FILES = (
    b"""tasks:
  t:
    accuracy_target: 0.8
    variants:
      v: {accuracy: 0.9, size: 1 MB, service: {mean: 1 ms}}
nodes: {here: {instances: {t/v: 2}, buffer: 8}}
""",
    b"""tasks: {t: {count: 2, catalog: {name: paper/yolov4}}}
network: {tree: [{tier: a, nodes: 1, repository: true}, {tier: b, nodes: 2, rtt: 4 ms}]}
""",
    b"""tasks: {t: {variants: {v: {accuracy: 0.5, size: 1 B, service: {mean: 1 s}}}}}
workload: {t: {arrivals: {process: map, d0: [[-1, 1], [0, -2]], d1: [[0, 0], [1, 1]]}}}
""",
    b"""{"tasks": {"a": {"variants": {"b": &v {"accuracy": 0.5, "service": {"mean": "1 s"},
"batch": {"sizes": [1, 2], "service": ["1 s", "2 s"]}}, "c": *v}}}}
""",
)
YAML_TOKENS = (
    *(b": ", b"- ", b"? ", b"{", b"}", b"[", b"]", b",", b"&a ", b"*a", b"*v", b"!!python/name:os"),
    *(b"!t ", b"|\n", b">\n", b"'", b'"', b"#", b"---\n", b"...\n", b"%YAML 1.1\n", b"<<: ", b"\t"),
    *(b"~", b"null", b".inf", b".nan", b"0x10", b"1e400", b"\xff", b"\x00", b"\xc2\x85"),
    *(b"tasks", b"nodes", b"network", b"workload", b"1 ms", b"120/s", b"0.9", b"zoo://digits/tiny"),
    *(b"phases", b"trace", b"file: /dev/null", b"gml: x.gml", b"links", b"[" * 70, b"\xe2\x80\xa8"),
    *(b"mean", b"rate", b"count: 1000000000", b"priced", b"tad-op", b"x.py:Y", b"\\ud800", b"\r"),
)  # fmt: skip


def yaml(choose: random.Random) -> bytes:
    return respelled(choose.choice(FILES), YAML_TOKENS, choose)


@few_or_many
def test_deployment_files(folder: Path, count: int) -> None:
    file = folder / "served.yaml"

    def feed(raw: bytes) -> None:
        file.write_bytes(raw)
        try:
            deployment = inferway.load(file)
            list(inferway.check(deployment))
        except DeploymentError as error:
            lines = str(error).split("\n")
            assert all(one.startswith(str(file)) and one.isprintable() for one in lines), lines

    Course("yaml", yaml, count).run(feed)


# --- recordings

FLEET = Fleet(
    ("a", "b"), np.array([8.0, 2.0]), np.array([0.6, 0.9]), np.array([2, 2]), buffer=4, task="t"
)
FIELDS = {name: 1 << (8 * EVENT[name].itemsize - 1) for name in EVENT.names or ()}
ODD = (-1, -2, 0, 1, 3, 4, 5, 127, 2**31 - 1, 2**62, -(2**31))
STEPS = 16
HEAD_KEYS = ("schema", "policy", "options", "target", "fleet", "gap", "ended", "lasting", "folder")


def record(folder: Path) -> None:
    """A short course of events: all kinds, a queue, one that is full."""
    dispatcher = Dispatcher(FLEET, "jiq-fast", target=0.8, rate_per_s=6.0, measure=True)
    recording = Recording(dispatcher, folder)
    chance = random.Random(4)
    for step in range(STEPS):
        now = step / 9
        recording.arrive(now, chance.getrandbits(62), now + 3.0, 0.0, 1, ALL_CLASSES, 2, True)
        for server in np.flatnonzero(recording.site.queue).tolist():
            if chance.random() < 0.2:
                recording.begin(server, 1, now)
                recording.finish(server, now, 0.1)
        if recording.site.queue[3] > 1:
            recording.withdraw(3, 1, now)
        recording.mark(1, step % 2 == 0, now)
        recording.shift(0, 4, 0.001, 0.0, now)
    recording.retune(7.5)
    recording.close()


class Damage:
    """Makes damaged recordings of a whole one."""

    def __init__(self, folder: Path) -> None:
        record(folder)
        self.head = json.loads((folder / "recording.json").read_text())
        (beginning,) = folder.glob("*.state.npz")
        self.state = beginning.read_bytes()
        (events,) = folder.glob("*.events")
        self.events = events.read_bytes()
        self.names = {"head": "recording.json", "state": beginning.name, "events": events.name}
        with np.load(beginning) as state:
            self.arrays = dict(state)

    def __call__(self, choose: random.Random) -> tuple[str, bytes]:
        match choose.randrange(10):
            case 0 | 1:
                head: Any = self.head
                for _ in range(choose.randrange(1, 3)):
                    head = mutated(head, choose, HEAD_KEYS)
                text = json.dumps(head).encode()
                if choose.random() < 0.2:
                    text = respelled(text, JSON_TOKENS, choose)
                return "head", text
            case 2:
                return "state", damaged(self.state, choose)
            case 3:
                return "state", self._otherwise(choose)
            case 4:
                return "events", damaged(self.events, choose)
            case _:
                return "events", self._moved(choose)

    def _moved(self, choose: random.Random) -> bytes:
        """Some fields of some events changed; some events elsewhere, twice or left out."""
        rows = np.frombuffer(self.events, EVENT).copy()
        for _ in range(choose.randrange(1, 4)):
            at, name = choose.randrange(len(rows)), choose.choice(list(FIELDS))
            if EVENT[name].kind == "f":
                rows[at][name] = choose.choice([np.nan, np.inf, -np.inf, -1.0, 1e308, 0.0])
            else:
                rows[at][name] = (choose.choice(ODD) + FIELDS[name]) % (2 * FIELDS[name]) - (
                    FIELDS[name] if EVENT[name].kind == "i" else 0
                )
            if choose.random() < 0.3:
                other = choose.randrange(len(rows))
                rows[[at, other]] = rows[[other, at]]
            if choose.random() < 0.2:
                rows = np.delete(rows, choose.randrange(len(rows)))
        return rows.tobytes()

    def _otherwise(self, choose: random.Random) -> bytes:
        """A state with another array in it."""
        arrays = dict(self.arrays)
        name = choose.choice(list(arrays))
        array = arrays[name].copy()
        match choose.randrange(5):
            case 0:
                del arrays[name]
            case 1:
                arrays[choose.choice([f"{name}x", "site.nothing", "else.queue"])] = array
            case 2:
                arrays[name] = np.resize(array, choose.choice([(), (0,), (3,), (4, 4), (2, 2, 2)]))
            case 3:
                arrays[name] = array.astype(choose.choice(["<f4", "<i2", "?", "<U4", "<c8"]))
            case _:
                odd = choose.choice([*ODD, np.nan, np.inf])
                with np.errstate(all="ignore"), suppress(ValueError, OverflowError):
                    array.reshape(-1)[choose.randrange(max(1, array.size)) % max(1, array.size)] = (
                        odd
                    )
                arrays[name] = array
        return as_npz(arrays)


def as_npz(arrays: dict[str, np.ndarray]) -> bytes:
    from io import BytesIO

    with np.errstate(all="ignore"):
        written = BytesIO()
        np.savez(written, **arrays)  # type: ignore[arg-type]
    return written.getvalue()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@few_or_many
def test_recordings(
    folder: Path, tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Damage(tmp_path / "whole")
    # Of half the time it takes, and none of what came: which code of policies this is.
    monkeypatch.setattr("inferway.dispatch.replay.code_of", lambda _: make.head["code"])
    contents = {
        "head": json.dumps(make.head).encode(),
        "state": make.state,
        "events": make.events,
    }
    for part, name in make.names.items():
        (folder / name).write_bytes(contents[part])
    good = replay(folder)
    assert (good.requests, good.differences, good.losses) == (STEPS, (), ())

    def feed(given: tuple[str, bytes]) -> None:
        part, raw = given
        file = folder / make.names[part]
        file.write_bytes(raw)
        try:
            readers = (replay, read_trace) if raw[-1:] < b"\x40" else (replay,)
            for reader in readers:
                with in_a_line(ValueError):
                    reader(folder)  # type: ignore[operator]
        finally:
            file.write_bytes(contents[part])

    Course("recordings", make, count).run(feed)
    assert replay(folder).differences == ()


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (1, "server", 2**31 - 1),
        (1, "server", -7),
        (2, "rows", 40),
        (0, "server", 4),
        (9, "rows", 9),
    ],
    ids=["finish far", "finish before", "withdraw", "arrive", "shift"],
)
def test_replay_tells_an_event_that_could_not_have_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: int, field: str, value: int
) -> None:
    record(tmp_path / "t")
    (file,) = (tmp_path / "t").glob("*.events")
    rows = np.frombuffer(file.read_bytes(), EVENT).copy()
    place = int(np.flatnonzero(rows["kind"] == kind)[0])
    rows[place][field] = value
    file.write_bytes(rows.tobytes())
    main(["replay", str(tmp_path / "t")])
    printed = capsys.readouterr()
    assert "is damaged, and left out from there on" in printed.out + printed.err
    assert "bug" not in printed.err
