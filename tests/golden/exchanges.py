"""Requests of HTTP as bytes, in the order in which one server gets them."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, Final, NamedTuple

_INFER: Final = "/v2/models/digits/infer"
_ROW: Final[dict[str, Any]] = {
    "name": "image",
    "datatype": "FP32",
    "shape": [1, 4],
    "data": [1, 2, 3, 4],
}
_FLOATS: Final = struct.pack("<4f", 1, 2, 3, 4)


class Exchange(NamedTuple):
    """What is sent, where to, and how many answers it gets."""

    raw: bytes
    admin: bool = False
    answers: int = 1


def _head(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: test", *headers, "", ""]).encode()


def _get(path: str, *headers: str) -> Exchange:
    return Exchange(_head(f"GET {path}", *headers))


def _post(body: bytes | str | dict[str, Any], *headers: str, path: str = _INFER) -> Exchange:
    sent = json.dumps(body) if isinstance(body, dict) else body
    content = sent.encode() if isinstance(sent, str) else sent
    return Exchange(_head(f"POST {path}", *headers, f"Content-Length: {len(content)}") + content)


def _infer(path: str = _INFER, **keys: Any) -> Exchange:
    return _post({"inputs": [_ROW]} | keys, path=path)


def _row(**keys: Any) -> Exchange:
    return _infer(inputs=[_ROW | keys])


def _parameters(**parameters: Any) -> Exchange:
    return _infer(parameters=parameters)


def _outputs(**keys: Any) -> Exchange:
    return _infer(outputs=[{"name": "scores"} | keys])


def _binary(header: dict[str, Any], raw: bytes = _FLOATS, length: int | None = None) -> Exchange:
    said = json.dumps(header).encode()
    size = len(said) if length is None else length
    return _post(said + raw, f"Inference-Header-Content-Length: {size}")


def row_of(task: str) -> Exchange:
    """Ask for an answer to one row."""
    return _infer(f"/v2/models/{task}/infer")


_RAW: Final = {name: _ROW[name] for name in ("name", "datatype", "shape")}
_BINARY: Final = {"inputs": [_RAW | {"parameters": {"binary_data_size": 16}}]}
_CHUNKED: Final = "Transfer-Encoding: chunked"
_JSON: Final = json.dumps({"inputs": [_ROW]})


def _gzip(text: str) -> bytes:
    """Pack without making it smaller: that would differ from one zlib to the next."""
    raw = text.encode()
    packer = zlib.compressobj(0, wbits=-zlib.MAX_WBITS)
    content = packer.compress(raw) + packer.flush()
    head = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    return head + content + struct.pack("<LL", zlib.crc32(raw), len(raw))


def _chunks(body: str, end: str = "0\r\n\r\n") -> bytes:
    return f"{len(body):x}\r\n{body}\r\n{end}".encode()


EXCHANGES: Final[dict[str, Exchange]] = {
    # what a server tells of itself
    "live": _get("/v2/health/live"),
    "ready": _get("/v2/health/ready"),
    "server": _get("/v2"),
    "server, with a slash": _get("/v2/"),
    "server, its head alone": Exchange(_head("HEAD /v2")),
    "task": _get("/v2/models/digits"),
    "task, by a whole address": _get("http://host:1/v2/models/digits?x=1"),
    "task, escaped": _get("/v2/models/%64igits"),
    "task, ready": _get("/v2/models/digits/ready"),
    "variant": _get("/v2/models/digits/versions/big"),
    "variant, ready": _get("/v2/models/digits/versions/big/ready"),
    "tasks": _get("/v2/models"),
    "configuration": _get("/v2/models/digits/config"),
    "configuration of a variant": _get("/v2/models/digits/versions/big/config"),
    "statistics": _get("/v2/models/digits/stats"),
    "statistics of a variant": _get("/v2/models/digits/versions/big/stats"),
    "statistics of everything": _get("/v2/models/stats"),
    "index": _post("", path="/v2/repository/index"),
    "index of what is ready": _post({"ready": True}, path="/v2/repository/index"),
    "index, wrong": _post({"ready": 1}, path="/v2/repository/index"),
    # paths and methods
    "unknown path": _get("/nowhere"),
    "unknown task": _get("/v2/models/digit"),
    "unknown task, asked": _infer("/v2/models/other/infer"),
    "unknown variant": _get("/v2/models/digits/versions/huge"),
    "configuration of an unknown task": _get("/v2/models/digit/config"),
    "statistics of an unknown variant": _get("/v2/models/digits/versions/huge/stats"),
    "unknown variant, asked": _infer("/v2/models/digits/versions/huge/infer"),
    "unknown request": _get("/v2/models/digits/explain/nothing"),
    "GET in place of POST": _get(_INFER),
    "POST in place of GET": _post("", path="/v2"),
    "DELETE": Exchange(_head("DELETE /v2/models/digits")),
    "OPTIONS": Exchange(_head("OPTIONS /v2")),
    "load": _post({}, path="/v2/repository/models/digits/load"),
    "shared memory": _get("/v2/systemsharedmemory/status"),
    "metrics at the wrong listener": _get("/metrics"),
    # answers
    "infer": _post(_JSON),
    "infer, named": _post(
        json.dumps({"id": "7", "inputs": [_ROW]}),
        "X-Request-Id: mine",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate: a=b",
    ),
    "explain": _get("/v2/models/digits/explain/mine"),
    "infer, pinned": _infer("/v2/models/digits/versions/big/infer"),
    "infer, two rows": _row(shape=[2, 4], data=[[1, 2, 3, 4], [5, 6, 7, 8]]),
    "infer, an output by name": _outputs(),
    "infer, binary": _binary(_BINARY),
    "infer, binary answer": _outputs(parameters={"binary_data": True}),
    "infer, binary answers": _parameters(binary_data_output=True),
    "infer, accurate": _parameters(accuracy=0.8),
    "infer, deadline": _parameters(deadline_ms=10000),
    "infer, timeout": _parameters(timeout=10000000),
    "infer, no timeout": _parameters(timeout=0),
    "infer, priority": _parameters(priority=1),
    "infer, parameters of others": _parameters(sequence_id=1, content_type="np", triton_x=1),
    "infer, gzip": _post(_gzip(_JSON), "Content-Encoding: gzip"),
    "infer, deflate": _post(zlib.compress(_JSON.encode(), 0), "Content-Encoding: deflate"),
    "infer, chunked": Exchange(_head(f"POST {_INFER}", _CHUNKED) + _chunks(_JSON)),
    "infer, trailers": Exchange(
        _head(f"POST {_INFER}", _CHUNKED) + _chunks(_JSON, "0\r\nX-Sum: 1\r\n\r\n")
    ),
    "infer, expected": _post(_JSON, "Expect: 100-continue"),
    "infer, and closed": _post(_JSON, "Connection: close"),
    "infer, and more behind it": Exchange(_post(_JSON).raw + _head("GET /v2"), answers=2),
    "infer, HTTP/1.0": Exchange(_post(_JSON).raw.replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
    "infer, another protocol wished": _post(_JSON, "Connection: Upgrade", "Upgrade: h2c"),
    # wrong requests
    "no body": _post(""),
    "no JSON": _post("{"),
    "a list": _post("[]"),
    "no UTF-8": _post(b'{"inputs": "\xff"}'),
    "deep": _post("[" * 3000),
    "not a number": _post(_JSON.replace("[1, 2", "[NaN, 2")),
    "no inputs": _post({}),
    "inputs: a word": _infer(inputs="image"),
    "inputs: none": _infer(inputs=[]),
    "inputs: twice": _infer(inputs=[_ROW, _ROW]),
    "input: a number": _infer(inputs=[1]),
    "input: its name": _row(name="picture"),
    "input: no datatype": _infer(inputs=[{"name": "image", "shape": [1, 4], "data": [1] * 4}]),
    "input: another datatype": _row(datatype="INT8"),
    "input: no datatype there is": _row(datatype="FP99"),
    "input: no shape": _infer(inputs=[{"name": "image", "datatype": "FP32", "data": [1] * 4}]),
    "input: another shape": _row(shape=[1, 5], data=[1] * 5),
    "input: more axes": _row(shape=[1, 1, 4]),
    "input: no rows": _row(shape=[0, 4], data=[]),
    "input: negative rows": _row(shape=[-1, 4]),
    "input: a row too few": _row(shape=[2, 4]),
    "input: too many elements": _row(shape=[100_000_000, 4]),
    "input: no data": _infer(inputs=[_RAW]),
    "input: words": _row(data=["a", "b", "c", "d"]),
    "input: true": _row(data=[True, 1, 2, 3]),
    "input: too large a number": _row(data=[1e300, 2, 3, 4]),
    "input: shared memory": _infer(
        inputs=[_RAW | {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 16}}]
    ),
    "output: its name": _outputs(name="score"),
    "output: twice": _infer(outputs=[{"name": "scores"}, {"name": "scores"}]),
    "output: classification": _outputs(parameters={"classification": 2}),
    "id: a number": _infer(id=7),
    "parameters: a list": _infer(parameters=[]),
    "accuracy: above 1": _parameters(accuracy=95),
    "accuracy: a word": _parameters(accuracy="high"),
    "accuracy: above all": _parameters(accuracy=0.95),
    "accuracy: above a pinned variant's": _infer(
        "/v2/models/digits/versions/tiny/infer", parameters={"accuracy": 0.8}
    ),
    "deadline: 0": _parameters(deadline_ms=0),
    "deadline: negative": _parameters(deadline_ms=-5),
    "deadline: a word": _parameters(deadline_ms="soon"),
    "timeout: negative": _parameters(timeout=-1),
    "deadline and timeout": _parameters(deadline_ms=10000, timeout=9000000),
    "priority: 0": _parameters(priority=0),
    "priority: a fraction": _parameters(priority=1.5),
    "a parameter that is near": _parameters(acuracy=0.8),
    "two parameters that are near": _parameters(deadline=5, priorty=1),
    "binary answers: a word": _parameters(binary_data_output="yes"),
    "binary: too short": _binary(_BINARY, _FLOATS[:8]),
    "binary: too long": _binary(_BINARY, _FLOATS + b"more"),
    "binary: another size": _binary({"inputs": [_RAW | {"parameters": {"binary_data_size": 12}}]}),
    "binary: header too long": _binary(_BINARY, length=100000),
    "binary: header no number": _post(_JSON, "Inference-Header-Content-Length: many"),
    "binary: beside data": _binary({"inputs": [_ROW | {"parameters": {"binary_data_size": 16}}]}),
    "an unknown packing": _post(_JSON, "Content-Encoding: br"),
    "gzip that is none": _post(_JSON, "Content-Encoding: gzip"),
    "gzip, cut": _post(_gzip(_JSON)[:-9], "Content-Encoding: gzip"),
    # framing
    "no host": Exchange(b"GET /v2 HTTP/1.1\r\n\r\n"),
    "two hosts": _get("/v2", "Host: other"),
    "no HTTP": Exchange(b"hello\r\n\r\n"),
    "HTTP/2": Exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/3.0": Exchange(b"GET /v2 HTTP/3.0\r\nHost: test\r\n\r\n"),
    "a header without colon": _get("/v2", "colon"),
    "a header with a space before its colon": _get("/v2", "X-Name : 1"),
    "a header over lines": _get("/v2", "X-Name: 1\r\n 2"),
    "a null byte": Exchange(b"GET /v2 HTTP/1.1\r\nHost: test\r\nX-Name: a\0b\r\n\r\n"),
    "headers too long": _get("/v2", "X-Name: " + "a" * 70_000),
    "a path too long": _get("/v2/" + "a" * 70_000),
    "CONNECT": Exchange(_head("CONNECT test:443")),
    "two lengths": _post(_JSON, "Content-Length: 5"),
    "a length below 0": Exchange(_head(f"POST {_INFER}", "Content-Length: -1")),
    "no length": Exchange(_head(f"POST {_INFER}", "Content-Length: five")),
    "length and chunks": Exchange(
        _head(f"POST {_INFER}", "Content-Length: 5", _CHUNKED) + _chunks(_JSON)
    ),
    "another transfer coding": Exchange(_head(f"POST {_INFER}", "Transfer-Encoding: gzip")),
    "a chunk without length": Exchange(_head(f"POST {_INFER}", _CHUNKED) + b"x\r\n"),
    "a body too large": Exchange(_head(f"POST {_INFER}", "Content-Length: 3000000")),
    "a binary body too large": Exchange(
        _head(f"POST {_INFER}", "Inference-Header-Content-Length: 99", "Content-Length: 3000000")
    ),
    # the admin listener
    "admin: live": _get("/v2/health/live")._replace(admin=True),
    "admin: unknown path": _get("/nowhere")._replace(admin=True),
    "admin: root": _get("/")._replace(admin=True),
    "admin: a wrong history": _get("/history?every=hour")._replace(admin=True),
    "admin: metrics posted": _post("", path="/metrics")._replace(admin=True),
    "admin: apply": _post({"path": "x.yaml"}, path="/apply")._replace(admin=True),
    "admin: status": _get("/status")._replace(admin=True),
    "task, at the end": _get("/v2/models/digits/ready"),
}
"""Name -> exchange, with a server of `files/served.yaml` and limits of 2 MiB, of JSON 1 MiB."""

KEYS: Final = {"read": "r" * 16, "infer": "i" * 16, "admin": "a" * 16}
_KEYED: Final = "Authorization: Bearer"


def _apply(body: dict[str, Any], role: str) -> Exchange:
    key = f"{_KEYED} {KEYS[role]}"
    sent = _post(body, key, "Content-Type: application/json", path="/apply")
    return sent._replace(admin=True)


KEYED: Final[dict[str, Exchange]] = {
    "live": _get("/v2/health/live"),
    "no key": _get("/v2"),
    "no key, asked": _post(_JSON),
    "another kind of key": _get("/v2", "Authorization: Basic eDp5"),
    "an unknown key": _get("/v2", f"{_KEYED} {'x' * 16}"),
    "a key": _get("/v2", f"{_KEYED} {KEYS['infer']}"),
    "a key for reading": _get("/v2", f"{_KEYED} {KEYS['read']}"),
    "a key that may not read": _get("/status", f"{_KEYED} {KEYS['infer']}")._replace(admin=True),
    "a key that may not read statistics": _get("/v2/models/stats", f"{_KEYED} {KEYS['infer']}"),
    "no key to read": _get("/metrics")._replace(admin=True),
    "a key that may not apply": _apply({}, "read"),
    "a key to apply nothing": _apply({}, "admin"),
    "a key that may not change anything": _apply({"with": {"target": 0.8}}, "read"),
    "a key to change nothing": _apply({"with": {}, "dry_run": True}, "admin"),
    "a key to change what cannot be": _apply({"with": {"seed": 1}}, "admin"),
    "a key to apply both": _apply({"path": "x.yaml", "content": "tasks: {}"}, "admin"),
    "a file that is not there": _apply({"path": "x.yaml"}, "admin"),
    "a file of another folder": _apply({"path": "/nowhere/x.yaml"}, "admin"),
    "a wrong content": _apply({"content": "tasks: {t: {}}"}, "admin"),
}
"""The same of a server with keys."""
