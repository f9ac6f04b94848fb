"""Typed tensor contents to arrays and back.

Source: Open Inference Protocol v2 over gRPC, `InferTensorContents`. Raw contents are the same bytes
as in the binary tensor extension over HTTP: see `inferway.protocol.tensors`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.protocol import DTYPES
from inferway.protocol.refusal import RefusalError

FIELDS: Final = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Where the elements of each datatype are; FP16 has no field."""

_CARRIER: Final = {
    "bool_contents": np.bool_, "uint_contents": np.uint32, "uint64_contents": np.uint64,
    "int_contents": np.int32, "int64_contents": np.int64, "fp32_contents": np.float32,
    "fp64_contents": np.float64,
}  # fmt: skip


def from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> NDArray[Any]:
    """Read an array from an `InferTensorContents`.

    Parameters
    ----------
    name
        The input's, for messages.
    datatype
        A key of `DTYPES`.
    shape
        Every axis at least 1.
    contents
        The message.

    Raises
    ------
    RefusalError
        When the elements are in another datatype's field, out of range, too many or too few.
    """
    field = FIELDS.get(datatype)
    if field is None:
        raise RefusalError(
            400, f"input {name!r} is {datatype}, which only raw_input_contents can hold"
        )
    given = [descriptor.name for descriptor, _ in contents.ListFields()]
    if given != [field]:
        found = " and ".join(given) or "no contents"
        raise RefusalError(400, f"input {name!r} is {datatype} and has {found}, expected {field}")
    elements = getattr(contents, field)
    size = math.prod(shape)
    if len(elements) != size:
        raise RefusalError(
            400, f"input {name!r} has {len(elements)} elements, its shape {list(shape)} says {size}"
        )
    if datatype == "BYTES":
        strings = np.empty(size, np.object_)
        strings[:] = elements
        return strings.reshape(shape)
    array: NDArray[Any] = np.fromiter(elements, _CARRIER[field], size)
    dtype = DTYPES[datatype]
    if array.dtype != dtype:
        narrow = array.astype(dtype)
        if not np.array_equal(narrow, array):
            raise RefusalError(
                400, f"the contents of input {name!r} are out of the range of {datatype}"
            )
        array = narrow
    return array.reshape(shape)


def to_contents(datatype: str, array: NDArray[Any], contents: Any) -> None:
    """Write an output into an `InferTensorContents`; its datatype must be one of `FIELDS`."""
    values: list[Any] = array.ravel().tolist()
    if datatype == "BYTES":
        values = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
    getattr(contents, FIELDS[datatype]).extend(values)
