"""Tensor data as the protocol writes it: JSON, and raw little-endian bytes.

Written apart from the server's own codec, so that the two do not share a mistake.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.conformance.errors import ViolationError
from inferway.protocol import DTYPES, Tensor

Array = NDArray[Any]


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
    texts = np.empty(shape, np.object_)
    texts.ravel()[:] = [b"1" if bit else b"0" for bit in bits.ravel()]
    return texts


def to_json(array: Array, *, nested: bool = False) -> list[Any]:
    """List elements, flat in row-major order or nested as the shape says."""
    if array.dtype == np.object_:
        texts = np.empty(array.shape, np.object_)
        texts.ravel()[:] = [value.decode() for value in array.ravel()]
        array = texts
    listed: list[Any] = array.tolist() if nested else array.ravel().tolist()
    return listed


def to_raw(array: Array) -> bytes:
    """Give the elements' bytes in row-major order; BYTES have their length before them."""
    if array.dtype == np.object_:
        return b"".join(struct.pack("<I", len(value)) + value for value in array.ravel())
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def from_json(tensor: Tensor, shape: tuple[int, ...], data: Any) -> Array:
    """Read an output's elements.

    Raises
    ------
    ViolationError
        When they are not of the datatype, or not as many as the shape says.
    """
    name, size = tensor.name, math.prod(shape)
    if not isinstance(data, list):
        raise ViolationError(f"output {name!r} has no list of data")
    values = _flat(data)
    if len(values) != size:
        raise ViolationError(
            f"output {name!r} has {len(values)} elements, its shape {list(shape)} says {size}"
        )
    wrong = [value for value in values if not _is(tensor.datatype, value)]
    if wrong:
        raise ViolationError(f"output {name!r} of {tensor.datatype} has the element {wrong[0]!r}")
    if tensor.datatype == "BYTES":
        texts = np.empty(size, np.object_)
        texts[:] = [value.encode() for value in values]
        return texts.reshape(shape)
    try:
        # JSON has no NaN and no infinities; servers write null.
        numbers = [math.nan if value is None else value for value in values]
        with np.errstate(over="ignore"):
            return np.array(numbers, tensor.dtype).reshape(shape)
    except OverflowError:
        raise ViolationError(
            f"output {name!r} has elements out of the range of {tensor.datatype}"
        ) from None


def from_raw(tensor: Tensor, shape: tuple[int, ...], raw: bytes) -> Array:
    """Read an output's bytes.

    Raises
    ------
    ViolationError
        When they are not as many as datatype and shape say.
    """
    name, size = tensor.name, math.prod(shape)
    if tensor.datatype != "BYTES":
        expected = size * tensor.dtype.itemsize
        if len(raw) != expected:
            raise ViolationError(
                f"output {name!r} has {len(raw)} bytes, {tensor.datatype} of shape {list(shape)} "
                f"has {expected}"
            )
        read: Array = np.frombuffer(raw, tensor.dtype.newbyteorder("<")).reshape(shape)
        return read
    texts = np.empty(size, np.object_)
    at = 0
    for index in range(size):
        length = int.from_bytes(raw[at : at + 4], "little")
        texts[index] = raw[at + 4 : at + 4 + length]
        at += 4 + length
        if at > len(raw):
            raise ViolationError(f"output {name!r} ends in its element {index} of {size}")
    if at != len(raw):
        raise ViolationError(f"output {name!r} has {len(raw) - at} bytes after its last element")
    return texts.reshape(shape)


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


def _is(datatype: str, value: Any) -> bool:
    if datatype == "BOOL":
        return isinstance(value, bool)
    if datatype == "BYTES":
        return isinstance(value, str)
    if datatype.startswith("FP"):
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return isinstance(value, int) and not isinstance(value, bool)
