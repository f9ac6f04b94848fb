"""Bytes as clients and servers send them, with something changed: heads, JSON and tensors."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

from inferway.protocol import Signature, Tensor
from mutation import damaged, mutated, nested, respelled

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
