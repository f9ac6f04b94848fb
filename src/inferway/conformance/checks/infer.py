"""Inference with JSON tensors."""

from __future__ import annotations

from typing import Final

from inferway.conformance.answer import answered, compared, read
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.message import packed
from inferway.conformance.outcome import Check
from inferway.conformance.target import Target

_PARAMETERS: Final = {"conformance_text": "a", "conformance_number": 1, "conformance_flag": True}


def flat(target: Target) -> str:
    """Flat data are taken."""
    inference, found = compared(target, target.message())
    return f"{found}, {len(inference.answer.body)} bytes"


def nested(target: Target) -> str:
    """Data nested as their shape are taken, and mean the same."""
    message = target.message()
    _, found = compared(target, type(message)(message.inputs, nested=True))
    return found


def unversioned(target: Target) -> str:
    """The path without a version is answered."""
    if target.base != target.unversioned:
        raise NotOfferedError(f"{target.get(target.unversioned)}; versions are asked for")
    version = answered(target, target.message(), base=target.unversioned).document.get(
        "model_version"
    )
    return "answered" if version is None else f"answered by version {version!r}"


def versioned(target: Target) -> str:
    """A version that is asked for answers, and says so."""
    if not target.versions:
        raise NotOfferedError("the model's metadata name no versions")
    for one in target.versions:
        inference = answered(target, target.message(), base=target.versioned(one))
        said = inference.document.get("model_version")
        if said != one:
            raise ViolationError(f"version {one!r} was asked for, model_version is {said!r}")
    return f"answered by {', '.join(target.versions[:8])}"


def identifier(target: Target) -> str:
    """The id comes back as it was."""
    answered(target, target.message().having(id="42"))
    return "'42' came back"


def any_identifier(target: Target) -> str:
    """Any text may be an id."""
    odd = 'conformance "\\" é ☃'
    answered(target, target.message().having(id=odd))
    return f"{odd!r} came back"


def parameters(target: Target) -> str:
    """Parameters of the request, of inputs and of outputs may be there."""
    outputs = [{"name": one.name, "parameters": _PARAMETERS} for one in target.signature.outputs]
    message = target.message().having(parameters=_PARAMETERS, outputs=outputs)
    document = message.document
    for one in document["inputs"]:
        one["parameters"] = _PARAMETERS
    answer = target.post(*packed(document))
    read(target, answer, message)
    return "text, number and boolean were taken at all three places"


def outputs(target: Target) -> str:
    """Each output can be asked for alone."""
    for one in target.signature.outputs:
        answered(target, target.message().having(outputs=[{"name": one.name}]))
    return f"{len(target.signature.outputs)} outputs, each asked for alone, came alone"


def no_content_type(target: Target) -> str:
    """A request needs no Content-Type."""
    message = target.message()
    body, _ = message.encode()
    answer = target.post(body, {})
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200 without a Content-Type too")
    return "answered"


CHECKS: Final = (
    Check("infer: flat data", "inference_rest.md, Request Input", flat),
    Check(
        "infer: nested data",
        "open_inference_rest.yaml, tensor_data",
        nested,
        "tensor_data holds elements or tensor_data: lists may be nested to the shape.",
    ),
    Check(
        "infer: without a version",
        "inference_rest.md, Inference",
        unversioned,
        "The Markdown allows an error instead, on servers that have versions.",
    ),
    Check(
        "infer: each version",
        "inference_rest.md, Inference; open_inference_rest.yaml, .../infer",
        versioned,
        "model_version is the specific version used, so it is the one that was asked for.",
    ),
    Check("infer: id comes back", "inference_rest.md, Inference Request JSON Object", identifier),
    Check(
        "infer: any text as id",
        "inference_rest.md, Inference Request JSON Object",
        any_identifier,
        "The id is a JSON string, and those hold any characters.",
    ),
    Check(
        "infer: parameters",
        "open_inference_rest.yaml, parameters",
        parameters,
        "Parameters are any names with texts, numbers or booleans: a server may ignore those that "
        "it does not know, not refuse them.",
    ),
    Check("infer: requested outputs", "inference_rest.md, Request Output", outputs),
    Check(
        "infer: no Content-Type",
        "inference_rest.md, Inference; RFC 9110, 8.3",
        no_content_type,
        "No document asks for the header, and Triton's client sends none.",
    ),
)
