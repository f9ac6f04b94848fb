"""Labeled data in a file: rows of inputs, and what the right answer to each is.

A model's signature says what an input must be. Numbers are converted where each keeps its value, up
to the rounding of floats; anything else is refused. Inputs of floats may hold NaN, for some models
take it for a value that is missing; of a table it is an empty cell.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.errors import nearest
from inferway.protocol import Signature, Tensor

if TYPE_CHECKING:
    import pyarrow as pa

Arrays = dict[str, NDArray[Any]]

SUFFIXES: Final = (".npz", ".csv", ".parquet")
LABELS: Final = "labels"  # the array of an npz
LABEL: Final = "label"  # the column of a table
GROUPS: Final = "groups"
PLAIN_INPUT: Final = "input"  # of a table, where no signature names one

_LARGEST_BLOCK: Final = 2**31 - 1


class DataError(ValueError):
    """Labeled data that cannot be used, with one sentence that says why."""


@dataclass(frozen=True)
class LabeledData:
    """Rows of inputs with their labels.

    Attributes
    ----------
    inputs
        One array per input of the model, each of shape [N, ...].
    labels
        Shape [N] or, where an answer is more than one value, [N, ...]. Texts are of type str.
    groups
        int64 of shape [N]: rows of one number are alike, such as pictures of one person. None where
        each row stands alone.
    digest
        Hash of the file, as ``sha256:`` and 64 hexadecimal digits.
    """

    inputs: Arrays
    labels: NDArray[Any]
    groups: NDArray[np.int64] | None
    digest: str

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    def part(self, rows: NDArray[np.int64] | slice) -> LabeledData:
        """Keep these rows alone, by their numbers."""
        return LabeledData(
            {name: array[rows] for name, array in self.inputs.items()},
            self.labels[rows],
            None if self.groups is None else self.groups[rows],
            self.digest,
        )


class Halves(NamedTuple):
    """Numbers of rows, in order: those for confidence bins, and those for accuracies."""

    bins: NDArray[np.int64]
    accuracy: NDArray[np.int64]


def halves(data: LabeledData, seed: int) -> Halves:
    """Split rows at random into two halves; rows of one group are never parted.

    Raises
    ------
    DataError
        When there is but one row, or one group.
    """
    groups = np.arange(data.rows) if data.groups is None else data.groups
    size = np.bincount(groups)
    if len(size) < 2:
        what = "row" if data.groups is None else "group"
        raise DataError(f"one {what} cannot be split into two halves")
    order = np.random.default_rng(seed).permutation(len(size))
    total = np.cumsum(size[order])
    # Of the ends of groups the one nearest to the middle; each half has a group at least.
    cut = int(np.abs(2 * total[:-1] - data.rows).argmin()) + 1
    first = np.isin(groups, order[:cut])
    return Halves(np.flatnonzero(first), np.flatnonzero(~first))


def read(path: Path, signature: Signature | None, *, group: str | None = None) -> LabeledData:
    """Read labeled data.

    Parameters
    ----------
    path
        ``.npz`` with one array per input, by its name, and ``labels``; or ``.csv`` with a first
        line of names, or ``.parquet``, with a column ``label``. The other columns of a table are,
        in order, one row of the model's only input; where it has several inputs, each is a column
        of its name.
    signature
        The model's. None takes the arrays of an npz as they are, and the columns of a table as one
        input of FP32.
    group
        Array or column that says which rows are alike. By default the array ``groups`` of an npz,
        and none of a table.

    Raises
    ------
    DataError
        When the file cannot be read, holds no rows or no labels, or does not fit the signature.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: labeled data come as {', '.join(SUFFIXES[:-1])} or .parquet")
    try:
        with path.open("rb") as file:
            digest = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError as error:
        raise DataError(f"{path}: cannot read the data: {error.strerror}") from None
    try:
        inputs, labels, groups = (_read_npz if suffix == ".npz" else _read_table)(
            path, signature, group
        )
        _check_labels(labels)
        for name, array in inputs.items():
            if len(array) != len(labels):
                raise DataError(f"{name!r} has {len(array)} rows and the labels have {len(labels)}")
        codes = None if groups is None else _codes(groups, len(labels))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return LabeledData(inputs, labels, codes, digest)


def _read_npz(
    path: Path, signature: Signature | None, group: str | None
) -> tuple[Arrays, NDArray[Any], NDArray[Any] | None]:
    try:
        with path.open("rb") as file:  # of its own, NumPy leaves one open where it is no zip
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise DataError("the file holds one array; write it with numpy.savez")
            with loaded:
                arrays = {name: loaded[name] for name in loaded.files}
    except DataError:
        raise
    except ValueError as error:
        if "Object arrays" in str(error):
            raise DataError(
                "an array holds Python objects, which are never unpickled; save texts as an array "
                "of type str"
            ) from None
        raise DataError("not a whole npz file; write it with numpy.savez") from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError) as error:
        raise DataError(f"not a whole npz file: {_line(error)}") from None
    labels = _taken(arrays, LABELS, f"there is no array {LABELS!r}", "an array")
    groups = arrays.pop(GROUPS, None) if group is None else None
    if group is not None:
        groups = _taken(arrays, group, f"there is no array {group!r}, which is to group", "it")
    if not arrays:
        raise DataError("there is no array besides the labels")
    for name, array in [*arrays.items(), (LABELS, labels)]:
        if not array.ndim:
            raise DataError(f"the array {name!r} is a single value, not one per row")
        if not array.size:
            raise DataError(f"the array {name!r} is empty")
    if signature is None:
        return {name: _plain(name, array) for name, array in arrays.items()}, _text(labels), groups
    _check_names(arrays, [tensor.name for tensor in signature.inputs], "array")
    inputs = {tensor.name: _fitted(tensor, arrays[tensor.name]) for tensor in signature.inputs}
    return inputs, _text(labels), groups


def _taken(arrays: Arrays, name: str, missing: str, what: str) -> NDArray[Any]:
    if name not in arrays:
        raise DataError(f"{missing}; the file holds {', '.join(arrays) or 'nothing'}")
    return arrays.pop(name)


def _read_table(
    path: Path, signature: Signature | None, group: str | None
) -> tuple[Arrays, NDArray[Any], NDArray[Any] | None]:
    table = _csv(path) if path.suffix.lower() == ".csv" else _parquet(path)
    names = list(table.column_names)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"there are {names.count(name)} columns {name!r}")
    for name, what in ((LABEL, ""), (group, ", which is to group")):
        if name is not None and name not in names:
            shown = ", ".join(map(str, names[:12])) + ", ..." * (len(names) > 12)
            raise DataError(f"there is no column {name!r}{what}; the columns are {shown}")
    if not table.num_rows:
        raise DataError("there is no row below the names of the columns")
    labels, groups = _column(table, LABEL), None if group is None else _column(table, group)
    rest = [name for name in names if name not in (LABEL, group)]
    if not rest:
        raise DataError("there is no column besides the labels")
    if signature is not None and len(signature.inputs) > 1:
        _check_names(rest, [tensor.name for tensor in signature.inputs], "column")
        inputs = {
            one.name: _fitted(one, _cells(table, [one.name], one)) for one in signature.inputs
        }
        return inputs, labels, groups
    if signature is None:
        tensor = Tensor(PLAIN_INPUT, "FP32", (-1, len(rest)))
    else:
        (tensor,) = signature.inputs
    return {tensor.name: _fitted(tensor, _cells(table, rest, tensor))}, labels, groups


def _csv(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv

    # Types are found by the first block; of one block they hold for all rows.
    block = min(max(path.stat().st_size, 1) + 1, _LARGEST_BLOCK)
    try:
        return csv.read_csv(
            path,
            read_options=csv.ReadOptions(block_size=block),
            convert_options=csv.ConvertOptions(null_values=[""], strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise DataError("the file is empty") from None
        raise DataError(f"not a table of comma-separated values: {_line(error)}") from None


def _parquet(path: Path) -> pa.Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"not a whole Parquet file: {_line(error)}") from None


def _column(table: pa.Table, name: str, *, gaps: bool = False) -> NDArray[Any]:
    """Read a column of numbers or texts, none of which is missing.

    With `gaps`, a number may be missing, and is NaN.
    """
    import pyarrow as pa

    column = table.column(name)
    if gaps and column.null_count and _is_numeric(column.type):
        column = column.cast(pa.float64(), safe=False).fill_null(math.nan)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_binary(column.type):
        try:
            column = column.cast(pa.string())
        except pa.ArrowInvalid:
            raise DataError(f"column {name!r} holds bytes that are not UTF-8") from None
    if column.null_count:
        missing = int(np.argmax(np.asarray(column.is_null())))
        raise DataError(f"column {name!r} is empty in row {missing + 1}")
    values = np.asarray(column.to_numpy())
    if values.dtype.kind == "M":
        values = values.astype(str)
    if values.dtype == object:
        values = _text(values)
    if values.dtype.kind not in "biufU":
        raise DataError(f"column {name!r} holds neither numbers nor texts")
    return values


def _cells(table: pa.Table, names: Sequence[str], tensor: Tensor) -> NDArray[Any]:
    """Put columns side by side, shape [N, columns], or whatever rows the input has."""
    width = _width(tensor, len(names))
    gaps = tensor.datatype.startswith("FP")
    columns = [_column(table, name, gaps=gaps) for name in names]
    if tensor.datatype != "BYTES":
        for name, column in zip(names, columns, strict=True):
            if column.dtype.kind == "U":
                row = next((i for i, text in enumerate(column) if not _is_number(text)), 0)
                text = str(column[row])[:40]
                raise DataError(f"column {name!r} holds the text {text!r} in row {row + 1}")
        wide = np.result_type(*columns) if columns else np.dtype(np.float64)
        return np.stack([one.astype(wide) for one in columns], axis=1).reshape(-1, *width)
    return np.stack([one.astype(str) for one in columns], axis=1).reshape(-1, *width)


def _is_numeric(kind: pa.DataType) -> bool:
    """Tell columns of numbers and flags, and those in which nothing is, from all others."""
    import pyarrow as pa

    is_kind = pa.types
    return bool(
        is_kind.is_integer(kind)
        or is_kind.is_floating(kind)
        or is_kind.is_boolean(kind)
        or is_kind.is_null(kind)
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _width(tensor: Tensor, columns: int) -> tuple[int, ...]:
    """Tell the shape of a row of an input that so many columns make."""
    axes = tensor.shape[1:]
    open_axes = axes.count(-1)
    fixed = int(np.prod([length for length in axes if length != -1], initial=1))
    if open_axes == 0 and fixed == columns:
        return axes
    if open_axes == 1 and columns % fixed == 0:
        return tuple(columns // fixed if length == -1 else length for length in axes)
    values = f"{columns} column" + "s" * (columns != 1)
    raise DataError(
        f"{values} besides the labels make no row of input {tensor}; write such data as .npz"
        if open_axes > 1
        else f"{values} besides the labels do not make a row of input {tensor}"
    )


def _check_names(names: Iterable[str], wanted: Sequence[str], noun: str) -> None:
    given = list(names)
    for name in wanted:
        if name not in given:
            raise DataError(
                f"there is no {noun} {name!r}, which is an input of the model; "
                f"{nearest(name, given)}"
            )
    for name in given:
        if name not in wanted:
            raise DataError(
                f"the {noun} {name!r} is no input of the model; {nearest(name, wanted)}"
            )


def _check_labels(labels: NDArray[Any]) -> None:
    if labels.dtype.kind not in "biufU":
        raise DataError(f"the labels are of type {labels.dtype}, neither numbers nor texts")
    if labels.dtype.kind == "f" and (row := _first(~np.isfinite(labels))) is not None:
        raise DataError(f"the label of row {row + 1} is {labels[row]}")


def _codes(groups: NDArray[Any], rows: int) -> NDArray[np.int64]:
    """Number the groups."""
    if groups.shape != (rows,):
        raise DataError(
            f"the groups have shape {list(groups.shape)}, not one for each of {rows} rows"
        )
    groups = _text(groups)
    if groups.dtype.kind == "f" and (row := _first(~np.isfinite(groups))) is not None:
        raise DataError(f"the group of row {row + 1} is {groups[row]}")
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)


def _fitted(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Convert an array to an input's type, where it is of its shape and each value fits."""
    shape, wanted = array.shape[1:], tensor.shape[1:]
    if len(shape) != len(wanted) or any(
        want not in (-1, have) for have, want in zip(shape, wanted, strict=True)
    ):
        raise DataError(
            f"{tensor.name!r} has rows of shape {list(shape)}, and the input is {tensor}"
        )
    if tensor.datatype == "BYTES":
        if array.dtype.kind not in "US":
            raise DataError(f"{tensor.name!r} holds {array.dtype}, and the input is {tensor}")
        texts = np.empty(array.shape, object)
        texts[...] = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
        return texts
    given, target = array.dtype, tensor.dtype
    # A number may become a float, and an integer another integer; only a flag a flag.
    kinds = {"f": "iufb", "i": "iu", "u": "iu", "b": "b"}[target.kind]
    if given.kind not in kinds:
        raise DataError(f"{tensor.name!r} holds {given}, and the input is {tensor}")
    with np.errstate(over="ignore"):
        fitted = array.astype(target)
    lost = fitted != array if target.kind in "iu" else np.isinf(fitted) & np.isfinite(array)
    if (row := _first(lost)) is not None:
        value = array[row].ravel()[np.argmax(lost[row].ravel())]
        raise DataError(
            f"{tensor.name!r} holds {value} in row {row + 1}, which is no {tensor.datatype}"
        )
    return np.ascontiguousarray(fitted)


def _plain(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Take an array as it is, for a model that says nothing of its inputs."""
    array = _text(array)
    if array.dtype.kind == "U":
        return np.char.encode(array, "utf-8").astype(object)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name!r} is of type {array.dtype}, neither numbers nor texts")
    return array


def _text(array: NDArray[Any]) -> NDArray[Any]:
    """Turn bytes and text objects into an array of str; anything else stays."""
    try:
        if array.dtype.kind == "S":
            return np.char.decode(array, "utf-8")
        if array.dtype == object and all(isinstance(one, str) for one in array.ravel()):
            return array.astype(str)
    except UnicodeDecodeError:
        raise DataError("a text is not UTF-8") from None
    return array


def _first(wrong: NDArray[np.bool_]) -> int | None:
    """Find the first row that holds a true value; None for none."""
    rows = wrong.reshape(len(wrong), -1).any(axis=1)
    return int(rows.argmax()) if rows.any() else None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
