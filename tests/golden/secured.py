"""A server with a certificate: what it says over gRPC, and over HTTP behind TLS."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from exchanges import Exchange
from google.protobuf.json_format import MessageToDict
from served import PATIENCE_S, serving, told
from transcript import plain
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

_IMAGE: Final[dict[str, Any]] = {
    "name": "image",
    "datatype": "FP32",
    "shape": [1, 4],
    "contents": {"fp32_contents": [1, 2, 3, 4]},
}
_GET: Final = b"GET %s HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
_MEASURED: Final = {"latency_ms", "predicted_latency_ms"}
_MADE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{16}")


def _infer(model: str = "digits", **keys: Any) -> tuple[str, Any]:
    inputs = keys.pop("inputs", [_IMAGE])
    return "ModelInfer", messages.ModelInferRequest(model_name=model, inputs=inputs, **keys)


CALLS: Final[dict[str, tuple[str, Any]]] = {
    "live": ("ServerLive", messages.ServerLiveRequest()),
    "ready": ("ServerReady", messages.ServerReadyRequest()),
    "model ready": ("ModelReady", messages.ModelReadyRequest(name="digits")),
    "another model ready": ("ModelReady", messages.ModelReadyRequest(name="words")),
    "metadata": ("ServerMetadata", messages.ServerMetadataRequest()),
    "metadata of a model": ("ModelMetadata", messages.ModelMetadataRequest(name="digits")),
    "metadata of another": ("ModelMetadata", messages.ModelMetadataRequest(name="words")),
    "configuration": ("ModelConfig", messages.ModelConfigRequest(name="digits", version="big")),
    "configuration of another": ("ModelConfig", messages.ModelConfigRequest(name="words")),
    "statistics": ("ModelStatistics", messages.ModelStatisticsRequest(name="digits")),
    "statistics of a version alone": (
        "ModelStatistics",
        messages.ModelStatisticsRequest(version="big"),
    ),
    "infer": _infer(id="mine"),
    "infer with a variant": _infer(model_version="big"),
    "infer with a floor": _infer(parameters={"accuracy": {"double_param": 0.85}}),
    "infer raw": _infer(
        inputs=[{key: _IMAGE[key] for key in ("name", "datatype", "shape")}],
        raw_input_contents=[bytes(16)],
    ),
    "infer of another": _infer("words"),
    "infer with another version": _infer(model_version="best"),
    "infer of nothing": _infer(inputs=[]),
    "infer with a short row": _infer(inputs=[_IMAGE | {"shape": [1, 5]}]),
    "infer with whole numbers": _infer(inputs=[_IMAGE | {"datatype": "INT64"}]),
    "infer with a near parameter": _infer(parameters={"deadline_m": {"int64_param": 5}}),
    "infer with a bad deadline": _infer(parameters={"deadline_ms": {"int64_param": -5}}),
    "another method": ("TraceSetting", messages.TraceSettingRequest(model_name="digits")),
}
"""Name -> method and message, in the order in which one server gets them."""


def secured(folder: Path) -> dict[str, dict[str, str]]:
    """Ask a server that has a certificate; the chapters of gRPC and of TLS."""
    _certify(folder)
    options = ("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--grpc-port", "0")
    with serving(folder, "served.yaml", *options, grpc=True) as said:
        trusted = (folder / "cert.pem").read_bytes()
        over_tls = ssl.create_default_context(cadata=trusted.decode())
        get = {name: Exchange(_GET % name.encode()) for name in ("/v2", "/v2/health/ready")}
        return {
            "grpc": _called(said, trusted, folder),
            "tls": {
                f"GET {name}": told(one, said["http_port"], folder, over_tls)
                for name, one in get.items()
            },
        }


def _called(said: Mapping[str, Any], trusted: bytes, folder: Path) -> dict[str, str]:
    credentials = grpc.ssl_channel_credentials(trusted)
    found = {}
    with grpc.secure_channel(f"127.0.0.1:{said['grpc_port']}", credentials) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for name, (method, message) in CALLS.items():
            try:
                answer = getattr(stub, method)(message, timeout=PATIENCE_S)
                text = _json(answer)
            except grpc.RpcError as error:
                text = f"{error.code().name}: {error.details()}\n"  # type: ignore[attr-defined]
            asked = f"{method} {_json(message)}--- answer\n{text}"
            found[name] = plain(_MADE.sub("{made}", asked), folder)
    return found


def _json(message: Any) -> str:
    said = MessageToDict(message, preserving_proto_field_name=True)
    for key in _MEASURED.intersection(said.get("parameters", ())):
        said["parameters"][key] = "{measured}"
    return json.dumps(said, indent=1, sort_keys=True) + "\n"


def _certify(folder: Path) -> None:
    """Make a certificate of its own for this machine."""
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem"]
    words += ["-out", "cert.pem", "-days", "2", "-subj", "/CN=here"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    (folder / "key.pem").chmod(0o600)
