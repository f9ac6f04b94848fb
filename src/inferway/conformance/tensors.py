"""Requests, and tensor data as the protocol writes it: JSON, and raw little-endian bytes.

Written apart from the server's own codec, so that the two do not share a mistake.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.conformance.client import ViolationError, expect
from inferway.protocol import DTYPES, Tensor

Array = NDArray[Any]

LENGTH: Final = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Input:
    """One input as it is sent, whatever the model says."""

    name: str
    datatype: str
    array: Array
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """An inference request."""

    inputs: tuple[Input, ...]  # In the order in which they are sent
    nested: bool = False  # Whether JSON data are nested as their shape, or flat
    # What the JSON has besides: id, parameters, outputs.
    fields: Mapping[str, Any] = field(default_factory=dict)

    def having(self, **fields: Any) -> Message:
        """Add fields to the JSON."""
        return replace(self, fields={**self.fields, **fields})

    def raw(self, *, raw: bool = True) -> Message:
        """Send all inputs as raw bytes, or all as JSON."""
        return replace(self, inputs=tuple(replace(one, raw=raw) for one in self.inputs))

    def first(self, **changes: Any) -> Message:
        """Change the first input."""
        return replace(self, inputs=(replace(self.inputs[0], **changes), *self.inputs[1:]))

    @property
    def document(self) -> dict[str, Any]:
        """The JSON part as Python has it."""
        inputs = [
            {"name": one.name, "shape": list(one.array.shape), "datatype": one.datatype}
            | (
                {"parameters": {"binary_data_size": len(to_raw(one.array))}}
                if one.raw
                else {"data": to_json(one.array, nested=self.nested)}
            )
            for one in self.inputs
        ]
        return {**self.fields, "inputs": inputs}

    @property
    def tail(self) -> bytes:
        """The raw inputs, one after the other."""
        return b"".join(to_raw(one.array) for one in self.inputs if one.raw)

    def encode(self) -> tuple[bytes, dict[str, str]]:
        """Write body and headers."""
        return packed(self.document, self.tail)


def packed(document: Any, tail: bytes = b"") -> tuple[bytes, dict[str, str]]:
    """Write JSON and raw bytes as one body, with the headers that it needs."""
    text = json.dumps(document).encode()
    if not tail:
        return text, {"Content-Type": "application/json"}
    return text + tail, {"Content-Type": "application/octet-stream", LENGTH: str(len(text))}


def draw(random: np.random.Generator, datatype: str, shape: tuple[int, ...]) -> Array:
    """Draw values that any model can take.

    Integers are 0 or 1, because they may be indices; floats are multiples of 1/64 in 0..1, which
    every float datatype holds exactly; BYTES are the texts `0` and `1`.

    Parameters
    ----------
    random
        Where from.
    datatype
        A key of `DTYPES`.
    shape
        Every axis at least 1.
    """
    if datatype.startswith("FP"):
        return (random.integers(0, 65, shape) / 64).astype(DTYPES[datatype])
    bits = random.integers(0, 2, shape)
    if datatype != "BYTES":
        return bits.astype(DTYPES[datatype])
    return _objects([b"1" if bit else b"0" for bit in bits.ravel()], shape)


def _objects(values: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array.reshape(shape)


def to_json(array: Array, *, nested: bool = False) -> list[Any]:
    """List elements, flat in row-major order or nested as the shape says."""
    if array.dtype == np.object_:
        array = _objects([value.decode() for value in array.ravel()], array.shape)
    listed: list[Any] = array.tolist() if nested else array.ravel().tolist()
    return listed


def to_raw(array: Array) -> bytes:
    """Give the elements' bytes in row-major order; BYTES have their length before them."""
    if array.dtype == np.object_:
        return b"".join(struct.pack("<I", len(value)) + value for value in array.ravel())
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def from_json(tensor: Tensor, shape: tuple[int, ...], data: Any) -> Array:
    """Read an output's elements; a violation if they do not fit its datatype or its shape."""
    output, size = f"output {tensor.name!r}", math.prod(shape)
    expect(isinstance(data, list), f"{output} has no list of data")
    values = _flat(data)
    expect(
        len(values) == size,
        f"{output} has {len(values)} elements, its shape {list(shape)} says {size}",
    )
    if wrong := [value for value in values if not _is(tensor.datatype, value)]:
        raise ViolationError(f"{output} of {tensor.datatype} has the element {wrong[0]!r}")
    if tensor.datatype == "BYTES":
        return _objects([value.encode() for value in values], shape)
    try:
        # JSON has no NaN and no infinities; servers write null.
        numbers = [math.nan if value is None else value for value in values]
        with np.errstate(over="ignore"):
            return np.array(numbers, tensor.dtype).reshape(shape)
    except OverflowError:
        raise ViolationError(
            f"{output} has elements out of the range of {tensor.datatype}"
        ) from None


def from_raw(tensor: Tensor, shape: tuple[int, ...], raw: bytes) -> Array:
    """Read an output's bytes; a violation if they are not as many as datatype and shape say."""
    output, size = f"output {tensor.name!r}", math.prod(shape)
    if tensor.datatype != "BYTES":
        expected = size * tensor.dtype.itemsize
        kind = f"{tensor.datatype} of shape {list(shape)}"
        expect(len(raw) == expected, f"{output} has {len(raw)} bytes, {kind} has {expected}")
        return np.frombuffer(raw, tensor.dtype.newbyteorder("<")).reshape(shape)
    texts, at = [], 0
    for index in range(size):
        length = int.from_bytes(raw[at : at + 4], "little")
        texts.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
        expect(at <= len(raw), f"{output} ends in its element {index} of {size}")
    expect(at == len(raw), f"{output} has {len(raw) - at} bytes after its last element")
    return _objects(texts, shape)


def alike(one: Array, other: Array) -> bool:
    """Tell whether two outputs are the same up to rounding."""
    if one.shape != other.shape:
        return False
    if one.dtype.kind == "f":
        tolerance = 1e-2 if one.dtype == np.float16 else 1e-4
        return bool(np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True))
    return bool((one == other).all())


def _flat(data: list[Any]) -> list[Any]:
    flat: list[Any] = []
    rest = data[::-1]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value[::-1]
        else:
            flat.append(value)
    return flat


_KINDS: Final = {"BOOL": bool, "BYTES": str}


def _is(datatype: str, value: Any) -> bool:
    if kind := _KINDS.get(datatype):
        return isinstance(value, kind)
    if isinstance(value, bool):
        return False
    fractional = datatype.startswith("FP")
    return isinstance(value, int) or (fractional and (value is None or isinstance(value, float)))
