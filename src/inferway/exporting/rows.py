"""Rows on which an exported model is compared with its source: a file's, or made up by a seed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.exporting.model import ExportError
from inferway.profiling.data import read
from inferway.protocol import DTYPES, Signature, Tensor
from inferway.runtime import Arrays

_INPUT: Final = re.compile(r"(?P<name>[^=]+)=(?P<datatype>\w+)(?:\[(?P<shape>[-\d,\s]*)\])?")
# Made-up rows: as many as have so many elements, within limits.
_ELEMENTS: Final = 2**20
_FEWEST, _MOST = 8, 256
# Length that an open axis gets, and the least that an integer is below: indices of few entries.
_OPEN: Final = 8
_BELOW: Final = 10


def tensor(text: str) -> Tensor:
    """Read an input as a command line names it, such as ``x=FP32[64]``.

    The shape is that of one row. One that begins with -1 has the batch already, as signatures are
    printed; further -1 are axes of any length.

    Raises
    ------
    ValueError
        Where the text is no input.
    """
    match = _INPUT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an input such as x=FP32[64]")
    if match["datatype"] not in DTYPES:
        raise ValueError(f"{match['datatype']!r} is no datatype; there is {', '.join(DTYPES)}")
    try:
        shape = tuple(int(axis) for axis in (match["shape"] or "").split(",") if axis.strip())
    except ValueError:
        raise ValueError(f"{text!r} has a shape that is no list of whole numbers") from None
    shape = shape if shape[:1] == (-1,) else (-1, *shape)
    if any(axis == 0 or axis < -1 for axis in shape):
        raise ValueError(f"{text!r} has an axis that is neither 1 or more nor -1")
    return Tensor(match["name"].strip(), match["datatype"], shape)


def from_file(path: Path, inputs: tuple[Tensor, ...], features: Sequence[str] = ()) -> Arrays:
    """Read rows of the inputs from labeled data.

    Parameters
    ----------
    path
        As `inferway.profiling.read` takes it.
    inputs
        Of the model.
    features
        Names of the columns that the model was fitted on, in their order; empty where it has none.

    Raises
    ------
    ValueError
        When the file cannot be read, does not fit, or has a table's columns in another order.
    """
    rows = read(path, Signature(inputs, ()))
    columns = _columns(path) if features and len(inputs) == 1 else None
    if columns is not None and columns != list(features):
        first, given = next(
            pair for pair in zip(features, [*columns, ""], strict=False) if pair[0] != pair[1]
        )
        raise ExportError(
            f"{path}: the columns are not those that the model was fitted on, in their order: "
            f"{given!r} stands where {first!r} is expected"
        )
    return rows.inputs


def _columns(path: Path) -> list[str] | None:
    """Names of a table's columns besides the label; None of what is no table."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    match path.suffix.lower():
        case ".csv":
            with csv.open_csv(path) as reader:
                names = reader.schema.names
        case ".parquet":
            names = parquet.read_schema(path).names
        case _:
            return None
    assert isinstance(names, list), pa.__version__
    return [name for name in names if name != "label"]


def count(inputs: Sequence[Tensor]) -> int:
    """Tell how many rows to make up: fewer of what is large."""
    elements = sum(math.prod(_lengths(one)) for one in inputs)
    return min(_MOST, max(_FEWEST, _ELEMENTS // max(1, elements)))


def made_up(
    inputs: Sequence[Tensor],
    rows: int,
    generator: np.random.Generator,
    values: Mapping[str, Sequence[Any]] | None = None,
) -> Arrays:
    """Make rows of standard normal numbers, of small integers, and of the values that are known.

    Parameters
    ----------
    inputs
        What to make rows of.
    rows
        How many.
    generator
        Where all randomness comes from.
    values
        By input, the only values that make sense. Texts need some.

    Raises
    ------
    ExportError
        Where an input is text and no values are known.
    """
    made: Arrays = {}
    for one in inputs:
        shape = (rows, *_lengths(one))
        known = (values or {}).get(one.name)
        if known is not None and len(known):
            drawn = np.asarray(known)[generator.integers(len(known), size=shape)]
            texts = one.datatype == "BYTES"
            made[one.name] = _encoded(drawn) if texts else drawn.astype(one.dtype)
            continue
        match one.dtype.kind:
            case "O":
                raise ExportError(
                    f"no rows can be made up for input {one}: give some with --data FILE"
                )
            case "f":
                made[one.name] = generator.standard_normal(shape).astype(one.dtype)
            case "b":
                made[one.name] = generator.random(shape) < 0.5
            case _:
                made[one.name] = generator.integers(_BELOW, size=shape).astype(one.dtype)
    return made


def _lengths(one: Tensor) -> tuple[int, ...]:
    return tuple(_OPEN if axis == -1 else axis for axis in one.shape[1:])


def _encoded(texts: NDArray[Any]) -> NDArray[np.object_]:
    encoded: NDArray[np.object_] = np.frompyfunc(lambda text: str(text).encode(), 1, 1)(texts)
    return encoded
