"""What a right answer to a request for inference has, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inferway.conformance.client import Answer, Wire, document
from inferway.conformance.errors import NotOfferedError, ViolationError
from inferway.conformance.message import LENGTH, Message
from inferway.conformance.target import Target
from inferway.conformance.tensors import Array, alike, from_json, from_raw
from inferway.protocol import Tensor


@dataclass(frozen=True, slots=True)
class Inference:
    """A right answer.

    Attributes
    ----------
    answer
        As it came.
    document
        Its JSON part.
    outputs
        By name.
    raw
        Names of the outputs that came as raw bytes.
    """

    answer: Answer
    document: Mapping[str, Any]
    outputs: Mapping[str, Array]
    raw: frozenset[str]


def answered(
    target: Target,
    message: Message,
    *,
    base: str | None = None,
    wire: Wire | None = None,
) -> Inference:
    """Send a request that is right, and read its answer.

    Raises
    ------
    ViolationError
        When the answer is not one that the protocol and the model's metadata allow.
    NotOfferedError
        When FP16 in JSON is refused: many servers have it in binary data only.
    """
    answer = target.infer(message, base, wire)
    whole = {one.datatype for one in message.inputs if not one.raw}
    if 400 <= answer.status < 500 and "FP16" in whole:
        raise NotOfferedError(f"FP16 in JSON is refused: {answer}")
    return read(target, answer, message)


def read(target: Target, answer: Answer, message: Message) -> Inference:
    """Read the answer to a right request.

    Raises
    ------
    ViolationError
        When it is not as it should be.
    """
    if answer.status != 200:
        raise ViolationError(f"{answer}; expected 200")
    found, tail = _parts(answer)
    if not isinstance(found, dict):
        raise ViolationError(f"{answer}; expected a JSON object")
    if found.get("model_name") != target.task:
        raise ViolationError(f"model_name is {found.get('model_name')!r}, expected {target.task!r}")
    version = found.get("model_version")
    versions = target.versions
    if version is not None and (
        not isinstance(version, str) or (versions and version not in versions)
    ):
        raise ViolationError(f"model_version is {version!r}, expected one of {versions}")
    wanted = message.fields.get("id")
    if wanted is not None and found.get("id") != wanted:
        raise ViolationError(f"id is {found.get('id')!r}, the request's was {wanted!r}")
    outputs, raw = _outputs(target, found.get("outputs"), tail)
    names = [one["name"] for one in message.fields.get("outputs", ())]
    expected = names or [tensor.name for tensor in target.signature.outputs]
    if sorted(outputs) != sorted(expected):
        raise ViolationError(f"the outputs are {sorted(outputs)}, expected {sorted(expected)}")
    return Inference(answer, found, outputs, raw)


def same(one: Inference, other: Inference) -> None:
    """Hold two answers to equal inputs against each other.

    Raises
    ------
    ViolationError
        When an output differs.
    """
    for name in one.outputs.keys() & other.outputs.keys():
        if not alike(one.outputs[name], other.outputs[name]):
            raise ViolationError(
                f"output {name!r} differs from that of the same inputs as flat JSON"
            )


def reference(target: Target, message: Message) -> Inference | None:
    """Answer to the same inputs as flat JSON; None if the model answers differently each time."""
    plain = Message(tuple(replace(one, raw=False) for one in message.inputs))
    try:
        one = answered(target, plain, base=target.pinned)
        same(one, answered(target, plain, base=target.pinned))
    except (ViolationError, NotOfferedError):
        return None
    return one


def compared(target: Target, message: Message) -> tuple[Inference, str]:
    """Send a right request to one version, and hold its answer to that for flat JSON.

    Returns
    -------
    Inference
        The answer.
    str
        What was found, the end of a sentence.
    """
    inference = answered(target, message, base=target.pinned)
    plain = reference(target, message)
    if plain is None:
        return inference, "answered in shape and datatype"
    same(inference, plain)
    return inference, "answered as the same values in flat JSON"


def _parts(answer: Answer) -> tuple[Any, bytes | None]:
    body, length = answer.plain, answer.headers.get(LENGTH.lower())
    if length is None:
        return answer.json, None
    if not length.isdigit() or int(length) > len(body):
        raise ViolationError(f"{LENGTH} is {length!r} in an answer of {len(body)} bytes")
    at = int(length)
    return document(body[:at], answer.call), body[at:]


def _outputs(
    target: Target, listed: Any, tail: bytes | None
) -> tuple[dict[str, Array], frozenset[str]]:
    if not isinstance(listed, list):
        raise ViolationError("the answer has no list of outputs")
    known = {tensor.name: tensor for tensor in target.signature.outputs}
    outputs: dict[str, Array] = {}
    raw = []
    rest = tail or b""
    for one in listed:
        tensor, shape = _described(known, one)
        if tensor.name in outputs:
            raise ViolationError(f"output {tensor.name!r} comes twice")
        parameters = one.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise ViolationError(f"output {tensor.name!r} has parameters that are no JSON object")
        size = parameters.get("binary_data_size")
        if size is None:
            outputs[tensor.name] = from_json(tensor, shape, one.get("data"))
            continue
        if tail is None:
            raise ViolationError(f"output {tensor.name!r} is binary, the answer lacks {LENGTH}")
        if type(size) is not int or not 0 <= size <= len(rest):
            raise ViolationError(
                f"output {tensor.name!r} says {size} bytes of binary data, {len(rest)} are left"
            )
        outputs[tensor.name] = from_raw(tensor, shape, rest[:size])
        raw.append(tensor.name)
        rest = rest[size:]
    if rest:
        raise ViolationError(f"{len(rest)} bytes after the JSON belong to no output")
    return outputs, frozenset(raw)


def _described(known: Mapping[str, Tensor], one: Any) -> tuple[Tensor, tuple[int, ...]]:
    match one:
        case {"name": str(name), "datatype": str(datatype), "shape": list(shape)} if all(
            type(axis) is int and axis >= 0 for axis in shape
        ):
            pass
        case _:
            raise ViolationError(f"an output is {str(one)[:80]}; expected name, datatype and shape")
    tensor = known.get(name)
    if tensor is None:
        raise ViolationError(f"output {name!r} is not in the model's metadata")
    if datatype != tensor.datatype:
        raise ViolationError(
            f"output {name!r} has datatype {datatype}, the metadata say {tensor.datatype}"
        )
    fits = len(shape) == len(tensor.shape) and all(
        want in (-1, have) for have, want in zip(shape, tensor.shape, strict=False)
    )
    if not fits:
        raise ViolationError(
            f"output {name!r} has shape {shape}, the metadata say {list(tensor.shape)}"
        )
    return tensor, tuple(shape)
