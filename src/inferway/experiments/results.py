"""The rows of a study, and the averages that figures and claims take from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np


class Measure(NamedTuple):
    """A quantity at one place of a figure."""

    mean: float
    """Over the trials; NaN where there is no row."""
    stderr: float
    """Of the mean: between trials, or the simulator's own where there is a single one."""
    stable: bool
    """Whether every trial was; an unstable mean depends on how long the run was."""
    trials: int


Place = TypeVar("Place")


class Results:
    """Rows: a point's label and what its call returned.

    Parameters
    ----------
    rows
        Flat mappings. Rows that differ in ``trial`` only are runs of the same thing with other
        seeds. ``X_se`` is the standard error of column ``X``, and ``stable`` says whether the
        system was; both may be absent.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def where(self, **label: Any) -> Results:
        """The rows with these values."""
        return Results([row for row in self.rows if label.items() <= row.items()])

    def distinct(self, column: str) -> list[Any]:
        """Values of a column, each once, as they come."""
        return list(dict.fromkeys(row[column] for row in self.rows if column in row))

    def measure(self, column: str, **label: Any) -> Measure:
        """Mean of a column over the trials of these rows."""
        rows = [row for row in self.where(**label).rows if column in row]
        if not rows:
            return Measure(math.nan, math.nan, True, 0)
        values = np.array([row[column] for row in rows], float)
        errors = np.array([row.get(f"{column}_se", math.nan) for row in rows], float)
        # Few trials say little of their own spread; the simulator's errors say more.
        if len(rows) >= 8 or np.isnan(errors).any():
            spread = float(values.std(ddof=1)) if len(rows) > 1 else math.nan
            stderr = spread / math.sqrt(len(rows))
        else:
            stderr = float(np.sqrt((errors**2).sum())) / len(rows)
        stable = all(row.get("stable", True) for row in rows)
        return Measure(float(values.mean()), stderr, stable, len(rows))

    def value(self, column: str, **label: Any) -> float:
        """The mean where it means something: NaN without rows, or with an unstable one."""
        measured = self.measure(column, **label)
        return measured.mean if measured.stable else math.nan

    def one(self, column: str, **label: Any) -> Any:
        """The column in the first row of these; None where there is none."""
        return next((row[column] for row in self.where(**label).rows if column in row), None)

    def means(self, column: str, **axis: Sequence[Any]) -> list[float]:
        """The mean at each value of one axis, NaN where there are no rows; stable or not."""
        ((across, values),) = axis.items()
        return [self.measure(column, **{across: value}).mean for value in values]

    def values(self, column: str, **axis: Sequence[Any]) -> list[float]:
        """`value` at each value of one axis."""
        ((across, values),) = axis.items()
        return [self.value(column, **{across: value}) for value in values]


def most(values: Mapping[Place, float], nowhere: Place) -> tuple[float, Place]:
    """The largest number that is one, and where it is; NaN, and `nowhere`, without any."""
    numbers = {place: value for place, value in values.items() if not math.isnan(value)}
    place = max(numbers, key=lambda one: numbers[one], default=nowhere)
    return numbers.get(place, math.nan), place


def least(values: Mapping[Place, float], nowhere: Place) -> tuple[float, Place]:
    """The smallest number that is one, and where it is; NaN, and `nowhere`, without any."""
    value, place = most({place: -value for place, value in values.items()}, nowhere)
    return -value, place


def largest(values: Sequence[float]) -> float:
    """The largest; NaN where there is none, or one is no number."""
    return math.nan if any(map(math.isnan, values)) else max(values, default=math.nan)


def smallest(values: Sequence[float]) -> float:
    """The smallest; NaN where there is none, or one is no number."""
    return -largest([-value for value in values])
