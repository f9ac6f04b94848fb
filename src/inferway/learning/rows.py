"""Observations as the few numbers in them that are not zero.

Of 132 numbers, a site of four servers has 6 that are not zero on average: most of the time, most
servers are idle. Products with the first layer then cost a tenth of the dense ones.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.site.compiled import entry

__all__ = ["Rows"]

Ints = NDArray[np.int64]


class Rows:
    """A table that rows are appended to, in compressed rows.

    Parameters
    ----------
    capacity
        Rows that there may be.
    features
        Numbers in each.
    kind
        Of the numbers.
    """

    def __init__(self, capacity: int, features: int, kind: Any = np.float32) -> None:
        self.features = features
        self.count = 0
        self._ends = np.zeros(capacity + 1, np.int64)
        # For rows without any zero; pages that are never written to take no memory.
        self._columns = np.empty(capacity * features, np.uint32)
        self._values = np.empty(capacity * features, kind)

    @classmethod
    def of(cls, dense: NDArray[Any]) -> Rows:
        """The rows of a (B, d) array."""
        rows = cls(len(dense), dense.shape[1], dense.dtype)
        rows.append(dense)
        return rows

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Begin anew."""
        self.count = 0

    def append(self, dense: NDArray[Any]) -> None:
        """Add (B, d) rows."""
        if self.count + len(dense) >= len(self._ends) or dense.shape[1] != self.features:
            raise ValueError(f"{dense.shape} rows do not fit behind {self.count}")
        _kernels()[0](dense, self.count, self._ends, self._columns, self._values)
        self.count += len(dense)

    def product(
        self, chosen: Ints, weight: NDArray[Any], bias: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Write rows times weight (at most d, w), plus bias (w,), to `out` (B, w).

        Where the weight has fewer rows than there are features, it is for the first of them.
        """
        _kernels()[1](self._ends, self._columns, self._values, chosen, weight, bias, out)

    def add_transposed(self, chosen: Ints, slope: NDArray[Any], out: NDArray[Any]) -> None:
        """Add the transposed rows times slope (B, w) to `out` (at most d, w)."""
        _kernels()[2](self._ends, self._columns, self._values, chosen, slope, out)


@cache
def _kernels() -> tuple[Any, Any, Any]:
    return entry(compress), entry(product), entry(add_transposed)


def compress(
    dense: NDArray[Any], first: int, ends: Ints, columns: NDArray[np.uint32], values: NDArray[Any]
) -> None:
    """Append the rows of `dense` as rows `first` and following."""
    at = ends[first]
    for r in range(dense.shape[0]):
        row = dense[r]
        for c in range(row.size):
            if row[c] != 0:
                columns[at] = c
                values[at] = row[c]
                at += 1
        ends[first + r + 1] = at


def product(
    ends: Ints,
    columns: NDArray[np.uint32],
    values: NDArray[Any],
    chosen: Ints,
    weight: NDArray[Any],
    bias: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """See `Rows.product`; a row's columns are in order.

    Four at a time, so that sums stay in registers; unsigned, so that no index is looked at for
    being counted from the end.
    """
    width = weight.shape[1]
    for r in range(chosen.size):
        at, end = ends[chosen[r]], ends[chosen[r] + 1]
        while end > at and columns[end - 1] >= weight.shape[0]:
            end -= 1
        for j in range(width):
            out[r, j] = bias[j]
        while at + 4 <= end:
            c0, c1, c2, c3 = columns[at], columns[at + 1], columns[at + 2], columns[at + 3]
            v0, v1, v2, v3 = values[at], values[at + 1], values[at + 2], values[at + 3]
            for j in range(width):
                two = v0 * weight[c0, j] + v1 * weight[c1, j]
                out[r, j] += two + (v2 * weight[c2, j] + v3 * weight[c3, j])
            at += 4
        while at < end:
            c0, v0 = columns[at], values[at]
            for j in range(width):
                out[r, j] += v0 * weight[c0, j]
            at += 1


def add_transposed(
    ends: Ints,
    columns: NDArray[np.uint32],
    values: NDArray[Any],
    chosen: Ints,
    slope: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """See `Rows.add_transposed`."""
    for r in range(chosen.size):
        for i in range(ends[chosen[r]], ends[chosen[r] + 1]):
            c, value = columns[i], values[i]
            if c >= out.shape[0]:
                break
            for j in range(out.shape[1]):
                out[c, j] += value * slope[r, j]
