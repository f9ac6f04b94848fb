"""The first column of a CSV file as numbers: recorded arrival times, measured service times."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class ColumnError(ValueError):
    """A file whose first column cannot be read, with one sentence that names file and line."""


def read_column(path: Path) -> NDArray[np.float64]:
    """Read (n,) finite numbers of 0 or more, n >= 1; a first line of words is a heading.

    ColumnError if the file cannot be read or holds anything else.
    """
    return np.fromiter((value for _, value in _values(path)), np.float64)


def time_pieces(path: Path, size: int = 65_536) -> Iterator[NDArray[np.float64]]:
    """Read arrival times: seconds, or timestamps as ``2023-11-16 18:17:03.9799600``.

    Seconds are kept as they are; timestamps count from the first one. They come in sorted pieces of
    at most `size`, s, one at least. ColumnError as `read_column`, and if a time is before the one
    above it, when the piece with the bad line is asked for.
    """
    values = _values(path)
    last = -math.inf
    while piece := list(islice(values, size)):
        for line, value in piece:
            if value < last:
                back = f"from {last:g} s to {value:g} s"
                raise ColumnError(f"{path} line {line}: the time goes back, {back}")
            last = value
        yield np.array([value for _, value in piece])


def _values(path: Path) -> Iterator[tuple[int, float]]:
    cells = _cells(path)
    first = next(cells, None)
    if first is not None and not (first[1][0].isdigit() or first[1][0] in "-+."):
        first = next(cells, None)
    if first is None:
        raise ColumnError(f"{path} holds no values")
    timed = _number(first[1]) is None
    read, noun = (_nanoseconds, "timestamp") if timed else (_number, "number of seconds")
    start = None
    for line, cell in chain([first], cells):
        value = read(cell)
        if value is None or not math.isfinite(value):
            raise ColumnError(f"{path} line {line}: {cell[:40]!r} is not a {noun}")
        if not timed and value < 0:
            raise ColumnError(f"{path} line {line}: {value:g} s is negative")
        start = value if start is None else start
        yield line, (value - start) / 1e9 if timed else value


def _cells(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for row in reader:
                if row and row[0].strip():
                    yield reader.line_num, row[0].strip()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ColumnError(f"{path} cannot be read: {reason}") from None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _nanoseconds(cell: str) -> int | None:
    """Read a timestamp to the nanosecond: datetime keeps only six digits of the fraction."""
    whole, _, rest = cell.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC if moment.tzinfo else None)
    return (since.days * 86400 + since.seconds) * 10**9 + int(digits[:9].ljust(9, "0") or 0)
