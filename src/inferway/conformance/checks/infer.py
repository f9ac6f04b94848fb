"""Inference with JSON tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from inferway.conformance.answer import Inference, answered, compared, read, reference
from inferway.conformance.client import expect
from inferway.conformance.report import Check
from inferway.conformance.target import Target
from inferway.conformance.tensors import Message, packed

_PARAMETERS: Final = {"conformance_text": "a", "conformance_number": 1, "conformance_flag": True}


def _flat(target: Target) -> str:
    message = target.message()
    inference = answered(target, message, target.pinned)
    return f"{compared(inference, reference(target, message))}, {inference.size} bytes"


def _nested(target: Target) -> str:
    """Data nested as their shape are taken, and mean the same."""
    message = replace(target.message(), nested=True)
    return compared(answered(target, message, target.pinned), reference(target, message))


def _unversioned(target: Target) -> str:
    target.needs_unversioned()
    version = answered(target, target.message(), target.unversioned).version
    return "answered" if version is None else f"answered by version {version!r}"


def _versioned(target: Target) -> str:
    """A version that is asked for answers, and says so."""
    for one in target.offered_versions:
        version = answered(target, target.message(), target.versioned(one)).version
        expect(version == one, f"version {one!r} was asked for, model_version is {version!r}")
    return f"answered by {', '.join(target.versions[:8])}"


def _identifier(identifier: str) -> Callable[[Target], str]:
    def run(target: Target) -> str:
        answered(target, target.message().having(id=identifier))
        return f"{identifier!r} came back"

    return run


def _parameters(target: Target) -> str:
    """Parameters of the request, of inputs and of outputs may be there."""
    outputs = [{"name": one.name, "parameters": _PARAMETERS} for one in target.signature.outputs]
    message = target.message().having(parameters=_PARAMETERS, outputs=outputs)
    document = message.document
    for one in document["inputs"]:
        one["parameters"] = _PARAMETERS
    read(target, target.post(*packed(document)), message)
    return "text, number and boolean were taken at all three places"


def outputs_alone(target: Target, infer: Callable[[Target, Message], Inference] = answered) -> str:
    """Ask for each output alone."""
    outputs = target.signature.outputs
    for one in outputs:
        infer(target, target.message().having(outputs=[{"name": one.name}]))
    return f"{len(outputs)} outputs, each asked for alone, came alone"


def _no_content_type(target: Target) -> str:
    body, _ = target.message().encode()
    target.post(body, {}).good("expected 200 without a Content-Type too")
    return "answered"


CHECKS: Final = (
    Check("infer: flat data", "inference_rest.md, Request Input", _flat),
    Check(
        "infer: nested data",
        "open_inference_rest.yaml, tensor_data",
        _nested,
        "tensor_data holds elements or tensor_data: lists may be nested to the shape.",
    ),
    Check(
        "infer: without a version",
        "inference_rest.md, Inference",
        _unversioned,
        "The Markdown allows an error instead, on servers that have versions.",
    ),
    Check(
        "infer: each version",
        "inference_rest.md, Inference; open_inference_rest.yaml, .../infer",
        _versioned,
        "model_version is the specific version used, so it is the one that was asked for.",
    ),
    Check(
        "infer: id comes back",
        "inference_rest.md, Inference Request JSON Object",
        _identifier("42"),
    ),
    Check(
        "infer: any text as id",
        "inference_rest.md, Inference Request JSON Object",
        _identifier('conformance "\\" é ☃'),
        "The id is a JSON string, and those hold any characters.",
    ),
    Check(
        "infer: parameters",
        "open_inference_rest.yaml, parameters",
        _parameters,
        "Parameters are any names with texts, numbers or booleans: a server may ignore those that "
        "it does not know, not refuse them.",
    ),
    Check("infer: requested outputs", "inference_rest.md, Request Output", outputs_alone),
    Check(
        "infer: no Content-Type",
        "inference_rest.md, Inference; RFC 9110, 8.3",
        _no_content_type,
        "No document asks for the header, and Triton's client sends none.",
    ),
)
