"""A small server that is right, and can be made wrong in one thing."""

from __future__ import annotations

import gzip
import json
import math
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from inferway.live.grpc import messages

LENGTH = "inference-header-content-length"
INPUTS = [
    {"name": "x", "datatype": "FP32", "shape": [-1, 3]},
    {"name": "words", "datatype": "BYTES", "shape": [-1, 2]},
]
OUTPUTS = [
    {"name": "twice", "datatype": "FP32", "shape": [-1, 3]},
    {"name": "echo", "datatype": "BYTES", "shape": [-1, 2]},
]
VERSIONS = ["1", "2"]
EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]
DURATIONS = ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output"]
# Answers by version, over HTTP and gRPC together.
ANSWERED = Counter[str]()


CONFIG: dict[str, Any] = {
    "name": "fake",
    "max_batch_size": 8,
    "input": [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [3]},
        {"name": "words", "data_type": "TYPE_STRING", "dims": [2]},
    ],
    "output": [
        {"name": "twice", "data_type": "TYPE_FP32", "dims": [3]},
        {"name": "echo", "data_type": "TYPE_STRING", "dims": [2]},
    ],
}


def statistics(versions: list[str]) -> dict[str, Any]:
    """Tell what has been answered, as Triton does."""
    listed = []
    for version in versions:
        once = {"count": ANSWERED[version], "ns": 1000 * ANSWERED[version]}
        listed.append(
            {
                "name": "fake",
                "version": version,
                "last_inference": 1,
                "inference_count": 2 * ANSWERED[version],
                "execution_count": ANSWERED[version],
                "inference_stats": {
                    name: {"count": 0, "ns": 0} if name == "fail" else once for name in DURATIONS
                },
                "batch_stats": [{"batch_size": 2, "compute_infer": once}],
            }
        )
    return {"model_stats": listed}


@dataclass
class Request:
    """One request; header names in lower case, `before` are its connection's earlier statuses."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    before: list[int]

    @property
    def json(self) -> Any:
        length = self.headers.get(LENGTH)
        return json.loads(self.body[: int(length)] if length else self.body)


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def saying(self, **fields: Any) -> Reply:
        """The same with fields of its JSON replaced; None takes one out."""
        document = {key: value for key, value in (self.json | fields).items() if value is not None}
        return Reply(self.status, json.dumps(document).encode(), self.headers)


def said(document: Any, status: int = 200) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json"})


Respond = Callable[[Request], Reply]
Fault = Callable[[Request, Respond], Reply]


class RefusedError(Exception):
    """The reason and the status."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


def respond(request: Request) -> Reply:
    """TargetAnswer as the protocol says."""
    try:
        return _route(request)
    except RefusedError as refusal:
        return said({"error": str(refusal)}, refusal.status)


def _route(request: Request) -> Reply:
    parts = request.path.strip("/").split("/")
    match request.method, parts:
        case "GET", ["v2"]:
            return said({"name": "fake", "version": "1", "extensions": EXTENSIONS})
        case "GET", ["v2", "health", "live" | "ready"]:
            return said({"live": True})
        case "POST", ["v2", "repository", "index"]:
            ready = {"name": "fake", "version": "1", "state": "READY", "reason": ""}
            return said([ready | {"name": "other", "state": "UNAVAILABLE"}, ready])
        case "GET", ["v2", "models"]:
            return said({"models": ["other", "fake"]})
        case "GET", ["v2", "models", "stats"]:
            return said(statistics(VERSIONS))
        case _, ["v2", "models", name, *rest]:
            return _model(request, name, rest)
    raise RefusedError("unknown path", 405 if parts[:2] in (["v2"], ["v2", "health"]) else 404)


def _model(request: Request, name: str, rest: list[str]) -> Reply:
    version, named = "1", VERSIONS
    if name != "fake":
        raise RefusedError("unknown model", 404)
    if rest[:1] == ["versions"]:
        version, named, rest = rest[1], [rest[1]], rest[2:]
        if version not in VERSIONS:
            raise RefusedError("unknown version", 404)
    match request.method, rest:
        case "GET", []:
            described = {"versions": VERSIONS, "inputs": INPUTS, "outputs": OUTPUTS}
            return said({"name": "fake", "platform": "fake"} | described)
        case "GET", ["ready"]:
            return said({"name": "fake", "ready": True})
        case "GET", ["config"]:
            return said(CONFIG)
        case "GET", ["stats"]:
            return said(statistics(named))
        case "POST", ["infer"]:
            return _infer(request, version)
    raise RefusedError("wrong method", 405)


def _infer(request: Request, version: str) -> Reply:
    body = request.body
    match request.headers.get("content-encoding"):
        case "gzip":
            body = gzip.decompress(body)
        case "deflate":
            body = zlib.decompress(body)
    at = len(body)
    if (length := request.headers.get(LENGTH)) is not None:
        if not length.isdigit():
            raise RefusedError("header is no number")
        if (at := int(length)) > len(body):
            raise RefusedError("header beyond the body")
    try:
        document = json.loads(body[:at])
    except ValueError:
        raise RefusedError("header inside" if length else "malformed") from None
    if (
        not isinstance(document, dict)
        or not isinstance(given := document.get("inputs"), list)
        or not all(isinstance(one, dict) for one in given)
    ):
        raise RefusedError("no request")
    arrays = _arrays(given, body[at:])
    found = {"twice": arrays["x"] * 2, "echo": arrays["words"]}
    reply = _reply(document, version, found)
    ANSWERED[version] += 1
    return reply


def _arrays(given: list[dict[str, Any]], rest: bytes) -> dict[str, Any]:
    known = {one["name"]: one for one in INPUTS}
    arrays: dict[str, Any] = {}
    for one in given:
        if one["name"] not in known:
            raise RefusedError("unknown input")
        if one["datatype"] not in ("FP32", "BYTES", "INT32"):
            raise RefusedError("unknown datatype")
        if one["datatype"] != known[one["name"]]["datatype"]:
            raise RefusedError("another datatype")
        shape = one["shape"]
        if min(shape) < 0:
            raise RefusedError("negative shape")
        if shape[1:] != known[one["name"]]["shape"][1:]:
            raise RefusedError("another shape")
        size = (one.get("parameters") or {}).get("binary_data_size")
        if size is not None:
            if size > len(rest):
                raise RefusedError("truncated")
            arrays[one["name"]] = _raw(one["datatype"], shape, rest[:size])
            rest = rest[size:]
        elif "data" not in one:
            raise RefusedError("no data")
        else:
            arrays[one["name"]] = _listed(one["datatype"], shape, one["data"])
    if len(arrays) < len(INPUTS):
        raise RefusedError("missing input")
    if rest:
        raise RefusedError("surplus")
    return arrays


def _raw(datatype: str, shape: list[int], raw: bytes) -> Any:
    if datatype == "FP32":
        if len(raw) != 4 * math.prod(shape):
            raise RefusedError("wrong size")
        return np.frombuffer(raw, "<f4").reshape(shape)
    values = []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 + length:
            raise RefusedError("wrong size")
        values.append(raw[4 : 4 + length].decode())
        raw = raw[4 + length :]
    if len(values) != math.prod(shape):
        raise RefusedError("wrong size")
    return np.array(values, np.object_).reshape(shape)


def _listed(datatype: str, shape: list[int], data: list[Any]) -> Any:
    flat = [value for row in data for value in (row if isinstance(row, list) else [row])]
    if len(flat) != math.prod(shape):
        raise RefusedError("too few" if len(flat) < math.prod(shape) else "too many")
    kind: Any = str if datatype == "BYTES" else int | float
    if not all(isinstance(value, kind) for value in flat):
        raise RefusedError("elements of another type")
    return np.array(flat, np.object_ if datatype == "BYTES" else "<f4").reshape(shape)


def _reply(document: dict[str, Any], version: str, found: dict[str, Any]) -> Reply:
    every = (document.get("parameters") or {}).get("binary_data_output", False)
    listed, tail = [], b""
    for one in document.get("outputs") or [{"name": name} for name in found]:
        if one["name"] not in found:
            raise RefusedError("unknown output")
        array = found[one["name"]]
        kind = "FP32" if one["name"] == "twice" else "BYTES"
        described: dict[str, Any] = {
            "name": one["name"], "datatype": kind, "shape": list(array.shape),
        }  # fmt: skip
        if (one.get("parameters") or {}).get("binary_data", every):
            raw = array.tobytes()
            if kind == "BYTES":
                texts = [value.encode() for value in array.ravel()]
                raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            described["parameters"] = {"binary_data_size": len(raw)}
            tail += raw
        else:
            described["data"] = array.ravel().tolist()
        listed.append(described)
    answer = {"model_name": "fake", "model_version": version, "outputs": listed}
    if "id" in document:
        answer["id"] = document["id"]
    reply = said(answer)
    if tail:
        length = {LENGTH: str(len(reply.body)), "Content-Type": "application/octet-stream"}
        return Reply(200, reply.body + tail, length)
    return reply


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Fake

    def setup(self) -> None:
        super().setup()
        self.before: list[int] = []

    def answer(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(headers.get("content-length", 0)))
        request = Request(self.command, self.path, headers, body, self.before)
        fault = self.server.fault
        try:
            reply = respond(request) if fault is None else fault(request, respond)
        except ConnectionError:
            self.close_connection = True
            return
        self.before.append(reply.status)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Content-Length" not in reply.headers:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - http.server's names

    def log_message(self, *_: Any) -> None:
        pass


class Fake(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.fault: Fault | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def fake() -> Iterator[Fake]:
    server = Fake()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


class FakeRpc:
    """The same model over gRPC; `fault` takes method, request and the right server's function."""

    def __init__(self) -> None:
        self.fault: Callable[[str, bytes, Any], Any] | None = None
        self.server = grpc.server(ThreadPoolExecutor(2), handlers=[_RpcHandlers(self)])
        self.url = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def answer(self, path: str, data: bytes, context: Any) -> bytes:
        method = path.rpartition("/")[2]
        try:
            found = (
                rpc_respond(method, data)
                if self.fault is None
                else self.fault(method, data, rpc_respond)
            )
        except RefusedError as refusal:
            context.abort(grpc.StatusCode[STATUSES.get(refusal.status, "INTERNAL")], str(refusal))
        return found if isinstance(found, bytes) else bytes(found.SerializeToString())


STATUSES = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 501: "UNIMPLEMENTED"}


class _RpcHandlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, fake: FakeRpc) -> None:
        self.fake = fake

    def service(self, call: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            lambda data, context: self.fake.answer(call.method, data, context)
        )


def rpc_respond(method: str, data: bytes) -> Any:
    """TargetAnswer as the protocol says."""
    match method:
        case "ServerLive":
            return messages.ServerLiveResponse(live=True)
        case "ServerReady":
            return messages.ServerReadyResponse(ready=True)
        case "ServerMetadata":
            return messages.ServerMetadataResponse(name="fake", version="1", extensions=EXTENSIONS)
        case "ModelConfig":
            if messages.ModelConfigRequest.FromString(data).name != "fake":
                raise RefusedError("unknown model", 404)
            return ParseDict({"config": CONFIG}, messages.ModelConfigResponse())
        case "ModelStatistics":
            asked = messages.ModelStatisticsRequest.FromString(data)
            told = statistics([asked.version] if asked.version else VERSIONS)
            return ParseDict(told, messages.ModelStatisticsResponse())
        case "Check":
            return messages.HealthCheckResponse(status=1)
        case "ModelReady":
            if messages.ModelReadyRequest.FromString(data).name != "fake":
                raise RefusedError("unknown model", 404)
            return messages.ModelReadyResponse(ready=True)
        case "ModelMetadata":
            found = messages.ModelMetadataResponse(name="fake", versions=VERSIONS)
            for side, tensors in ((found.inputs, INPUTS), (found.outputs, OUTPUTS)):
                for one in tensors:
                    side.add(**one)
            return found
    return _rpc_infer(messages.ModelInferRequest.FromString(data))


def _rpc_infer(sent: Any) -> Any:
    if sent.model_name != "fake":
        raise RefusedError("unknown model", 404)
    if sent.model_version not in ("", *VERSIONS):
        raise RefusedError("unknown version", 404)
    raw = list(sent.raw_input_contents)
    if raw and len(raw) > len(sent.inputs):
        raise RefusedError("surplus")
    given: list[dict[str, Any]] = []
    for one in sent.inputs:
        described = {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
        if raw:
            described["parameters"] = {"binary_data_size": len(raw[len(given)])}
        elif one.datatype == "BYTES":
            described["data"] = [text.decode() for text in one.contents.bytes_contents]
        else:
            described["data"] = list(one.contents.fp32_contents)
        given.append(described)
    arrays = _arrays(given, b"".join(raw))
    found = {"twice": arrays["x"] * 2, "echo": arrays["words"]}
    answer = messages.ModelInferResponse(
        model_name="fake", model_version=sent.model_version or "1", id=sent.id
    )
    for name in [one.name for one in sent.outputs] or list(found):
        if name not in found:
            raise RefusedError("unknown output")
        array = found[name]
        kind = "FP32" if name == "twice" else "BYTES"
        output = answer.outputs.add(name=name, datatype=kind, shape=array.shape)
        if raw and kind == "FP32":
            answer.raw_output_contents.append(array.tobytes())
        elif raw:
            texts = [text.encode() for text in array.ravel()]
            answer.raw_output_contents.append(
                b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            )
        elif kind == "FP32":
            output.contents.fp32_contents.extend(array.ravel().tolist())
        else:
            output.contents.bytes_contents.extend(text.encode() for text in array.ravel())
    ANSWERED[answer.model_version] += 1
    return answer


@pytest.fixture
def fake_rpc() -> Iterator[FakeRpc]:
    fake = FakeRpc()
    yield fake
    fake.server.stop(None).wait(10)
