"""Comparison of an exported model with its source, row by row and at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.exporting.model import ExportError, SourceModel
from inferway.runtime import Arrays, Runtime

BATCHES: Final = (1, 2)
"""Sizes of the first batches; all further rows go in batches of `LARGEST`."""

LARGEST: Final = 256


class DisagreementError(ExportError):
    """An exported model that does not answer as its source does."""


@dataclass(frozen=True)
class Agreement:
    """How an exported model's answers compare with those of its source.

    Attributes
    ----------
    rows
        Rows that were compared.
    batches
        Different batch sizes in which the exported model answered them.
    difference
        Largest difference of two numbers, relative to the source's where that is above 1.
    row, output
        Where that is: the row from 0, and the output's name. Empty where there is no number.
    differing
        Rows with a number beyond the tolerance, or with another label or text.
    labels
        Those of them with another label or text.
    ties
        Rows with another label whose two best scores are equal within the tolerance; these count
        as equal.
    rounded
        Rows that the source itself answers otherwise in float64: with another label where it gives
        one, else with a number beyond the tolerance.
    """

    rows: int
    batches: tuple[int, ...]
    difference: float
    row: int
    output: str
    differing: int
    labels: int
    ties: int
    rounded: int

    def __str__(self) -> str:
        found = f"largest difference {self.difference:.2g}" if self.output else "all equal"
        if self.labels:
            found += f", {self.labels / self.rows:.3%} of the labels differ"
        elif self.ties:
            found += f", no label differs but in {self.ties} ties"
        return found


def compare(
    model: SourceModel,
    runtime: Runtime,
    inputs: Arrays,
    tolerance: float,
    progress: Callable[[float], None] = lambda share: None,
) -> Agreement:
    """Ask the source and the exported model the same rows, in batches.

    The source answers all rows of a batch of `LARGEST` at once, and the exported model the first
    rows one and two at a time, so that one that mixes the rows of a batch is found, too.

    Parameters
    ----------
    model
        The source.
    runtime
        Runs what was exported.
    inputs
        Rows, as the server would pass them.
    tolerance
        Largest difference at which two numbers agree, relative to the source's above 1.
    progress
        Called with the share of the rows that has been compared.

    Raises
    ------
    DisagreementError
        When an output is of another shape or type.
    """
    rows = len(next(iter(inputs.values())))
    worst, row, output = 0.0, 0, ""
    differing = labels = ties = rounded = 0
    sizes: set[int] = set()
    for start in range(0, rows, LARGEST):
        part = {name: array[start : start + LARGEST] for name, array in inputs.items()}
        own = model.answer(part)
        given, used = _answers(runtime, part, BATCHES if start == 0 else ())
        sizes |= used
        if len(own) != len(given):
            raise DisagreementError(
                f"the exported model has {len(given)} outputs, its source has {len(own)}"
            )
        numbers, other = _differences(model.outputs, own, given)
        for name, difference in numbers.items():
            if difference.size and (not output or difference.max() > worst):
                worst, row, output = (
                    float(difference.max()),
                    start + int(difference.argmax()),
                    name,
                )
        beyond = np.zeros(len(other), np.bool_)
        for difference in numbers.values():
            beyond |= difference > tolerance
        tied = other & ~beyond & _tied(model, own, tolerance)
        other &= ~tied
        ties += int(tied.sum())
        labels += int(other.sum())
        differing += int((beyond | other).sum())
        rounded += _rounded(model, part, own, tolerance)
        progress(min(1.0, (start + LARGEST) / rows))
    batches = tuple(sorted(sizes))
    return Agreement(rows, batches, worst, row, output, differing, labels, ties, rounded)


def _answers(
    runtime: Runtime, inputs: Arrays, first: Sequence[int]
) -> tuple[list[NDArray[Any]], set[int]]:
    """Answer the first rows in batches of these sizes and the rest in one; the sizes used."""
    rows = len(next(iter(inputs.values())))
    parts: list[list[NDArray[Any]]] = []
    sizes = set()
    for start, end in _cuts(rows, first):
        sizes.add(end - start)
        answer = runtime.run({name: array[start:end] for name, array in inputs.items()})
        parts.append(list(answer.values()))
        for one in runtime.signature.outputs:
            shape = np.shape(answer[one.name])
            declared = (end - start, *one.shape[1:])
            if len(shape) != len(declared) or any(
                axis not in (-1, length) for axis, length in zip(declared, shape, strict=True)
            ):
                raise DisagreementError(
                    f"output {one} of the exported model has the shape {list(shape)} for a batch "
                    f"of {end - start}"
                )
    try:
        return [np.concatenate(column) for column in zip(*parts, strict=True)], sizes
    except ValueError:
        shapes = ", ".join(str(list(one.shape)) for part in parts for one in part)
        raise DisagreementError(
            f"outputs of the exported model change their shape with the batch: {shapes}"
        ) from None


def _cuts(rows: int, first: Sequence[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in (*first, rows):
        end = min(start + size, rows)
        if end > start:
            yield start, end
        start = end


def _differences(
    names: Sequence[str], own: list[NDArray[Any]], given: list[NDArray[Any]]
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.bool_]]:
    """Find each row's largest difference, by output of floats, and the rows that differ else."""
    numbers: dict[str, NDArray[np.float64]] = {}
    other = np.zeros(len(given[0]), np.bool_)
    for name, theirs, ours in zip(names, own, given, strict=True):
        if theirs.size != ours.size or len(theirs) != len(ours):
            raise DisagreementError(
                f"output {name!r} of the exported model has the shape {list(ours.shape)}, that of "
                f"its source {list(theirs.shape)}"
            )
        theirs, ours = theirs.reshape(len(theirs), -1), ours.reshape(len(ours), -1)
        if ours.dtype.kind == "f":
            numbers[name] = _distance(theirs, ours)
        elif "O" in (theirs.dtype.kind, ours.dtype.kind) or theirs.dtype.kind in "US":
            other |= (theirs.astype(str) != ours.astype(str)).any(axis=1)
        else:
            other |= (theirs != ours).any(axis=1)
    return numbers, other


def _distance(theirs: NDArray[Any], ours: NDArray[Any]) -> NDArray[np.float64]:
    """Each row's largest difference; infinite where one alone is not a number."""
    true, found = theirs.astype(np.float64), ours.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(found - true) / np.maximum(1.0, np.abs(true))
    same = (found == true) | (np.isnan(found) & np.isnan(true))
    largest: NDArray[np.float64] = np.where(
        same, 0.0, np.nan_to_num(apart, nan=np.inf, posinf=np.inf)
    ).max(axis=1, initial=0.0)
    return largest


def _rounded(model: SourceModel, inputs: Arrays, own: list[NDArray[Any]], tolerance: float) -> int:
    """Count rows that the source answers otherwise in float64."""
    wide = model.in_float64(inputs)
    if wide is None:
        return 0
    numbers, other = _differences(model.outputs, own, wide)
    if len(numbers) < len(own):
        return int(other.sum())
    return int(np.any([one > tolerance for one in numbers.values()], axis=0).sum())


def _tied(model: SourceModel, own: list[NDArray[Any]], tolerance: float) -> NDArray[np.bool_]:
    """Find rows whose two best scores are equal, so that rounding decides the label."""
    rows = len(own[0])
    if model.scores is None or own[model.scores].reshape(rows, -1).shape[1] < 2:
        return np.zeros(rows, np.bool_)
    best = np.sort(own[model.scores].reshape(rows, -1), axis=1)[:, -2:]
    tied: NDArray[np.bool_] = best[:, 1] - best[:, 0] <= tolerance * np.maximum(
        1.0, abs(best[:, 1])
    )
    return tied
