"""Requests that are wrong: refused with 4xx and `{"error": "<why>"}`, and the server goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np

from inferway.conformance.checks.metadata import NOBODY, refusal
from inferway.conformance.client import Answer, expect
from inferway.conformance.report import Check
from inferway.conformance.target import Target
from inferway.conformance.tensors import Message, draw, packed

Sent = Callable[[Target], Iterable[Answer]]


def _malformed(target: Target) -> Iterable[Answer]:
    body, headers = target.answered().encode()
    return (target.post(broken, headers) for broken in (body[:-1], b"{", b"\xff\xfe", b""))


def _other_json(target: Target) -> Iterable[Answer]:
    target.answered()
    kinds: tuple[Any, ...] = ([], "text", 1, None, {}, {"inputs": {}}, {"inputs": [1]})
    return (target.post(*packed(wrong)) for wrong in kinds)


def _to(path: Callable[[Target], str]) -> Sent:
    """Send a right request to a wrong path."""
    return lambda target: [target.infer(target.answered(), path(target))]


def _as(change: Callable[[Message], Message]) -> Sent:
    """Send a request with something else in it."""
    return lambda target: [target.infer(change(target.answered()))]


def _with(change: Callable[[dict[str, Any]], Any]) -> Sent:
    """Send a request whose first input's JSON has been changed."""

    def send(target: Target) -> Iterable[Answer]:
        document = target.answered().document
        change(document["inputs"][0])
        return [target.post(*packed(document))]

    return send


def _other_datatype(message: Message) -> Message:
    one = message.inputs[0]
    other = "INT32" if one.datatype.startswith("FP") else "FP32"
    array = draw(np.random.default_rng(1), other, one.array.shape)
    return message.first(datatype=other, array=array)


def _other_shape(target: Target) -> Iterable[Answer]:
    """A shape that the metadata do not allow, though the data fit it."""
    message = target.answered()
    one, shape = message.inputs[0], target.signature.inputs[0].shape
    wrong = list(one.array.shape)
    if fixed := [place for place, axis in enumerate(shape) if axis != -1]:
        wrong[fixed[-1]] += 1
    else:
        wrong.append(2)
    array = draw(np.random.default_rng(target.seed), one.datatype, tuple(wrong))
    return [target.infer(message.first(array=array))]


def _other_elements(one: dict[str, Any]) -> None:
    one["data"][0] = 1 if one["datatype"] == "BYTES" else "inferway"


def _path(target: Target) -> str:
    return f"status {target.get(f'/v2/{NOBODY}').refused('expected 404').status}"


def _methods(target: Target) -> str:
    wrong = [("GET", f"{target.base}/infer"), ("POST", "/v2"), ("DELETE", "/v2/health/live")]
    for method, path in wrong:
        answer = target.call(method, path, b"" if method == "POST" else None)
        expect(answer.status in (404, 405), f"{answer}; expected 405, or 404")
    return "GET of infer, POST of /v2 and DELETE of health were refused"


def _alive(target: Target) -> str:
    expected = "expected 200 after the wrong requests"
    target.get("/v2/health/live").good(expected)
    message = target.message()
    if target.infer(message).status != 200:
        target.infer(message.raw()).good(expected)
    return "live, and a right request was answered"


_CLAUSE: Final = "inference_rest.md, Inference Response JSON Error Object"
_STATUS: Final = (
    "The Markdown says an HTTP error status, typically 400: a client's mistake is 4xx (RFC 9110, "
    "15.5), never 5xx. The error's text is required, as the metadata's is."
)
_METADATA: Final = f"inference_rest.md, Model Metadata and Request Input. {_CLAUSE}"
_OUTPUT: Final = "inference_rest.md, Request Output"
_REFUSED: Final[tuple[tuple[str, str, Sent], ...]] = (
    ("malformed JSON", _CLAUSE, _malformed),
    ("JSON that is no request", _CLAUSE, _other_json),
    ("unknown model", _CLAUSE, _to(lambda target: f"/v2/models/{NOBODY}")),
    ("unknown version", _CLAUSE, _to(lambda target: target.versioned(NOBODY))),
    ("missing input", _METADATA, _as(lambda message: Message(message.inputs[1:]))),
    ("unknown input", _METADATA, _as(lambda message: message.first(name=NOBODY))),
    ("another datatype", _METADATA, _as(_other_datatype)),
    ("unknown datatype", _METADATA, _as(lambda message: message.first(datatype="FP33"))),
    ("another shape", _METADATA, _other_shape),
    ("negative shape", _METADATA, _with(lambda one: one["shape"].__setitem__(0, -1))),
    ("too few elements", _METADATA, _with(lambda one: one["data"].pop())),
    ("too many elements", _METADATA, _with(lambda one: one["data"].append(one["data"][-1]))),
    ("no data", _METADATA, _with(lambda one: one.pop("data"))),
    ("elements of another type", _METADATA, _with(_other_elements)),
    ("unknown output", _OUTPUT, _as(lambda message: message.having(outputs=[{"name": NOBODY}]))),
)

CHECKS: Final = (
    *(refusal(f"refusal: {name}", clause, send, _STATUS) for name, clause, send in _REFUSED),
    Check("refusal: unknown path", "RFC 9110, 15.5.5", _path),
    Check("refusal: wrong method", "inference_rest.md, table of paths; RFC 9110, 15.5.6", _methods),
    Check("refusal: the server goes on", _CLAUSE, _alive),
)
