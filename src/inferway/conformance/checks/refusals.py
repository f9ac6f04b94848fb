"""Requests that are wrong: refused with 4xx and `{"error": "<why>"}`, and the server goes on."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from inferway.conformance.checks.health import NOBODY
from inferway.conformance.checks.metadata import refused
from inferway.conformance.errors import ViolationError
from inferway.conformance.message import Message, packed
from inferway.conformance.outcome import Check
from inferway.conformance.target import Target
from inferway.conformance.tensors import draw

_JSON: Final = {"Content-Type": "application/json"}


def malformed(target: Target) -> str:
    """Text that is not JSON is refused."""
    body, headers = target.answered().encode()
    for broken in (body[:-1], b"{", b"\xff\xfe", b""):
        evidence = refused(target.post(broken, headers))
    return evidence


def other_json(target: Target) -> str:
    """JSON that is no request is refused."""
    target.answered()
    kinds: tuple[Any, ...] = ([], "text", 1, None, {}, {"inputs": {}}, {"inputs": [1]})
    for wrong in kinds:
        evidence = refused(target.post(*packed(wrong)))
    return evidence


def unknown_model(target: Target) -> str:
    """An unknown model is refused."""
    return refused(target.infer(target.answered(), f"/v2/models/{NOBODY}"))


def unknown_version(target: Target) -> str:
    """An unknown version is refused."""
    return refused(target.infer(target.answered(), target.versioned(NOBODY)))


def missing(target: Target) -> str:
    """A request that lacks an input is refused."""
    return refused(target.infer(Message(target.answered().inputs[1:])))


def unknown_input(target: Target) -> str:
    """An input that the model does not have is refused."""
    return refused(target.infer(target.answered().first(name=NOBODY)))


def other_datatype(target: Target) -> str:
    """A datatype that the model's input does not have is refused."""
    message = target.answered()
    one = message.inputs[0]
    other = "INT32" if one.datatype.startswith("FP") else "FP32"
    array = draw(np.random.default_rng(target.seed), other, one.array.shape)
    return refused(target.infer(message.first(datatype=other, array=array)))


def unknown_datatype(target: Target) -> str:
    """A datatype that the protocol does not have is refused."""
    return refused(target.infer(target.answered().first(datatype="FP33")))


def other_shape(target: Target) -> str:
    """A shape that the metadata do not allow is refused, though the data fit it."""
    message = target.answered()
    one, shape = message.inputs[0], list(target.signature.inputs[0].shape)
    fixed = [place for place, axis in enumerate(shape) if axis != -1]
    wrong = list(one.array.shape)
    if fixed:
        wrong[fixed[-1]] += 1
    else:
        wrong.append(2)
    array = draw(np.random.default_rng(target.seed), one.datatype, tuple(wrong))
    return refused(target.infer(message.first(array=array)))


def negative_shape(target: Target) -> str:
    """A shape with a negative length is refused."""
    message = target.answered()
    document = message.document
    document["inputs"][0]["shape"][0] = -1
    return refused(target.post(*packed(document)))


def too_few(target: Target) -> str:
    """Fewer elements than the shape says are refused."""
    return _resized(target, lambda data: data[:-1])


def too_many(target: Target) -> str:
    """More elements than the shape says are refused."""
    return _resized(target, lambda data: [*data, data[-1]])


def no_data(target: Target) -> str:
    """An input without data is refused."""
    document = target.answered().document
    del document["inputs"][0]["data"]
    return refused(target.post(*packed(document)))


def other_elements(target: Target) -> str:
    """Elements of another type than the datatype are refused."""
    document = target.answered().document
    one = document["inputs"][0]
    one["data"][0] = 1 if one["datatype"] == "BYTES" else "inferway"
    return refused(target.post(*packed(document)))


def unknown_output(target: Target) -> str:
    """An output that the model does not have is refused."""
    return refused(target.infer(target.answered().having(outputs=[{"name": NOBODY}])))


def path(target: Target) -> str:
    """A path that the protocol does not have is not found."""
    answer = target.get(f"/v2/{NOBODY}")
    if not 400 <= answer.status < 500:
        raise ViolationError(f"{answer}; expected 404")
    return f"status {answer.status}"


def methods(target: Target) -> str:
    """The wrong method is refused: 405, or 404."""
    wrong = [("GET", f"{target.base}/infer"), ("POST", "/v2"), ("DELETE", "/v2/health/live")]
    for method, at in wrong:
        answer = target.call(method, at, b"" if method == "POST" else None)
        if answer.status not in (404, 405):
            raise ViolationError(f"{answer}; expected 405, or 404")
    return "GET of infer, POST of /v2 and DELETE of health were refused"


def alive(target: Target) -> str:
    """After all that the server is live and answers."""
    answer = target.get("/v2/health/live")
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200 after the wrong requests")
    message = target.message()
    for sent in (message, message.raw()):
        answer = target.infer(sent)
        if answer.status == 200:
            return "live, and a right request was answered"
    raise ViolationError(f"{answer}; expected 200 after the wrong requests")


def _resized(target: Target, change: Any) -> str:
    document = target.answered().document
    one = document["inputs"][0]
    one["data"] = change(one["data"])
    return refused(target.post(*packed(document)))


_CLAUSE: Final = "inference_rest.md, Inference Response JSON Error Object"
_STATUS: Final = (
    "The Markdown says an HTTP error status, typically 400: a client's mistake is 4xx (RFC 9110, "
    "15.5), never 5xx. The error's text is required, as the metadata's is."
)
_METADATA: Final = f"inference_rest.md, Model Metadata and Request Input. {_CLAUSE}"

CHECKS: Final = (
    Check("refusal: malformed JSON", _CLAUSE, malformed, _STATUS),
    Check("refusal: JSON that is no request", _CLAUSE, other_json, _STATUS),
    Check("refusal: unknown model", _CLAUSE, unknown_model, _STATUS),
    Check("refusal: unknown version", _CLAUSE, unknown_version, _STATUS),
    Check("refusal: missing input", _METADATA, missing, _STATUS),
    Check("refusal: unknown input", _METADATA, unknown_input, _STATUS),
    Check("refusal: another datatype", _METADATA, other_datatype, _STATUS),
    Check("refusal: unknown datatype", _METADATA, unknown_datatype, _STATUS),
    Check("refusal: another shape", _METADATA, other_shape, _STATUS),
    Check("refusal: negative shape", _METADATA, negative_shape, _STATUS),
    Check("refusal: too few elements", _METADATA, too_few, _STATUS),
    Check("refusal: too many elements", _METADATA, too_many, _STATUS),
    Check("refusal: no data", _METADATA, no_data, _STATUS),
    Check("refusal: elements of another type", _METADATA, other_elements, _STATUS),
    Check("refusal: unknown output", "inference_rest.md, Request Output", unknown_output, _STATUS),
    Check("refusal: unknown path", "RFC 9110, 15.5.5", path),
    Check("refusal: wrong method", "inference_rest.md, table of paths; RFC 9110, 15.5.6", methods),
    Check("refusal: the server goes on", _CLAUSE, alive),
)
