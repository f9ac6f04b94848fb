"""Reader of answers to requests for inference, strict about what a right one has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from inferway.conformance.client import (
    Answer,
    NotOfferedError,
    RawConnection,
    ViolationError,
    document,
    expect,
)
from inferway.conformance.target import Target
from inferway.conformance.tensors import LENGTH, Array, Message, alike, from_json, from_raw
from inferway.protocol import Tensor


@dataclass(frozen=True, slots=True)
class Inference:
    """A right answer.

    Attributes
    ----------
    version
        As the answer says it, if it does.
    outputs
        By name.
    raw
        Names of the outputs that came as raw bytes.
    size
        Of the body, in bytes.
    closes
        Whether the server ends the connection after it.
    """

    version: str | None
    outputs: Mapping[str, Array]
    raw: Collection[str] = ()
    size: int = 0
    closes: bool = False


def answered(
    target: Target, message: Message, base: str = "", connection: RawConnection | None = None
) -> Inference:
    """Send a request that is right, and read its answer.

    Raises
    ------
    ViolationError
        When the answer is not one that the protocol and the model's metadata allow.
    NotOfferedError
        When FP16 in JSON is refused: many servers have it in binary data only.
    """
    answer = target.infer(message, base, connection)
    if 400 <= answer.status < 500 and any(
        one.datatype == "FP16" and not one.raw for one in message.inputs
    ):
        raise NotOfferedError(f"FP16 in JSON is refused: {answer}")
    return read(target, answer, message)


def read(target: Target, answer: Answer, message: Message) -> Inference:
    """Read the answer to a right request; a violation when it is not as it should be."""
    body, length = answer.good().plain, answer.headers.get(LENGTH.lower())
    if length is None:
        found, rest = answer.json, None
    else:
        expect(
            length.isdigit() and int(length) <= len(body),
            f"{LENGTH} is {length!r} in an answer of {len(body)} bytes",
        )
        found, rest = document(body[: int(length)], answer.call), body[int(length) :]
    if not isinstance(found, dict):
        raise ViolationError(f"{answer}; expected a JSON object")
    agree("model_name", found.get("model_name"), target.task)
    version, versions = found.get("model_version"), target.versions
    expect(
        version is None or (isinstance(version, str) and version in (versions or [version])),
        f"model_version is {version!r}, expected one of {versions}",
    )
    if (sent := message.fields.get("id")) is not None:
        expect(found.get("id") == sent, f"id is {found.get('id')!r}, the request's was {sent!r}")
    listed = found.get("outputs")
    if not isinstance(listed, list):
        raise ViolationError("the answer has no list of outputs")
    outputs: dict[str, Array] = {}
    raw = set()
    for one in listed:
        match one:
            case {"name": str(name), "datatype": str(datatype), "shape": list(shape)} if all(
                type(axis) is int and axis >= 0 for axis in shape
            ):
                tensor = described(target, name, datatype, shape)
            case _:
                raise ViolationError(
                    f"an output is {str(one)[:80]}; expected name, datatype and shape"
                )
        expect(name not in outputs, f"output {name!r} comes twice")
        parameters = one.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise ViolationError(f"output {name!r} has parameters that are no JSON object")
        size = parameters.get("binary_data_size")
        if size is None:
            outputs[name] = from_json(tensor, tuple(shape), one.get("data"))
            continue
        if rest is None:
            raise ViolationError(f"output {name!r} is binary, the answer lacks {LENGTH}")
        if type(size) is not int or not 0 <= size <= len(rest):
            raise ViolationError(
                f"output {name!r} says {size} bytes of binary data, {len(rest)} are left"
            )
        outputs[name] = from_raw(tensor, tuple(shape), rest[:size])
        raw.add(name)
        rest = rest[size:]
    expect(not rest, f"{len(rest or b'')} bytes after the JSON belong to no output")
    complete(target, outputs, message)
    return Inference(version, outputs, raw, len(answer.body), answer.closes)


def agree(field: str, value: Any, expected: Any) -> None:
    """Hold a field of an answer to what it must be."""
    expect(value == expected, f"{field} is {value!r}, expected {expected!r}")


def described(target: Target, name: str, datatype: str, shape: list[int]) -> Tensor:
    """Find an output in the model's metadata; a violation if it does not agree with them."""
    tensor = next((one for one in target.signature.outputs if one.name == name), None)
    if tensor is None:
        raise ViolationError(f"output {name!r} is not in the model's metadata")
    expect(
        datatype == tensor.datatype,
        f"output {name!r} has datatype {datatype}, the metadata say {tensor.datatype}",
    )
    expect(
        len(shape) == len(tensor.shape)
        and all(want in (-1, have) for have, want in zip(shape, tensor.shape, strict=True)),
        f"output {name!r} has shape {shape}, the metadata say {list(tensor.shape)}",
    )
    return tensor


def complete(target: Target, outputs: Collection[str], message: Message) -> None:
    """Hold an answer's outputs to those asked for, or to the model's if none are."""
    expected = sorted(
        [one["name"] for one in message.fields.get("outputs", ())]
        or [tensor.name for tensor in target.signature.outputs]
    )
    expect(sorted(outputs) == expected, f"the outputs are {sorted(outputs)}, expected {expected}")


def same(one: Inference, other: Inference) -> None:
    """Hold two answers to equal inputs against each other; a violation if they differ."""
    for name in one.outputs.keys() & other.outputs.keys():
        expect(
            alike(one.outputs[name], other.outputs[name]),
            f"output {name!r} differs from that of the same inputs as flat JSON",
        )


def reference(target: Target, message: Message) -> Inference | None:
    """Answer to the same inputs as flat JSON; None if the model answers differently each time."""
    plain = Message(message.raw(raw=False).inputs)
    try:
        one = answered(target, plain, target.pinned)
        same(one, answered(target, plain, target.pinned))
    except (ViolationError, NotOfferedError):
        return None
    return one


def compared(inference: Inference, plain: Inference | None) -> str:
    """Hold an answer to that for flat JSON, if there is one; the end of a sentence."""
    if plain is None:
        return "answered in shape and datatype"
    same(inference, plain)
    return "answered as the same values in flat JSON"
