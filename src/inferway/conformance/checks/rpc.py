"""The same over gRPC: `inference.GRPCInferenceService`, and gRPC's own health protocol."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from inferway.conformance.answer import reference, same
from inferway.conformance.channel import FIELDS, Channel, StatusError, infer, request
from inferway.conformance.checks.health import NOBODY
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.message import Message
from inferway.conformance.outcome import Check
from inferway.conformance.target import Target
from inferway.conformance.tensors import draw
from inferway.live.grpc import messages

# The server is lost, or failed itself: none of them refuses a request.
_NO_REFUSAL: Final = (
    "OK", "CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"
)  # fmt: skip
SERVING: Final = 1


def live(target: Target) -> str:
    """ServerLive says that it lives."""
    with _channel(target) as channel:
        if not channel.good("ServerLive", b"", messages.ServerLiveResponse).live:
            raise ViolationError("ServerLive says that it does not live")
    return "live"


def ready(target: Target) -> str:
    """ServerReady says that it is ready."""
    with _channel(target) as channel:
        if not channel.good("ServerReady", b"", messages.ServerReadyResponse).ready:
            raise ViolationError("ServerReady says that it is not ready")
    return "ready"


def model_ready(target: Target) -> str:
    """The model is ready, one that does not exist is not."""
    with _channel(target) as channel:
        try:
            own = _model_ready(channel, target.task)
        except StatusError as error:
            raise ViolationError(f"{error}; expected OK") from None
        if not own:
            raise ViolationError(f"ModelReady says that {target.task!r} is not ready")
        try:
            nobody = _model_ready(channel, NOBODY)
        except StatusError as error:
            return f"ready; an unknown model: {_refusal(error)}"
    if nobody:
        raise ViolationError("ModelReady calls a model ready that does not exist")
    return "ready; an unknown model is not"


def server(target: Target) -> str:
    """ServerMetadata agrees with HTTP's."""
    with _channel(target) as channel:
        found = channel.good("ServerMetadata", b"", messages.ServerMetadataResponse)
    said = target.get("/v2").json
    if (found.name, found.version) != (said.get("name"), said.get("version")):
        raise ViolationError(f"{found.name!r} {found.version!r} over gRPC, HTTP says {said}")
    return f"{found.name} {found.version}, extensions: {', '.join(found.extensions) or 'none'}"


def model(target: Target) -> str:
    """ModelMetadata agrees with HTTP's."""
    with _channel(target) as channel:
        asked = messages.ModelMetadataRequest(name=target.task).SerializeToString()
        found = channel.good("ModelMetadata", asked, messages.ModelMetadataResponse)
    for side in ("inputs", "outputs"):
        over = [(one.name, one.datatype, tuple(one.shape)) for one in getattr(found, side)]
        own = [(one.name, one.datatype, one.shape) for one in getattr(target.signature, side)]
        if over != own:
            raise ViolationError(f"the {side} over gRPC are {over}, over HTTP {own}")
    if list(found.versions) != target.versions:
        raise ViolationError(f"the versions are {list(found.versions)}, HTTP's {target.versions}")
    return "the same as over HTTP"


def typed(target: Target) -> str:
    """Typed contents are taken."""
    odd = [one.datatype for one in target.signature.inputs if one.datatype not in FIELDS]
    if odd:
        raise NotOfferedError(f"{odd[0]} has no field of its own, raw contents hold it")
    return _compared(target, target.message())


def raw(target: Target) -> str:
    """Raw contents are taken."""
    return _compared(target, target.message().raw())


def identifier(target: Target) -> str:
    """The id comes back."""
    with _channel(target) as channel:
        infer(target, channel, target.message().raw().having(id="42"))
    return "'42' came back"


def outputs(target: Target) -> str:
    """Each output can be asked for alone."""
    with _channel(target) as channel:
        for one in target.signature.outputs:
            infer(target, channel, target.message().raw().having(outputs=[{"name": one.name}]))
    return f"{len(target.signature.outputs)} outputs, each asked for alone, came alone"


def versions(target: Target) -> str:
    """A version that is asked for answers."""
    if not target.versions:
        raise NotOfferedError("the model's metadata name no versions")
    with _channel(target) as channel:
        for one in target.versions:
            infer(target, channel, target.message().raw(), one)
    return f"answered by {', '.join(target.versions[:8])}"


def _without_first(target: Target, sent: Any) -> None:
    del sent.inputs[0], sent.raw_input_contents[0]


def _other_shape(target: Target, sent: Any) -> None:
    one = target.signature.inputs[0]
    shape = [*sent.inputs[0].shape, 2]
    array = draw(np.random.default_rng(target.seed), one.datatype, tuple(shape))
    sent.CopyFrom(request(target, target.message().raw().first(array=array)))


def _truncated(target: Target, sent: Any) -> None:
    sent.raw_input_contents[0] = sent.raw_input_contents[0][:-1]


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
"""What is wrong with a request, and how a right one comes to it."""


def health(target: Target) -> str:
    """The server is healthy in the words of gRPC's own health protocol."""
    with _channel(target) as channel:
        try:
            found = channel.call("Check", b"", messages.HealthCheckResponse, messages.HEALTH)
        except StatusError as error:
            if error.code == "UNIMPLEMENTED":
                raise NotOfferedError(str(error)) from None
            raise ViolationError(f"{error}; expected OK") from None
    if found.status != SERVING:
        raise ViolationError(f"the status is {found.status}, expected {SERVING} (SERVING)")
    return "SERVING"


def alive(target: Target) -> str:
    """After all that the server answers."""
    with _channel(target) as channel:
        infer(target, channel, target.message().raw())
    return "a right request was answered"


def _channel(target: Target) -> Channel:
    assert target.grpc_url is not None
    return Channel(target.grpc_url, target.timeout_s, target.key)


def _model_ready(channel: Channel, name: str) -> bool:
    asked = messages.ModelReadyRequest(name=name).SerializeToString()
    return bool(channel.call("ModelReady", asked, messages.ModelReadyResponse).ready)


def _compared(target: Target, message: Message) -> str:
    version = target.versions[0] if target.versions else ""
    plain = reference(target, message)
    with _channel(target) as channel:
        found = infer(target, channel, message, version)
    if plain is None:
        return "answered in shape and datatype"
    same(found, plain)
    return "answered as the same values in flat JSON over HTTP"


def _refused(target: Target, change: Callable[[Target, Any], Any]) -> str:
    with _channel(target) as channel:
        infer(target, channel, target.message().raw())  # right, so that the change is what counts
        sent = request(target, target.message().raw())
        change(target, sent)
        try:
            channel.call("ModelInfer", sent.SerializeToString(), messages.ModelInferResponse)
        except StatusError as error:
            return _refusal(error)
    raise ViolationError("the call ended with OK, expected an error")


def _refusal(error: StatusError) -> str:
    if error.code in _NO_REFUSAL:
        raise ViolationError(f"{error}; expected the request to be refused") from None
    return str(error)


_CLAUSE: Final = "inference_grpc.md"
_STATUS: Final = (
    "Errors are indicated by the status, and the protocol does not say by which. As over HTTP a "
    "client's mistake must not look like the server's: any status passes but OK, CANCELLED, "
    "UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS."
)

CHECKS: Final = (
    Check("grpc: live", f"{_CLAUSE}, ServerLive", live),
    Check("grpc: ready", f"{_CLAUSE}, ServerReady", ready),
    Check("grpc: model ready", f"{_CLAUSE}, ModelReady", model_ready, _STATUS),
    Check("grpc: server metadata", f"{_CLAUSE}, ServerMetadata", server),
    Check("grpc: model metadata", f"{_CLAUSE}, ModelMetadata", model),
    Check("grpc: typed contents", f"{_CLAUSE}, ModelInfer", typed),
    Check("grpc: raw contents", f"{_CLAUSE}, ModelInfer", raw),
    Check("grpc: id comes back", f"{_CLAUSE}, ModelInfer", identifier),
    Check("grpc: requested outputs", f"{_CLAUSE}, ModelInfer", outputs),
    Check("grpc: each version", f"{_CLAUSE}, ModelInfer", versions),
    *(
        Check(
            f"grpc: {what} {'are' if what.endswith('contents') else 'is'} refused",
            f"{_CLAUSE}, ModelInfer",
            partial(_refused, change=change),
            _STATUS,
        )
        for what, change in _REFUSED
    ),
    Check("grpc: health protocol", "grpc.health.v1, Check", health),
    Check("grpc: the server goes on", f"{_CLAUSE}, ModelInfer", alive),
)
