"""The binary tensor data extension, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from inferway.conformance.answer import Inference, compared
from inferway.conformance.checks.metadata import refusal
from inferway.conformance.client import Answer
from inferway.conformance.errors import ViolationError
from inferway.conformance.message import LENGTH, Message, packed
from inferway.conformance.outcome import Check
from inferway.conformance.target import BINARY, Target


def _outputs(
    *, raw: bool = False, everything: bool = False, each: bool | None = None, came: bool
) -> Callable[[Target], str]:
    """Make a check of which outputs come as raw bytes: all of them, or none.

    Parameters
    ----------
    raw
        Whether the inputs are sent as raw bytes.
    everything
        Whether the request has `binary_data_output`.
    each
        What each output says as `binary_data`, if it says it.
    """

    def run(target: Target) -> str:
        names = [one.name for one in target.signature.outputs]
        message = target.message()
        if raw:
            message = message.raw()
        if everything:
            message = message.having(parameters={"binary_data_output": True})
        if each is not None:
            wanted = [{"name": one, "parameters": {"binary_data": each}} for one in names]
            message = message.having(outputs=wanted)
        inference, found = _compared(target, message)
        _expect(inference, set(names) if came else set())
        return found

    return run


def mixed(target: Target) -> str:
    """Raw bytes and JSON stand side by side: every second input, every second output."""
    message = target.message()
    inputs = tuple(replace(one, raw=place % 2 == 0) for place, one in enumerate(message.inputs))
    names = [one.name for one in target.signature.outputs]
    binary = set(names[1::2])
    wanted = [{"name": one, "parameters": {"binary_data": one in binary}} for one in names]
    inference, found = _compared(target, Message(inputs).having(outputs=wanted))
    _expect(inference, binary)
    return f"{found}; {len(names) - len(binary)} outputs as JSON, {len(binary)} as bytes"


def json_only(target: Target) -> str:
    """The header may be there without raw bytes."""
    target.needs(BINARY)
    body, headers = target.message().encode()
    answer = target.post(body, headers | {LENGTH: str(len(body))})
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200 when the JSON part is the whole body")
    return "answered when the JSON part is the whole body"


def _wrong_size(target: Target) -> Iterable[Answer]:
    target.needs(BINARY)
    message = target.answered(raw=True)
    document, tail = message.document, message.tail
    document["inputs"][-1]["parameters"]["binary_data_size"] -= 1
    return [target.post(*packed(document, tail[:-1]))]


def _body(change: Callable[[bytes], bytes]) -> Callable[[Target], Iterable[Answer]]:
    """Send a right request with another body."""

    def send(target: Target) -> Iterable[Answer]:
        target.needs(BINARY)
        body, headers = target.answered(raw=True).encode()
        return [target.post(change(body), headers)]

    return send


def _length(*changes: Callable[[bytes, str], str]) -> Callable[[Target], Iterable[Answer]]:
    """Send a right request whose header says other lengths of its JSON part."""

    def send(target: Target) -> Iterable[Answer]:
        target.needs(BINARY)
        body, headers = target.answered(raw=True).encode()
        lengths = (change(body, headers[LENGTH]) for change in changes)
        return (target.post(body, headers | {LENGTH: length}) for length in lengths)

    return send


def _compared(target: Target, message: Message) -> tuple[Inference, str]:
    target.needs(BINARY)
    return compared(target, message)


def _expect(inference: Inference, raw: set[str]) -> None:
    if inference.raw != raw:
        raise ViolationError(
            f"the outputs as raw bytes are {sorted(inference.raw)}, asked for were {sorted(raw)}"
        )


_CLAUSE: Final = "extension_binary_data.md"
_REFUSAL: Final = "extension_binary_data.md; inference_rest.md, error objects"
_SURPLUS: Final = "Offset and size of every tensor follow from the JSON: a rest is a mistake."

CHECKS: Final = (
    Check("binary: inputs", _CLAUSE, _outputs(raw=True, came=False)),
    Check("binary: outputs, each", _CLAUSE, _outputs(each=True, came=True)),
    Check("binary: outputs, all", _CLAUSE, _outputs(everything=True, came=True)),
    Check("binary: inputs and outputs", _CLAUSE, _outputs(raw=True, everything=True, came=True)),
    Check(
        "binary: an output overrides the request",
        _CLAUSE,
        _outputs(everything=True, each=False, came=False),
    ),
    Check("binary: mixed with JSON", _CLAUSE, mixed),
    Check("binary: header without bytes", _CLAUSE, json_only),
    refusal("binary: truncated data is refused", _REFUSAL, _body(lambda body: body[:-1])),
    refusal(
        "binary: surplus data is refused", _REFUSAL, _body(lambda body: body + bytes(4)), _SURPLUS
    ),
    refusal("binary: a size unlike the shape is refused", _REFUSAL, _wrong_size),
    refusal(
        "binary: a header beyond the body is refused",
        _REFUSAL,
        _length(lambda body, length: str(len(body) + 1)),
    ),
    refusal(
        "binary: a header inside the JSON is refused",
        _REFUSAL,
        _length(lambda body, length: str(int(length) // 2)),
    ),
    refusal(
        "binary: a header that is no number is refused",
        _REFUSAL,
        _length(lambda body, length: "all", lambda body, length: "-1"),
    ),
)
