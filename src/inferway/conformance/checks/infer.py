"""Inference over HTTP: JSON and binary tensors, connections, and requests that are to be refused.

A wrong request is refused with 4xx and `{"error": "<why>"}`, and the server goes on.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import numpy as np

from inferway.conformance.checks.metadata import NOBODY, refusal
from inferway.conformance.client import NotOfferedError, TargetAnswer, expect
from inferway.conformance.report import Check
from inferway.conformance.target import (
    BINARY,
    Inference,
    Target,
    answered,
    compared,
    read,
    reference,
)
from inferway.conformance.tensors import LENGTH, Message, draw, packed

_PARAMETERS: Final = {"conformance_text": "a", "conformance_number": 1, "conformance_flag": True}


def _flat(target: Target) -> str:
    message = target.message()
    inference = answered(target, message, target.pinned)
    return f"{compared(inference, reference(target, message))}, {inference.size} bytes"


def _nested(target: Target) -> str:
    message = replace(target.message(), nested=True)
    return compared(answered(target, message, target.pinned), reference(target, message))


def _unversioned(target: Target) -> str:
    target.needs_unversioned()
    version = answered(target, target.message(), target.unversioned).version
    return "answered" if version is None else f"answered by version {version!r}"


def _versioned(target: Target) -> str:
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


def _binary(target: Target, message: Message, raw: Iterable[str]) -> str:
    """Hold an answer to the one for flat JSON, and its raw outputs to those asked for."""
    target.needs(BINARY)
    inference = answered(target, message, target.pinned)
    evidence = compared(inference, reference(target, message))
    came, asked = sorted(inference.raw), sorted(raw)
    expect(came == asked, f"the outputs as raw bytes are {came}, asked for were {asked}")
    return evidence


def _outputs(
    *, raw: bool = False, everything: bool = False, each: bool | None = None, came: bool
) -> Callable[[Target], str]:
    """Make a check of which outputs come as raw bytes: all of them, or none.

    The inputs are sent as raw bytes with `raw`; the request has `binary_data_output` with
    `everything`; and each output says `each` as `binary_data`, if that is given.
    """

    def run(target: Target) -> str:
        names = [one.name for one in target.signature.outputs]
        message = target.message().raw(raw=raw)
        if everything:
            message = message.having(parameters={"binary_data_output": True})
        if each is not None:
            message = _wanting(message, dict.fromkeys(names, each))
        return _binary(target, message, names if came else ())

    return run


def _mixed(target: Target) -> str:
    """Raw bytes and JSON stand side by side: every second input, every second output."""
    inputs = target.message().inputs
    inputs = tuple(replace(one, raw=place % 2 == 0) for place, one in enumerate(inputs))
    wanted = {one.name: place % 2 == 1 for place, one in enumerate(target.signature.outputs)}
    binary = [name for name, raw in wanted.items() if raw]
    evidence = _binary(target, _wanting(Message(inputs), wanted), binary)
    return f"{evidence}; {len(wanted) - len(binary)} outputs as JSON, {len(binary)} as bytes"


def _wanting(message: Message, wanted: dict[str, bool]) -> Message:
    return message.having(
        outputs=[{"name": name, "parameters": {"binary_data": raw}} for name, raw in wanted.items()]
    )


def _json_only(target: Target) -> str:
    target.needs(BINARY)
    body, headers = target.message().encode()
    answer = target.post(body, headers | {LENGTH: str(len(body))})
    answer.good("expected 200 when the JSON part is the whole body")
    return "answered when the JSON part is the whole body"


def _wrong_size(target: Target) -> Iterable[TargetAnswer]:
    target.needs(BINARY)
    message = target.answered(raw=True)
    document = message.document
    document["inputs"][-1]["parameters"]["binary_data_size"] -= 1
    return [target.post(*packed(document, message.tail[:-1]))]


def _broken(
    *lengths: Callable[[bytes, str], str], body: Callable[[bytes], bytes] = bytes
) -> Callable[[Target], Iterable[TargetAnswer]]:
    """Send a right request with another body, or whose header says other lengths of its JSON."""

    def send(target: Target) -> Iterable[TargetAnswer]:
        target.needs(BINARY)
        right, headers = target.answered(raw=True).encode()
        said = [length(right, headers[LENGTH]) for length in lengths] or [headers[LENGTH]]
        return (target.post(body(right), headers | {LENGTH: length}) for length in said)

    return send


_BINARY: Final = "extension_binary_data.md"
_WRONG: Final = "extension_binary_data.md; inference_rest.md, error objects"
_SURPLUS: Final = "Offset and size of every tensor follow from the JSON: a rest is a mistake."


CLIENTS: Final = 8
EACH: Final = 4  # Requests of each client


def _compressed(coding: str, compress: Callable[[bytes], bytes]) -> Callable[[Target], str]:
    def run(target: Target) -> str:
        message = target.message()
        body, headers = message.encode()
        pressed = compress(body)
        answer = target.post(pressed, headers | {"Content-Encoding": coding})
        if 400 <= answer.status < 500:
            raise NotOfferedError(f"refused with {answer.status}")
        read(target, answer, message)
        return f"{len(pressed)} bytes for {len(body)} were understood"

    return run


def _compressed_answer(target: Target) -> str:
    message = target.message()
    body, headers = message.encode()
    answer = target.post(body, headers | {"Accept-Encoding": "gzip, deflate"})
    read(target, answer, message)
    coding = answer.headers.get("content-encoding")
    return f"answered in {coding}" if coding else "answered without compression, which is allowed"


def _chunked(target: Target) -> str:
    message = target.message()
    body, headers = message.encode()
    pieces = [body[at : at + 64] for at in range(0, len(body), 64)]
    read(target, target.post(pieces, headers), message)
    return f"answered to {len(pieces)} chunks"


def _kept(target: Target) -> str:
    with target.connect() as connection:
        for number in range(3):
            message = target.message().having(id=str(number))
            if answered(target, message, connection=connection).closes:
                raise NotOfferedError(f"the server closes the connection after answer {number + 1}")
    return "three answers on one connection"


def _kept_after_refusal(target: Target) -> str:
    headers = {"Content-Type": "application/json"}
    with target.connect() as connection:
        answer = target.post(b"{", headers, connection=connection)
        if answer.refused("expected 4xx for malformed JSON").closes:
            return "the server announces that it closes the connection"
        answered(target, target.message(), connection=connection)
    return "a refusal and an answer on one connection"


def _at_once(target: Target) -> str:
    messages = [target.message() for _ in range(CLIENTS)]
    expected = [reference(target, message) for message in messages]

    def client(number: int) -> None:
        with target.connect() as connection:
            for count in range(EACH):
                message = messages[number].having(id=f"{number}-{count}")
                inference = answered(target, message, target.pinned, connection)
                compared(inference, expected[number])
                if inference.closes:
                    connection.close()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return f"{CLIENTS * EACH} answers to {CLIENTS} clients, each its own"


_CODING: Final = (
    "The protocol says nothing of compression; Triton's client offers both. RFC 9110, 8.4 lets a "
    "server refuse a coding with 415: any 4xx counts as not offered."
)


Sent = Callable[[Target], Iterable[TargetAnswer]]


def _malformed(target: Target) -> Iterable[TargetAnswer]:
    body, headers = target.answered().encode()
    return (target.post(broken, headers) for broken in (body[:-1], b"{", b"\xff\xfe", b""))


def _other_json(target: Target) -> Iterable[TargetAnswer]:
    target.answered()
    kinds: tuple[Any, ...] = ([], "text", 1, None, {}, {"inputs": {}}, {"inputs": [1]})
    return (target.post(*packed(wrong)) for wrong in kinds)


def _to(path: Callable[[Target], str]) -> Sent:
    return lambda target: [target.infer(target.answered(), path(target))]


def _as(change: Callable[[Message], Message]) -> Sent:
    return lambda target: [target.infer(change(target.answered()))]


def _with(change: Callable[[dict[str, Any]], Any]) -> Sent:
    def send(target: Target) -> Iterable[TargetAnswer]:
        document = target.answered().document
        change(document["inputs"][0])
        return [target.post(*packed(document))]

    return send


def _other_datatype(message: Message) -> Message:
    one = message.inputs[0]
    other = "INT32" if one.datatype.startswith("FP") else "FP32"
    array = draw(np.random.default_rng(1), other, one.array.shape)
    return message.first(datatype=other, array=array)


def _other_shape(target: Target) -> Iterable[TargetAnswer]:
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


_REST: Final = "inference_rest.md"
_ID: Final = f"{_REST}, Inference Request JSON Object"
_CLAUSE: Final = f"{_REST}, Inference Response JSON Error Object"
_STATUS: Final = (
    "The Markdown says an HTTP error status, typically 400: a client's mistake is 4xx (RFC 9110, "
    "15.5), never 5xx. The error's text is required, as the metadata's is."
)
_METADATA: Final = f"{_REST}, Model Metadata and Request Input. {_CLAUSE}"
_OUTPUT: Final = f"{_REST}, Request Output"
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
_BROKEN: Final = (
    ("truncated data", _broken(body=lambda body: body[:-1]), ""),
    ("surplus data", _broken(body=lambda body: body + bytes(4)), _SURPLUS),
    ("a size unlike the shape", _wrong_size, ""),
    ("a header beyond the body", _broken(lambda body, length: str(len(body) + 1)), ""),
    ("a header inside the JSON", _broken(lambda body, length: str(int(length) // 2)), ""),
    (
        "a header that is no number",
        _broken(lambda body, length: "all", lambda body, length: "-1"),
        "",
    ),
)

CHECKS: Final = (
    Check("infer: flat data", f"{_REST}, Request Input", _flat),
    Check(
        "infer: nested data",
        "open_inference_rest.yaml, tensor_data",
        _nested,
        "tensor_data holds elements or tensor_data: lists may be nested to the shape.",
    ),
    Check(
        "infer: without a version",
        f"{_REST}, Inference",
        _unversioned,
        "The Markdown allows an error instead, on servers that have versions.",
    ),
    Check(
        "infer: each version",
        f"{_REST}, Inference; open_inference_rest.yaml, .../infer",
        _versioned,
        "model_version is the specific version used, so it is the one that was asked for.",
    ),
    Check("infer: id comes back", _ID, _identifier("42")),
    Check(
        "infer: any text as id",
        _ID,
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
    Check("infer: requested outputs", _OUTPUT, outputs_alone),
    Check(
        "infer: no Content-Type",
        f"{_REST}, Inference; RFC 9110, 8.3",
        _no_content_type,
        "No document asks for the header, and Triton's client sends none.",
    ),
    Check("binary: inputs", _BINARY, _outputs(raw=True, came=False)),
    Check("binary: outputs, each", _BINARY, _outputs(each=True, came=True)),
    Check("binary: outputs, all", _BINARY, _outputs(everything=True, came=True)),
    Check("binary: inputs and outputs", _BINARY, _outputs(raw=True, everything=True, came=True)),
    Check(
        "binary: an output overrides the request",
        _BINARY,
        _outputs(everything=True, each=False, came=False),
    ),
    Check("binary: mixed with JSON", _BINARY, _mixed),
    Check("binary: header without bytes", _BINARY, _json_only),
    *(
        refusal(f"binary: {name} is refused", _WRONG, send, reading)
        for name, send, reading in _BROKEN
    ),
    Check("connection: gzip body", "RFC 9110, 8.4", _compressed("gzip", gzip.compress), _CODING),
    Check(
        "connection: deflate body", "RFC 9110, 8.4", _compressed("deflate", zlib.compress), _CODING
    ),
    Check("connection: compressed answer", "RFC 9110, 12.5.3", _compressed_answer),
    Check("connection: chunked body", "RFC 9112, 7.1", _chunked),
    Check("connection: kept", "RFC 9112, 9.3", _kept),
    Check("connection: kept after a refusal", "RFC 9112, 9.3", _kept_after_refusal),
    Check("connection: eight clients at once", f"{_REST}, Inference", _at_once),
    *(refusal(f"refusal: {name}", clause, send, _STATUS) for name, clause, send in _REFUSED),
    Check("refusal: unknown path", "RFC 9110, 15.5.5", _path),
    Check("refusal: wrong method", f"{_REST}, table of paths; RFC 9110, 15.5.6", _methods),
    Check("refusal: the server goes on", _CLAUSE, _alive),
)
