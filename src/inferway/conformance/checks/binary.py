"""The binary tensor data extension, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from inferway.conformance.answer import answered, compared, reference
from inferway.conformance.checks.metadata import refusal
from inferway.conformance.client import Answer, expect
from inferway.conformance.report import Check
from inferway.conformance.target import BINARY, Target
from inferway.conformance.tensors import LENGTH, Message, packed


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
    """The header may be there without raw bytes."""
    target.needs(BINARY)
    body, headers = target.message().encode()
    answer = target.post(body, headers | {LENGTH: str(len(body))})
    answer.good("expected 200 when the JSON part is the whole body")
    return "answered when the JSON part is the whole body"


def _wrong_size(target: Target) -> Iterable[Answer]:
    target.needs(BINARY)
    message = target.answered(raw=True)
    document = message.document
    document["inputs"][-1]["parameters"]["binary_data_size"] -= 1
    return [target.post(*packed(document, message.tail[:-1]))]


def _broken(
    *lengths: Callable[[bytes, str], str], body: Callable[[bytes], bytes] = bytes
) -> Callable[[Target], Iterable[Answer]]:
    """Send a right request with another body, or whose header says other lengths of its JSON."""

    def send(target: Target) -> Iterable[Answer]:
        target.needs(BINARY)
        right, headers = target.answered(raw=True).encode()
        said = [length(right, headers[LENGTH]) for length in lengths] or [headers[LENGTH]]
        return (target.post(body(right), headers | {LENGTH: length}) for length in said)

    return send


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
    Check("binary: mixed with JSON", _CLAUSE, _mixed),
    Check("binary: header without bytes", _CLAUSE, _json_only),
    refusal("binary: truncated data is refused", _REFUSAL, _broken(body=lambda body: body[:-1])),
    refusal(
        "binary: surplus data is refused",
        _REFUSAL,
        _broken(body=lambda body: body + bytes(4)),
        _SURPLUS,
    ),
    refusal("binary: a size unlike the shape is refused", _REFUSAL, _wrong_size),
    refusal(
        "binary: a header beyond the body is refused",
        _REFUSAL,
        _broken(lambda body, length: str(len(body) + 1)),
    ),
    refusal(
        "binary: a header inside the JSON is refused",
        _REFUSAL,
        _broken(lambda body, length: str(int(length) // 2)),
    ),
    refusal(
        "binary: a header that is no number is refused",
        _REFUSAL,
        _broken(lambda body, length: "all", lambda body, length: "-1"),
    ),
)
