"""The binary tensor data extension, in both directions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from inferway.conformance.answer import Inference, compared
from inferway.conformance.checks.metadata import refused
from inferway.conformance.errors import ViolationError
from inferway.conformance.message import LENGTH, Message, packed
from inferway.conformance.outcome import Check
from inferway.conformance.target import BINARY, Target


def into(target: Target) -> str:
    """Inputs are taken as raw bytes."""
    inference, found = _compared(target, target.message().raw())
    _expect(inference, set())
    return found


def out(target: Target) -> str:
    """Each output comes as raw bytes when it says `binary_data`."""
    names = [one.name for one in target.signature.outputs]
    inference, found = _compared(target, target.message().having(outputs=_wanted(names, True)))
    _expect(inference, set(names))
    return found


def out_all(target: Target) -> str:
    """All outputs come as raw bytes with `binary_data_output`."""
    names = {one.name for one in target.signature.outputs}
    message = target.message().having(parameters={"binary_data_output": True})
    inference, found = _compared(target, message)
    _expect(inference, names)
    return found


def both(target: Target) -> str:
    """Raw bytes go in and come out."""
    names = {one.name for one in target.signature.outputs}
    message = target.message().raw().having(parameters={"binary_data_output": True})
    inference, found = _compared(target, message)
    _expect(inference, names)
    return found


def override(target: Target) -> str:
    """An output's `binary_data: false` counts more than the request's `binary_data_output`."""
    names = [one.name for one in target.signature.outputs]
    message = target.message().having(
        parameters={"binary_data_output": True}, outputs=_wanted(names, False)
    )
    inference, found = _compared(target, message)
    _expect(inference, set())
    return found


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


def truncated(target: Target) -> str:
    """Raw bytes that end too early are refused."""
    target.needs(BINARY)
    body, headers = target.answered(raw=True).encode()
    return refused(target.post(body[:-1], headers))


def surplus(target: Target) -> str:
    """Raw bytes that belong to no input are refused."""
    target.needs(BINARY)
    body, headers = target.answered(raw=True).encode()
    return refused(target.post(body + b"\0\0\0\0", headers))


def wrong_size(target: Target) -> str:
    """Another number of bytes than shape and datatype say is refused."""
    target.needs(BINARY)
    message = target.answered(raw=True)
    document, tail = message.document, message.tail
    document["inputs"][-1]["parameters"]["binary_data_size"] -= 1
    return refused(target.post(*packed(document, tail[:-1])))


def header_beyond(target: Target) -> str:
    """A JSON part longer than the body is refused."""
    target.needs(BINARY)
    body, headers = target.answered(raw=True).encode()
    return refused(target.post(body, headers | {LENGTH: str(len(body) + 1)}))


def header_inside(target: Target) -> str:
    """A JSON part that ends inside its text is refused."""
    target.needs(BINARY)
    body, headers = target.answered(raw=True).encode()
    return refused(target.post(body, headers | {LENGTH: str(int(headers[LENGTH]) // 2)}))


def header_word(target: Target) -> str:
    """A length that is no number is refused."""
    target.needs(BINARY)
    body, headers = target.answered(raw=True).encode()
    for value in ("all", "-1"):
        evidence = refused(target.post(body, headers | {LENGTH: value}))
    return evidence


def _compared(target: Target, message: Message) -> tuple[Inference, str]:
    target.needs(BINARY)
    return compared(target, message)


def _wanted(names: list[str], binary: bool) -> list[dict[str, Any]]:
    return [{"name": one, "parameters": {"binary_data": binary}} for one in names]


def _expect(inference: Inference, raw: set[str]) -> None:
    if inference.raw != raw:
        raise ViolationError(
            f"the outputs as raw bytes are {sorted(inference.raw)}, asked for were {sorted(raw)}"
        )


_CLAUSE: Final = "extension_binary_data.md"
_REFUSAL: Final = "extension_binary_data.md; inference_rest.md, error objects"
_SURPLUS: Final = "Offset and size of every tensor follow from the JSON: a rest is a mistake."

CHECKS: Final = (
    Check("binary: inputs", _CLAUSE, into),
    Check("binary: outputs, each", _CLAUSE, out),
    Check("binary: outputs, all", _CLAUSE, out_all),
    Check("binary: inputs and outputs", _CLAUSE, both),
    Check("binary: an output overrides the request", _CLAUSE, override),
    Check("binary: mixed with JSON", _CLAUSE, mixed),
    Check("binary: header without bytes", _CLAUSE, json_only),
    Check("binary: truncated data is refused", _REFUSAL, truncated),
    Check("binary: surplus data is refused", _REFUSAL, surplus, _SURPLUS),
    Check("binary: a size unlike the shape is refused", _REFUSAL, wrong_size),
    Check("binary: a header beyond the body is refused", _REFUSAL, header_beyond),
    Check("binary: a header inside the JSON is refused", _REFUSAL, header_inside),
    Check("binary: a header that is no number is refused", _REFUSAL, header_word),
)
