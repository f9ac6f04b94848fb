"""Models' inputs and outputs in the protocol's words, and what a request must be to fit them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from inferway.protocol.messages import InferParameters, TensorParameters

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8), "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32), "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8), "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32), "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16), "FP32": np.dtype(np.float32), "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}  # fmt: skip
"""Datatypes of the Open Inference Protocol v2 and the NumPy types that hold them."""

_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Name a NumPy type as the Open Inference Protocol does.

    Raises
    ------
    KeyError
        When the protocol has no name for the type (complex numbers, dates).
    """
    return _NAMES[np.dtype(dtype)]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output.

    Attributes
    ----------
    name
        As in the model.
    datatype
        A key of `DTYPES`.
    shape
        Axis lengths, -1 where any length goes. The first axis is the batch and always -1.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type of the elements."""
        return DTYPES[self.datatype]

    def __str__(self) -> str:
        return f"{self.name}: {self.datatype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a model, in its order; equal for all variants of a task."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def __str__(self) -> str:
        inputs, outputs = (", ".join(map(str, side)) for side in (self.inputs, self.outputs))
        return f"({inputs}) -> ({outputs})"


class RefusalError(ValueError):
    """Ends a request with an HTTP status and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def long_json(limit: int) -> str:
    """Say that the JSON of a request is too long, and what is not."""
    return (
        f"the JSON is larger than the limit of {limit} bytes; send large tensors in binary form, "
        "with Inference-Header-Content-Length and binary_data_size"
    )


class TaskSchema:
    """Checks what a request says of its inputs and outputs, whatever protocol brought it.

    Whatever does not fit the signature, or has a tensor of more `elements`, is a `RefusalError`.
    """

    def __init__(self, signature: Signature, elements: int) -> None:
        self.inputs = {tensor.name: tensor for tensor in signature.inputs}
        self.outputs = {tensor.name: tensor for tensor in signature.outputs}
        self.elements = elements
        self._expected = str(Signature(signature.inputs, ())).split(" -> ")[0]

    def input(
        self, name: str, datatype: str, shape: Iterable[int], before: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """Check what is said of an input, before its data is looked at; its shape.

        Every axis of it is at least 1; `before` are the request's inputs that have been taken.
        """
        tensor = self.inputs.get(name)
        if tensor is None:
            raise RefusalError(400, f"there is no input {name!r}; expected {self._expected}")
        if name in before:
            raise RefusalError(400, f"input {name!r} is given twice")
        if datatype != tensor.datatype:
            raise RefusalError(
                400, f"input {name!r} has datatype {datatype!r}, expected {tensor.datatype}"
            )
        given, expected, size = tuple(shape), tensor.shape, 1
        fits = len(given) == len(expected)
        for have, want in zip(given, expected):  # noqa: B905 - each request pays for a keyword
            fits = fits and have >= 1 and want in (have, -1)
            size *= have
        if not fits:
            raise RefusalError(
                400,
                f"input {name!r} has shape {list(given[:16])}, expected {list(expected)} "
                "with at least 1 where -1 stands",
            )
        if size > self.elements:
            raise RefusalError(
                413, f"input {name!r} has {size} elements, the limit is {self.elements}"
            )
        if before and given[0] != (rows := next(iter(before.values())).shape[0]):
            raise RefusalError(
                400, f"input {name!r} has {given[0]} rows and those before it have {rows}"
            )
        return given

    def complete(self, arrays: Mapping[str, Any]) -> None:
        """Check that all inputs have been taken."""
        if len(arrays) < len(self.inputs):
            missing = ", ".join(repr(name) for name in self.inputs if name not in arrays)
            raise RefusalError(400, f"the request lacks input {missing}; expected {self._expected}")

    def output(
        self, name: str, before: Container[str], parameters: TensorParameters | None
    ) -> Tensor:
        """Find a requested output, after those that have been."""
        tensor = self.outputs.get(name)
        if tensor is None:
            names = ", ".join(map(repr, self.outputs))
            raise RefusalError(400, f"there is no output {name!r}; there is {names}")
        if name in before:
            raise RefusalError(400, f"output {name!r} is requested twice")
        if parameters is not None and parameters.classification:
            raise RefusalError(501, "the classification extension is not offered")
        if parameters is not None and parameters.shared_memory_region is not None:
            raise RefusalError(501, "shared memory is not offered")
        return tensor


def check_parameters(parameters: InferParameters) -> None:
    """Check what a client says of a request as a whole; out of range is a `RefusalError`."""
    accuracy, deadline_ms = parameters.accuracy, parameters.deadline_ms
    if accuracy is not None and not 0.0 <= accuracy <= 1.0:
        raise RefusalError(400, f"accuracy is {accuracy}, expected 0 to 1")
    if deadline_ms is not None and not deadline_ms > 0.0:
        raise RefusalError(400, f"deadline_ms is {deadline_ms}, expected above 0")
