"""Inputs and outputs of a model, in the words of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
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
