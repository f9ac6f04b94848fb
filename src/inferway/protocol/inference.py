"""Inference as a client speaks it: the body of a request, and the arrays of its answer.

Source: Open Inference Protocol v2 and its binary tensor extension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.protocol.messages import RemoteAnswer, RemoteOutput
from inferway.protocol.signature import DTYPES, Signature, Tensor
from inferway.protocol.tensors import UnevenError, flat_numbers, listed, texts, to_bytes
from inferway.unreadable import UNREADABLE, fault

Arrays = dict[str, NDArray[Any]]
Parameters = Mapping[str, str | float | bool]

_FLAT: Final[dict[str, Any]] = {
    "BOOL": list[bool], "BYTES": list[str],
    **dict.fromkeys(("FP16", "FP32", "FP64"), list[float | None]),
}  # fmt: skip
_decode_answer: Final = msgspec.json.Decoder(RemoteAnswer).decode


class UnwritableError(ValueError):
    """An input has elements that JSON cannot carry."""


class AnswerError(ValueError):
    """An answer is none that the signature allows; the message goes on after "the answer"."""


def content_lines(json_length: int | None) -> bytes:
    """Write the header lines that say what a body holds: JSON alone, or raw bytes after it."""
    if json_length is None:
        return b"Content-Type: application/json\r\n"
    return (
        b"Content-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\n" % json_length
    )


def encode(
    inputs: Iterable[tuple[Tensor, NDArray[Any]]],
    outputs: Sequence[Tensor],
    *,
    binary: bool,
    parameters: Parameters | None = None,
    numbers: Callable[[Tensor, NDArray[Any]], Any] | None = None,
) -> tuple[list[bytes], int | None]:
    """Write the body of an inference request.

    Inputs are given each with its array, whose first axis is the batch; the outputs are those that
    are wanted back. Tensors go as raw bytes in both directions where that is `binary`, else as
    JSON, into which `numbers` writes an array, or a plain list does. Returns the body in parts, and
    the bytes of its JSON for the header of the binary tensor extension, None without it.

    Raises
    ------
    UnwritableError
        When an element cannot be written in JSON.
    """
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for tensor, array in inputs:
        one: dict[str, Any] = {
            "name": tensor.name,
            "shape": array.shape,
            "datatype": tensor.datatype,
        }
        if binary:
            raw.append(to_bytes(tensor.datatype, array))
            one["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            one["data"] = (numbers or _to_json)(tensor, array)
        described.append(one)
    wanted: list[dict[str, Any]] = [{"name": tensor.name} for tensor in outputs]
    if binary:
        for one in wanted:
            one["parameters"] = {"binary_data": True}
    message: dict[str, Any] = {"inputs": described, "outputs": wanted}
    if parameters:
        message["parameters"] = parameters
    text = msgspec.json.encode(message)
    return [text, *raw], len(text) if binary else None


def decode(signature: Signature, rows: int, body: bytes, json_length: int | None) -> Arrays:
    """Read the body of an answer to a request of so many rows; its outputs in their order.

    The answer's header says how long the JSON is, None where raw bytes do not follow.

    Raises
    ------
    AnswerError
        When it is no answer that the signature allows.
    """
    at = len(body) if json_length is None else json_length
    try:
        answer = _decode_answer(memoryview(body)[:at])
    except UNREADABLE as error:
        raise AnswerError(f"is not one of the Open Inference Protocol: {fault(error)}") from None
    wanted = {tensor.name: tensor for tensor in signature.outputs}
    found: Arrays = {}
    for output in answer.outputs:
        size = None if output.parameters is None else output.parameters.binary_data_size
        start = at
        if size is not None:
            at += size
            if size < 0 or at > len(body):
                raise AnswerError(f"has fewer bytes than its output {output.name!r} announces")
        tensor = wanted.get(output.name)
        if tensor is None:
            continue  # more than was asked for does no harm
        shape = _shape(tensor, output, rows)
        if size is None:
            found[tensor.name] = _from_json(tensor, shape, output.data)
        else:
            found[tensor.name] = _from_bytes(tensor, shape, body[start:at])
    missing = [name for name in wanted if name not in found]
    if missing:
        raise AnswerError(f"lacks the output {missing[0]!r}")
    return {name: found[name] for name in wanted}


def _shape(tensor: Tensor, output: RemoteOutput, rows: int) -> tuple[int, ...]:
    shape = tuple(output.shape)
    expected = (rows, *tensor.shape[1:])
    fits = len(shape) == len(expected) and all(
        have >= 0 and want in (-1, have) for want, have in zip(expected, shape, strict=True)
    )
    if not fits or output.datatype != tensor.datatype:
        raise AnswerError(
            f"has the output {output.name!r} as {output.datatype[:16]}{output.shape[:8]}, "
            f"expected {tensor.datatype}{list(expected)}"
        )
    return shape


def _to_json(tensor: Tensor, array: NDArray[Any]) -> list[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise UnwritableError(
            f"the input {tensor.name!r} holds NaN or infinity, which the remote server cannot be "
            "sent: it takes JSON only"
        )
    try:
        return listed(tensor.datatype, array)
    except UnicodeDecodeError:
        raise UnwritableError(
            f"the input {tensor.name!r} holds bytes that are not UTF-8, which the remote server "
            "cannot be sent: it takes JSON only"
        ) from None


def _from_json(tensor: Tensor, shape: tuple[int, ...], data: msgspec.Raw) -> NDArray[Any]:
    name, size = tensor.name, math.prod(shape)
    flat = flat_numbers(tensor.datatype, bytes(data))
    if flat is not None and flat.size == size:
        return flat.reshape(shape)
    kind = _FLAT.get(tensor.datatype, list[int])
    try:
        values = msgspec.json.decode(data, type=kind)
    except UNREADABLE:
        values = _unnested(tensor, data, kind)
    if len(values) != size:
        raise AnswerError(
            f"has {len(values)} elements in the output {name!r}, whose shape {list(shape)} "
            f"says {size}"
        )
    if tensor.datatype == "BYTES":
        strings = np.empty(size, np.object_)
        strings[:] = [value.encode() for value in values]
        return strings.reshape(shape)
    if kind == list[float | None] and None in values:
        # JSON has no NaN and no infinities; servers write null.
        values = [math.nan if value is None else value for value in values]
    try:
        with np.errstate(over="ignore"):
            return np.array(values, tensor.dtype).reshape(shape)
    except OverflowError:
        raise AnswerError(
            f"has elements in the output {name!r} that are out of the range of {tensor.datatype}"
        ) from None


def _unnested(tensor: Tensor, data: msgspec.Raw, kind: Any) -> list[Any]:
    wrong = AnswerError(f"has no list of {tensor.datatype} in the output {tensor.name!r}")
    try:
        rest = msgspec.json.decode(data)
    except UNREADABLE:
        raise wrong from None
    if not isinstance(rest, list):
        raise wrong
    flat: list[Any] = []
    rest.reverse()
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value[::-1]
        else:
            flat.append(value)
    try:
        values: list[Any] = msgspec.convert(flat, kind)
    except msgspec.ValidationError:
        raise wrong from None
    return values


def _from_bytes(tensor: Tensor, shape: tuple[int, ...], raw: bytes) -> NDArray[Any]:
    size = math.prod(shape)
    if tensor.datatype == "BYTES":
        return _texts(tensor, raw, size).reshape(shape)
    dtype = DTYPES[tensor.datatype].newbyteorder("<")
    if len(raw) != size * dtype.itemsize:
        raise AnswerError(
            f"has {len(raw)} bytes in the output {tensor.name!r}; {tensor.datatype} of shape "
            f"{list(shape)} has {size * dtype.itemsize}"
        )
    if tensor.datatype == "BOOL":
        return np.frombuffer(raw, np.uint8).astype(np.bool_).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


def _texts(tensor: Tensor, raw: bytes, count: int) -> NDArray[np.object_]:
    try:
        return texts(raw, 0, len(raw), count)
    except UnevenError as error:
        where = (
            "goes on after the last element" if error.left else f"ends in element {error.element}"
        )
        raise AnswerError(f"{where} of the output {tensor.name!r}") from None
