"""Calls over gRPC to the server under test, each with an end."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import numpy as np
from google.protobuf.message import DecodeError

from inferway.conformance.answer import Inference
from inferway.conformance.client import Answer
from inferway.conformance.errors import ViolationError
from inferway.conformance.message import Message
from inferway.conformance.target import ConformanceError, Target
from inferway.conformance.tensors import Array, from_raw, to_raw
from inferway.live.grpc import messages
from inferway.protocol import Tensor

FIELDS: Final = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Where the elements of each datatype are; FP16 has no field."""


class StatusError(Exception):
    """A call ended with a status other than OK."""

    def __init__(self, method: str, code: str, details: str) -> None:
        super().__init__(f"{method} ended with {code}: {details[:160]}")
        self.code = code


class Channel:
    """One connection for calls over gRPC.

    Parameters
    ----------
    url
        `host:port`, or `grpc://host:port`; `grpcs://` for TLS.
    timeout_s
        Longest wait of one call, in seconds.
    key
        Sent with every call, if the server asks for one.
    """

    def __init__(self, url: str, timeout_s: float, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"grpc://{url}")
        try:
            known = parts.hostname and parts.port
        except ValueError:
            known = None
        if not known or parts.scheme not in ("grpc", "grpcs", "http", "https"):
            raise ConformanceError(f"{url!r} is no gRPC address: write it as 127.0.0.1:8001")
        self._timeout_s = timeout_s
        self._metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        # No proxy is asked, as over HTTP.
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
        if parts.scheme in ("grpcs", "https"):
            secret = grpc.ssl_channel_credentials()
            self._channel = grpc.secure_channel(parts.netloc, secret, options)
        else:
            self._channel = grpc.insecure_channel(parts.netloc, options)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(
        self, method: str, request: bytes, kind: Any, service: str = messages.INFERENCE
    ) -> Any:
        """Call once.

        Parameters
        ----------
        method, service
            Names as the protocol has them.
        request
            The encoded message.
        kind
            Class of the answer.

        Raises
        ------
        StatusError
            When the call ends with another status than OK.
        ViolationError
            When what comes is no such message.
        """
        call = self._channel.unary_unary(f"/{service}/{method}")
        try:
            found = call(request, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise StatusError(method, error.code().name, error.details() or "") from None
        try:
            return kind.FromString(found)
        except DecodeError:
            raise ViolationError(
                f"{method} answered with what is no {kind.DESCRIPTOR.name}"
            ) from None

    def good(self, *call: Any) -> Any:
        """Call once; any other status than OK is a violation."""
        try:
            return self.call(*call)
        except StatusError as error:
            raise ViolationError(f"{error}; expected OK") from None


def request(target: Target, message: Message, version: str = "") -> Any:
    """Write a request: raw contents for all inputs if the first is raw, typed ones if not."""
    found = messages.ModelInferRequest(
        model_name=target.task, model_version=version, id=message.fields.get("id", "")
    )
    raw = any(one.raw for one in message.inputs)
    for one in message.inputs:
        given = found.inputs.add(name=one.name, datatype=one.datatype, shape=one.array.shape)
        if raw:
            found.raw_input_contents.append(to_raw(one.array))
        else:
            field = FIELDS.get(one.datatype, "fp32_contents")
            getattr(given.contents, field).extend(one.array.ravel().tolist())
    for wanted in message.fields.get("outputs", ()):
        found.outputs.add(name=wanted["name"])
    return found


def infer(target: Target, channel: Channel, message: Message, version: str = "") -> Inference:
    """Send a request that is right, and read its answer.

    Raises
    ------
    ViolationError
        When the answer is not one that the protocol and the model's metadata allow.
    """
    sent = request(target, message, version)
    answer = channel.good("ModelInfer", sent.SerializeToString(), messages.ModelInferResponse)
    if answer.model_name != target.task:
        raise ViolationError(f"model_name is {answer.model_name!r}, expected {target.task!r}")
    if sent.id and answer.id != sent.id:
        raise ViolationError(f"id is {answer.id!r}, the request's was {sent.id!r}")
    if version and answer.model_version != version:
        raise ViolationError(
            f"version {version!r} was asked for, model_version is {answer.model_version!r}"
        )
    outputs = {one.name: _output(target, answer, place) for place, one in enumerate(answer.outputs)}
    expected = [one.name for one in sent.outputs]
    expected = expected or [tensor.name for tensor in target.signature.outputs]
    if sorted(outputs) != sorted(expected):
        raise ViolationError(f"the outputs are {sorted(outputs)}, expected {sorted(expected)}")
    document = {"model_version": answer.model_version}
    raw = frozenset(outputs) if answer.raw_output_contents else frozenset()
    return Inference(Answer("ModelInfer", 200, {}, b"", False), document, outputs, raw)


def _output(target: Target, answer: Any, place: int) -> Array:
    one, raw = answer.outputs[place], answer.raw_output_contents
    tensor = next((t for t in target.signature.outputs if t.name == one.name), None)
    if tensor is None or tensor.datatype != one.datatype:
        raise ViolationError(f"output {one.name!r} of {one.datatype} is not in the metadata")
    shape = tuple(one.shape)
    fits = len(shape) == len(tensor.shape) and all(
        want in (-1, have) for have, want in zip(shape, tensor.shape, strict=False)
    )
    if not fits:
        raise ViolationError(
            f"output {one.name!r} has shape {list(shape)}, the metadata say {list(tensor.shape)}"
        )
    if raw:
        if len(raw) != len(answer.outputs):
            raise ViolationError(f"{len(answer.outputs)} outputs have {len(raw)} raw contents")
        return from_raw(tensor, shape, raw[place])
    return _typed(tensor, shape, one.contents)


def _typed(tensor: Tensor, shape: tuple[int, ...], contents: Any) -> Array:
    field = FIELDS.get(tensor.datatype)
    if field is None:
        raise ViolationError(
            f"output {tensor.name!r} is {tensor.datatype}, which needs raw contents"
        )
    values = list(getattr(contents, field))
    if len(values) != int(np.prod(shape)):
        raise ViolationError(
            f"output {tensor.name!r} has {len(values)} elements in {field}, its shape {list(shape)}"
        )
    array = np.empty(len(values), tensor.dtype)
    array[:] = values
    return array.reshape(shape)
