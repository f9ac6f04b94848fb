"""Tensors on their way to a remote server and back: JSON, or raw bytes where it takes them.

Source: Open Inference Protocol v2 and its binary tensor extension.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.protocol import DTYPES, Signature, Tensor
from inferway.runtime.remote_failure import Fault, RemoteError
from inferway.unreadable import UNREADABLE, fault

Arrays = dict[str, NDArray[Any]]

_LENGTH: Final = struct.Struct("<I")
_FLAT: Final[dict[str, Any]] = {
    "BOOL": list[bool], "BYTES": list[str],
    **dict.fromkeys(("FP16", "FP32", "FP64"), list[float | None]),
}  # fmt: skip


class _Parameters(msgspec.Struct):
    binary_data_size: int | None = None


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: _Parameters | None = None
    data: msgspec.Raw = msgspec.Raw()


class _Answer(msgspec.Struct):
    outputs: list[_Output]


_decode_answer: Final = msgspec.json.Decoder(_Answer).decode


def encode(signature: Signature, inputs: Arrays, *, binary: bool) -> tuple[list[bytes], int | None]:
    """Write the body of an inference request.

    Parameters
    ----------
    signature
        Of the model.
    inputs
        One array per input, first axis the batch.
    binary
        Tensors as raw bytes in both directions, else as JSON.

    Returns
    -------
    parts
        Of the body, in order.
    json_length
        Bytes of its JSON, for the header of the binary tensor extension; None without it.

    Raises
    ------
    RemoteError
        When an element cannot be written in JSON.
    """
    described: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for tensor in signature.inputs:
        array = inputs[tensor.name]
        one: dict[str, Any] = {
            "name": tensor.name,
            "shape": array.shape,
            "datatype": tensor.datatype,
        }
        if binary:
            raw.append(_to_bytes(tensor, array))
            one["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            one["data"] = _to_json(tensor, array)
        described.append(one)
    wanted: list[dict[str, Any]] = [{"name": tensor.name} for tensor in signature.outputs]
    if binary:
        for one in wanted:
            one["parameters"] = {"binary_data": True}
    text = msgspec.json.encode({"inputs": described, "outputs": wanted})
    return [text, *raw], len(text) if binary else None


def decode(signature: Signature, rows: int, body: bytes, json_length: int | None) -> Arrays:
    """Read the body of an answer.

    Parameters
    ----------
    signature
        Of the model.
    rows
        Of the request: every output must have as many.
    body
        As it came.
    json_length
        What the answer's header says of it; None where raw bytes do not follow.

    Raises
    ------
    RemoteError
        When it is no answer that the signature allows.
    """
    at = len(body) if json_length is None else json_length
    try:
        answer = _decode_answer(memoryview(body)[:at])
    except UNREADABLE as error:
        raise _broken(f"is not one of the Open Inference Protocol: {fault(error)}") from None
    wanted = {tensor.name: tensor for tensor in signature.outputs}
    found: Arrays = {}
    for output in answer.outputs:
        size = None if output.parameters is None else output.parameters.binary_data_size
        start = at
        if size is not None:
            at += size
            if size < 0 or at > len(body):
                raise _broken(f"has fewer bytes than its output {output.name!r} announces")
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
        raise _broken(f"lacks the output {missing[0]!r}")
    return {name: found[name] for name in wanted}


def _broken(what: str) -> RemoteError:
    return RemoteError(Fault.BROKEN, f"the remote server's answer {what}")


def _shape(tensor: Tensor, output: _Output, rows: int) -> tuple[int, ...]:
    shape = tuple(output.shape)
    expected = (rows, *tensor.shape[1:])
    fits = len(shape) == len(expected) and all(
        have >= 0 and want in (-1, have) for want, have in zip(expected, shape, strict=True)
    )
    if not fits or output.datatype != tensor.datatype:
        raise _broken(
            f"has the output {output.name!r} as {output.datatype[:16]}{output.shape[:8]}, "
            f"expected {tensor.datatype}{list(expected)}"
        )
    return shape


def _to_json(tensor: Tensor, array: NDArray[Any]) -> list[Any]:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RemoteError(
            Fault.REFUSED,
            f"the input {tensor.name!r} holds NaN or infinity, which the remote server cannot be "
            "sent: it takes JSON only",
            unserved=True,
        )
    values: list[Any] = array.ravel().tolist()
    if tensor.datatype != "BYTES":
        return values
    try:
        return [value if isinstance(value, str) else bytes(value).decode() for value in values]
    except UnicodeDecodeError:
        raise RemoteError(
            Fault.REFUSED,
            f"the input {tensor.name!r} holds bytes that are not UTF-8, which the remote server "
            "cannot be sent: it takes JSON only",
            unserved=True,
        ) from None


def _to_bytes(tensor: Tensor, array: NDArray[Any]) -> bytes:
    if tensor.datatype != "BYTES":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    parts: list[bytes] = []
    for value in array.ravel().tolist():
        element = value.encode() if isinstance(value, str) else bytes(value)
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def _from_json(tensor: Tensor, shape: tuple[int, ...], data: msgspec.Raw) -> NDArray[Any]:
    name, size = tensor.name, math.prod(shape)
    kind = _FLAT.get(tensor.datatype, list[int])
    try:
        values = msgspec.json.decode(data, type=kind)
    except UNREADABLE:
        values = _unnested(tensor, data, kind)
    if len(values) != size:
        raise _broken(
            f"has {len(values)} elements in the output {name!r}, whose shape {list(shape)} "
            f"says {size}"
        )
    if tensor.datatype == "BYTES":
        texts = np.empty(size, np.object_)
        texts[:] = [value.encode() for value in values]
        return texts.reshape(shape)
    if kind == list[float | None] and None in values:
        # JSON has no NaN and no infinities; servers write null.
        values = [math.nan if value is None else value for value in values]
    try:
        with np.errstate(over="ignore"):
            return np.array(values, tensor.dtype).reshape(shape)
    except OverflowError:
        raise _broken(
            f"has elements in the output {name!r} that are out of the range of {tensor.datatype}"
        ) from None


def _unnested(tensor: Tensor, data: msgspec.Raw, kind: Any) -> list[Any]:
    wrong = _broken(f"has no list of {tensor.datatype} in the output {tensor.name!r}")
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
        return _read_texts(tensor, shape, raw)
    dtype = DTYPES[tensor.datatype].newbyteorder("<")
    if len(raw) != size * dtype.itemsize:
        raise _broken(
            f"has {len(raw)} bytes in the output {tensor.name!r}; {tensor.datatype} of shape "
            f"{list(shape)} has {size * dtype.itemsize}"
        )
    if tensor.datatype == "BOOL":
        return np.frombuffer(raw, np.uint8).astype(np.bool_).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


def _read_texts(tensor: Tensor, shape: tuple[int, ...], raw: bytes) -> NDArray[Any]:
    texts = np.empty(math.prod(shape), np.object_)
    at = 0
    for index in range(len(texts)):
        end = at + 4
        if end <= len(raw):
            end += _LENGTH.unpack_from(raw, at)[0]
        if end > len(raw) or end < at + 4:
            raise _broken(f"ends in element {index} of the output {tensor.name!r}")
        texts[index] = raw[at + 4 : end]
        at = end
    if at != len(raw):
        raise _broken(f"goes on after the last element of the output {tensor.name!r}")
    return texts.reshape(shape)
