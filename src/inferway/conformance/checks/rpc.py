"""The same over gRPC: `inference.GRPCInferenceService`, and gRPC's own health protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from inferway.conformance.checks.infer import outputs_alone
from inferway.conformance.checks.metadata import (
    CONFIGURATION,
    NOBODY,
    STATISTICS,
    configures,
    counted,
    grows,
)
from inferway.conformance.client import NotOfferedError, ViolationError, expect
from inferway.conformance.report import Check
from inferway.conformance.target import (
    ConformanceError,
    Inference,
    Target,
    agree,
    compared,
    complete,
    described,
    reference,
)
from inferway.conformance.tensors import Array, Message, draw, from_raw, to_raw
from inferway.live.grpc import messages
from inferway.protocol import Tensor

FIELDS: Final = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Where the elements of each datatype are; FP16 has no field."""

# The server is lost, or failed itself: none of them refuses a request.
_NO_REFUSAL: Final = (
    "OK", "CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"
)  # fmt: skip
SERVING: Final = 1


class _StatusError(ViolationError):
    def __init__(self, method: str, code: str, details: str) -> None:
        self.reason = f"{method} ended with {code}: {details[:160]}"
        super().__init__(f"{self.reason}; expected OK")
        self.code = code

    @property
    def refusal(self) -> str:
        """The evidence that the request was refused; a violation if the server failed."""
        expect(self.code not in _NO_REFUSAL, f"{self.reason}; expected the request to be refused")
        return self.reason


def channel(url: str) -> grpc.Channel:
    """Connect to `host:port`, or `grpc://host:port`; `grpcs://` for TLS.

    ConformanceError when it is no address.
    """
    parts = urlsplit(url if "://" in url else f"grpc://{url}")
    try:
        complete = parts.hostname and parts.port
    except ValueError:
        complete = None
    if not complete or parts.scheme not in ("grpc", "grpcs", "http", "https"):
        raise ConformanceError(f"{url!r} is no gRPC address: write it as 127.0.0.1:8001")
    # No proxy is asked, as over HTTP.
    options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", -1)]
    if parts.scheme in ("grpcs", "https"):
        return grpc.secure_channel(parts.netloc, grpc.ssl_channel_credentials(), options)
    return grpc.insecure_channel(parts.netloc, options)


def _call(
    target: Target, method: str, request: Any = None, service: str = messages.INFERENCE
) -> Any:
    """Call once; a violation when the call ends without OK, or what comes is no such message."""
    kind = getattr(messages, f"{'HealthCheck' if method == 'Check' else method}Response")
    assert target.grpc_url is not None
    metadata = () if target.key is None else (("authorization", f"Bearer {target.key}"),)
    data = b"" if request is None else request.SerializeToString()
    with channel(target.grpc_url) as connection:
        call = connection.unary_unary(f"/{service}/{method}")
        try:
            return kind.FromString(call(data, timeout=target.timeout_s, metadata=metadata))
        except grpc.RpcError as error:
            raise _StatusError(method, error.code().name, error.details() or "") from None
        except DecodeError:
            raise ViolationError(
                f"{method} answered with what is no {kind.DESCRIPTOR.name}"
            ) from None


def _request(target: Target, message: Message, version: str = "") -> Any:
    """Write a request: raw contents for all inputs if the first is raw, typed ones if not."""
    request = messages.ModelInferRequest(
        model_name=target.task, model_version=version, id=message.fields.get("id", "")
    )
    for one in message.inputs:
        tensor = request.inputs.add(name=one.name, datatype=one.datatype, shape=one.array.shape)
        if one.raw:
            request.raw_input_contents.append(to_raw(one.array))
        else:
            field = FIELDS.get(one.datatype, "fp32_contents")
            getattr(tensor.contents, field).extend(one.array.ravel().tolist())
    for wanted in message.fields.get("outputs", ()):
        request.outputs.add(name=wanted["name"])
    return request


def _infer(target: Target, message: Message, version: str = "") -> Inference:
    answer = _call(target, "ModelInfer", _request(target, message, version))
    agree("model_name", answer.model_name, target.task)
    if sent := message.fields.get("id"):
        expect(answer.id == sent, f"id is {answer.id!r}, the request's was {sent!r}")
    expect(
        not version or answer.model_version == version,
        f"version {version!r} was asked for, model_version is {answer.model_version!r}",
    )
    raw = answer.raw_output_contents
    expect(
        not raw or len(raw) == len(answer.outputs),
        f"{len(answer.outputs)} outputs have {len(raw)} raw contents",
    )
    outputs = {}
    for place, one in enumerate(answer.outputs):
        shape = tuple(one.shape)
        tensor = described(target, one.name, one.datatype, list(shape))
        outputs[one.name] = (
            from_raw(tensor, shape, raw[place]) if raw else _typed(tensor, shape, one.contents)
        )
    complete(target, outputs, message)
    return Inference(answer.model_version, outputs)


def _typed(tensor: Tensor, shape: tuple[int, ...], contents: Any) -> Array:
    field = FIELDS.get(tensor.datatype)
    expect(field, f"output {tensor.name!r} is {tensor.datatype}, which needs raw contents")
    values = list(getattr(contents, field or ""))
    expect(
        len(values) == int(np.prod(shape)),
        f"output {tensor.name!r} has {len(values)} elements in {field}, its shape {list(shape)}",
    )
    array = np.empty(len(values), tensor.dtype)
    array[:] = values
    return array.reshape(shape)


def _server_is(target: Target, state: str, otherwise: str) -> str:
    method = f"Server{state.capitalize()}"
    expect(getattr(_call(target, method), state), f"{method} says that it {otherwise}")
    return state


def _model_ready(target: Target) -> str:
    def ready(name: str) -> bool:
        return bool(_call(target, "ModelReady", messages.ModelReadyRequest(name=name)).ready)

    expect(ready(target.task), f"ModelReady says that {target.task!r} is not ready")
    try:
        expect(not ready(NOBODY), "ModelReady calls a model ready that does not exist")
    except _StatusError as error:
        return f"ready; an unknown model: {error.refusal}"
    return "ready; an unknown model is not"


def _server(target: Target) -> str:
    found, said = _call(target, "ServerMetadata"), target.get("/v2").json
    expect(
        (found.name, found.version) == (said.get("name"), said.get("version")),
        f"{found.name!r} {found.version!r} over gRPC, HTTP says {said}",
    )
    return f"{found.name} {found.version}, extensions: {', '.join(found.extensions) or 'none'}"


def _model(target: Target) -> str:
    found = _call(target, "ModelMetadata", messages.ModelMetadataRequest(name=target.task))
    for side in ("inputs", "outputs"):
        over = [(one.name, one.datatype, tuple(one.shape)) for one in getattr(found, side)]
        http = [(one.name, one.datatype, one.shape) for one in getattr(target.signature, side)]
        expect(over == http, f"the {side} over gRPC are {over}, over HTTP {http}")
    versions = list(found.versions)
    expect(versions == target.versions, f"the versions are {versions}, HTTP's {target.versions}")
    return "the same as over HTTP"


def _offered(target: Target, extension: str) -> None:
    listed = _call(target, "ServerMetadata").extensions
    if extension not in listed:
        raise NotOfferedError(f"the extensions of ServerMetadata lack {extension!r}")


def _configured(target: Target) -> str:
    _offered(target, CONFIGURATION)
    for version in ("", *target.versions):
        asked = messages.ModelConfigRequest(name=target.task, version=version)
        config = _call(target, "ModelConfig", asked).config
        kinds = config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
        found: dict[str, Any] = {"name": config.name, "max_batch_size": config.max_batch_size}
        for side in ("input", "output"):
            found[side] = [
                {
                    "name": one.name,
                    "data_type": getattr(kinds.get(one.data_type), "name", one.data_type),
                    "dims": list(one.dims),
                }
                for one in getattr(config, side)
            ]
        configures(target, found)
    try:
        _call(target, "ModelConfig", messages.ModelConfigRequest(name=NOBODY))
    except _StatusError as error:
        return f"agrees with the metadata; an unknown model: {error.refusal}"
    raise ViolationError("ModelConfig tells of a model that does not exist")


def _statistics(target: Target) -> str:
    _offered(target, STATISTICS)

    def tell(version: str = "") -> Any:
        asked = messages.ModelStatisticsRequest(name=target.task, version=version)
        told = _call(target, "ModelStatistics", asked)
        # As HTTP tells them: JSON has 64-bit numbers as texts.
        options = {
            "preserving_proto_field_name": True,
            "always_print_fields_with_no_presence": True,
        }
        return _numbers(MessageToDict(told, **options))

    try:
        for version in target.versions:
            counted(tell(version), target.task, version)
    except _StatusError as error:
        if error.code in ("PERMISSION_DENIED", "UNAUTHENTICATED"):
            raise NotOfferedError(f"{error.reason}; the key does not open them") from None
        raise
    return grows(target, tell)


def _numbers(found: Any) -> Any:
    """Read the texts that are numbers in statistics; names and versions stay."""
    if isinstance(found, list):
        return [_numbers(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {
        key: int(one) if isinstance(one, str) and key not in ("name", "version") else _numbers(one)
        for key, one in found.items()
    }


def _contents(target: Target, *, raw: bool) -> str:
    for one in () if raw else target.signature.inputs:
        if one.datatype not in FIELDS:
            raise NotOfferedError(f"{one.datatype} has no field of its own, raw contents hold it")
    message = target.message().raw(raw=raw)
    plain = reference(target, message)
    evidence = compared(_infer(target, message, *target.versions[:1]), plain)
    return evidence if plain is None else f"{evidence} over HTTP"


def _identifier(target: Target) -> str:
    _infer(target, target.message().raw().having(id="42"))
    return "'42' came back"


def _versions(target: Target) -> str:
    for one in target.offered_versions:
        _infer(target, target.message().raw(), one)
    return f"answered by {', '.join(target.versions[:8])}"


def _health(target: Target) -> str:
    try:
        status = _call(target, "Check", service=messages.HEALTH).status
    except _StatusError as error:
        if error.code == "UNIMPLEMENTED":
            raise NotOfferedError(error.reason) from None
        raise
    expect(status == SERVING, f"the status is {status}, expected {SERVING} (SERVING)")
    return "SERVING"


def _alive(target: Target) -> str:
    _infer(target, target.message().raw())
    return "a right request was answered"


def _refused(target: Target, change: Callable[[Target, Any], Any]) -> str:
    _infer(target, target.message().raw())  # right, so that the change is what counts
    request = _request(target, target.message().raw())
    change(target, request)
    try:
        _call(target, "ModelInfer", request)
    except _StatusError as error:
        return error.refusal
    raise ViolationError("the call ended with OK, expected an error")


def _without_first(target: Target, request: Any) -> None:
    del request.inputs[0], request.raw_input_contents[0]


def _other_shape(target: Target, request: Any) -> None:
    shape = (*request.inputs[0].shape, 2)
    array = draw(np.random.default_rng(target.seed), request.inputs[0].datatype, shape)
    request.CopyFrom(_request(target, target.message().raw().first(array=array)))


def _truncated(target: Target, request: Any) -> None:
    request.raw_input_contents[0] = request.raw_input_contents[0][:-1]


# Mistakes, and how a right request comes to have them.
_REFUSED: Final[tuple[tuple[str, Callable[[Target, Any], Any]], ...]] = (
    ("an unknown model", lambda target, sent: setattr(sent, "model_name", NOBODY)),
    ("an unknown version", lambda target, sent: setattr(sent, "model_version", NOBODY)),
    ("a missing input", _without_first),
    ("an unknown input", lambda target, sent: setattr(sent.inputs[0], "name", NOBODY)),
    ("an unknown datatype", lambda target, sent: setattr(sent.inputs[0], "datatype", "FP33")),
    ("another shape", _other_shape),
    ("truncated data", _truncated),
    ("surplus contents", lambda target, sent: sent.raw_input_contents.append(b"\0")),
    ("an unknown output", lambda target, sent: sent.outputs.add(name=NOBODY)),
)

_CLAUSE: Final = "inference_grpc.md"
_INFER: Final = f"{_CLAUSE}, ModelInfer"
_STATUS: Final = (
    "Errors are indicated by the status, and the protocol does not say by which. As over HTTP a "
    "client's mistake must not look like the server's: any status passes but OK, CANCELLED, "
    "UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS."
)

CHECKS: Final = (
    *(
        Check(f"grpc: {state}", f"{_CLAUSE}, Server{state.capitalize()}", check)
        for state, check in (
            ("live", partial(_server_is, state="live", otherwise="does not live")),
            ("ready", partial(_server_is, state="ready", otherwise="is not ready")),
        )
    ),
    Check("grpc: model ready", f"{_CLAUSE}, ModelReady", _model_ready, _STATUS),
    Check("grpc: server metadata", f"{_CLAUSE}, ServerMetadata", _server),
    Check("grpc: model metadata", f"{_CLAUSE}, ModelMetadata", _model),
    Check("grpc: model configuration", "extension_model_configuration.md", _configured),
    Check("grpc: statistics", "extension_statistics.md", _statistics),
    Check("grpc: typed contents", _INFER, partial(_contents, raw=False)),
    Check("grpc: raw contents", _INFER, partial(_contents, raw=True)),
    Check("grpc: id comes back", _INFER, _identifier),
    Check(
        "grpc: requested outputs",
        _INFER,
        partial(outputs_alone, infer=lambda target, message: _infer(target, message.raw())),
    ),
    Check("grpc: each version", _INFER, _versions),
    *(
        Check(
            f"grpc: {what} {'are' if what.endswith('contents') else 'is'} refused",
            _INFER,
            partial(_refused, change=change),
            _STATUS,
        )
        for what, change in _REFUSED
    ),
    Check("grpc: health protocol", "grpc.health.v1, Check", _health),
    Check("grpc: the server goes on", _INFER, _alive),
)
