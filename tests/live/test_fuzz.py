"""A target for each reader of foreign bytes: only what is documented comes of whatever comes."""

from __future__ import annotations

import gzip
import random
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzzed import HTTP_TOKENS, MIXED, SHAPES, VALUES, as_binary, as_json
from fuzzing import BATCH, LIMIT_S, Course, few_or_many, limited
from inferway.runtime import NullRuntime
from mutation import damaged, respelled

HONEST = {501, 503, 504, 505, 508}
"""What is not offered, not there, too late or in a ring are true answers to valid requests."""


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
            with suppress(OSError):  # the server has refused it, and is gone already
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


def asked(running: Any, given: tuple[bytes, str, str], choose: random.Random) -> bytes:
    body, headers, path = given
    if choose.random() < 0.05 and "Encoding" not in headers:
        body = gzip.compress(body, 1)
        body = damaged(body, choose) if choose.random() < 0.5 else body
        headers += "Content-Encoding: gzip\r\n"
    made: bytes = running.post(body, headers, path)
    return made


def fuzz_bodies(running: Any, name: str, make: Callable[[random.Random], Any], count: int) -> None:
    course = Course(name, lambda choose: asked(running, make(choose), choose), count)
    with unbroken(running.server._http) as errors:
        for batch in course.batches(BATCH):
            wire = running.wire()
            with limited(5 * LIMIT_S):
                wire.send(b"".join(batch))
                for place in range(len(batch)):
                    status = wire.read().status
                    good = status < 500 or status in HONEST
                    assert (good, errors) == (True, []), (status, course.told(place))
            wire.close()
            running._wires.remove(wire)
        assert running.get("/v2/health/ready").status == 200


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
