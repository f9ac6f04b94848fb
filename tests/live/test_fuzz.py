"""A hundred thousand requests that nobody meant: none gives a 5xx, and the server goes on."""

from __future__ import annotations

import gzip
import json
import random
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

BATCH = 50
HONEST = {501, 504}
"""What is not offered, and what came too late, are true answers to valid requests."""
RAW = struct.pack("<4f", 1, 2, 3, 4)
TENSOR = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}
WORDS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 4, 16, 2**31, 2**53, 2**64, 10**30, 0.5, -1e308, 1e-320),
    *("", "image", "scores", "FP32", "FP16", "BYTES", "INT64", "BOOL", "tiny", "\u0000", "é" * 9),
    *([], {}, [[]], [1, 4], [4], [2, 2], [0, 4], [[0.1, 0.2, 0.3, 0.4]], [None] * 4, ["a"] * 4),
)
KEYS = (
    *("inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data"),
    *("binary_data_size", "binary_data", "binary_data_output", "classification"),
    *("accuracy", "deadline_ms", "timeout", "priority", "shared_memory_region"),
)


def mutated(message: Any, choose: random.Random) -> Any:
    """The message with something in it replaced, added, left out or doubled."""
    if isinstance(message, dict) and message and choose.random() < 0.8:
        changed = dict(message)
        key = choose.choice(list(changed))
        match choose.randrange(6):
            case 0:
                del changed[key]
            case 1:
                changed[choose.choice(KEYS)] = choose.choice(WORDS)
            case 2:
                changed[key] = choose.choice(WORDS)
            case _:
                changed[key] = mutated(changed[key], choose)
        return changed
    if isinstance(message, list) and message and choose.random() < 0.8:
        listed = list(message)
        place = choose.randrange(len(listed))
        if choose.random() < 0.2:
            listed.insert(place, listed[place])
        else:
            listed[place] = mutated(listed[place], choose)
        return listed
    return choose.choice(WORDS)


def damaged(raw: bytes, choose: random.Random) -> bytes:
    """The bytes with some replaced, cut or repeated."""
    data = bytearray(raw)
    for _ in range(choose.randrange(1, 4)):
        at = choose.randrange(len(data) + 1)
        match choose.randrange(3):
            case 0:
                data[at : at + choose.randrange(8)] = choose.randbytes(choose.randrange(8))
            case 1:
                del data[at : at + choose.randrange(40)]
            case _:
                data[at:at] = data[: choose.randrange(20)]
    return bytes(data)


def request(post: Any, choose: random.Random) -> bytes:
    """A whole HTTP request with a body that is wrong in one way or another."""
    message: Any = {"inputs": [dict(TENSOR)], "id": "7"}
    headers, raw = "", b""
    if choose.random() < 0.3:
        message["parameters"] = {"deadline_ms": 1e6, "accuracy": 0.5, "priority": 1}
    if choose.random() < 0.3:
        message["outputs"] = [{"name": "scores", "parameters": {"binary_data": True}}]
    if choose.random() < 0.5:
        raw = RAW
        del message["inputs"][0]["data"]
        message["inputs"][0]["parameters"] = {"binary_data_size": len(raw)}
    for _ in range(choose.randrange(3)):
        message = mutated(message, choose)
    body = json.dumps(message).encode()
    if raw:
        length: Any = len(body)
        if choose.random() < 0.2:
            length = choose.choice([0, length - 1, length + 1, 10**9, -1, "x", "0x10", "9" * 30])
        headers = f"Inference-Header-Content-Length: {length}\r\n"
    body += raw
    if choose.random() < 0.4:
        body = damaged(body, choose)
    match choose.randrange(12):
        case 0:
            headers += "Content-Encoding: gzip\r\n"
            body = gzip.compress(body, 1)
            body = damaged(body, choose) if choose.random() < 0.7 else body
        case 1:
            headers += f"Content-Encoding: {choose.choice(['deflate', 'br', 'gzip,gzip'])}\r\n"
        case 2:
            headers += f"Accept-Encoding: {choose.choice(['gzip;q=x', ';;', '*', 'gzip'])}\r\n"
        case 3:
            headers += f"traceparent: {choose.choice(['00-', '00-' + 'a' * 52, '-' * 55])}\r\n"
    path = "/v2/models/digits/infer"
    if choose.random() < 0.2:
        path = choose.choice(
            ["/v2/models/digits/versions/tiny/infer", "/v2/models//infer", "/%ff", "/v2?x", "*"]
        )
    made: bytes = post(body, headers, path)
    return made


def fuzz(running: Any, seed: int, count: int) -> None:
    choose = random.Random(seed)
    asked = [request(running.post, choose) for _ in range(count)]
    wire = running.wire()
    try:
        wire.send(b"".join(asked))
        for raw in asked:
            status = wire.read().status
            assert status < 500 or status in HONEST, (status, raw)
    finally:
        wire.close()
    assert running.get("/v2/health/ready").status == 200


_QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
_LONG = settings(_QUIET, max_examples=2_000)


@_QUIET
@given(seed=st.integers(0, 2**64))
def test_two_thousand_wrong_requests(digits: Any, seed: int) -> None:
    fuzz(digits, seed, BATCH)


@pytest.mark.slow
@_LONG
@given(seed=st.integers(0, 2**64))
def test_a_hundred_thousand_wrong_requests(digits: Any, seed: int) -> None:
    fuzz(digits, seed, BATCH)
