"""Confidence: a number in a model's answer that says how likely it is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.profiling.function import FILE_FUNCTION, FunctionError, UserFunction

Arrays = dict[str, NDArray[Any]]

PROBABILITY: Final = "probability"
MARGIN: Final = "margin"

_SUM: Final = 1e-3  # how far a row of probabilities may be from 1, by rounding
_MOST: Final = 0.5  # share of rows: some may miss the sum by more, which no softmax's argument hits


class ConfidenceError(ValueError):
    """A confidence that there is not, with one sentence that says why."""


class Confidence(NamedTuple):
    """The confidence of each row.

    Attributes
    ----------
    values
        float64 of shape [N], finite; greater is surer.
    softmax
        Whether the outputs were no probabilities yet, so that the softmax came first.
    """

    values: NDArray[np.float64]
    softmax: bool = False


def confidence_of(
    kind: str, outputs: Arrays, *, output: str | None = None, folder: Path | None = None
) -> Confidence:
    """Read the confidence of each row.

    Parameters
    ----------
    kind
        ``probability``, the greatest of a row; ``margin``, by how much it is above the second;
        the name of an output of one number per row; or ``./FILE.py:FUNCTION``, a function of the
        outputs.
    outputs
        A model's, by name, each of shape [N, ...].
    output
        Which holds the answer. Where it is of several floats per row, these are the probabilities;
        else they are those of the only output that is. Where most rows do not sum to 1, they are
        taken for the softmax's arguments.
    folder
        Where a relative file name starts; the current folder by default.

    Raises
    ------
    ConfidenceError
        When the outputs hold no such number for each row.
    """
    if FILE_FUNCTION.fullmatch(kind):
        try:
            return Confidence(_one_each(kind, UserFunction(kind, folder)(outputs), outputs))
        except FunctionError as error:
            raise ConfidenceError(str(error)) from None
    if kind not in (PROBABILITY, MARGIN):
        if kind not in outputs:
            raise ConfidenceError(
                f"there is no output {kind!r}, and {kind!r} is neither probability nor margin nor "
                f"./FILE.py:FUNCTION; the model gives {', '.join(outputs)}"
            )
        array = outputs[kind]
        return Confidence(_one_each(f"output {kind!r}", array.reshape(len(array), -1), outputs))
    rows, softmax = _probabilities(outputs, output)
    last = np.partition(rows, -2, axis=1)[:, -2:]
    best = last[:, 1]
    values = best if kind == PROBABILITY else best - last[:, 0]
    # By rounding, a probability may be a little above 1.
    return Confidence(_finite(kind, values.clip(0, 1)), softmax)


def confidence_reader(
    kind: str, *, softmax: bool, output: str | None = None, folder: Path | None = None
) -> Callable[[Arrays], NDArray[np.float64]]:
    """Make what reads the confidence of each row of one answer after another.

    Parameters
    ----------
    kind, output, folder
        As in `confidence_of`.
    softmax
        Whether outputs are the softmax's arguments: of a few rows that cannot be told.

    Returns
    -------
    callable
        Takes outputs by name, gives float64 of shape [N]. ConfidenceError where they hold none.
    """

    def plain(outputs: Arrays) -> NDArray[np.float64]:
        return confidence_of(kind, outputs, output=output, folder=folder).values

    def of_classes(outputs: Arrays) -> NDArray[np.float64]:
        nonlocal output
        if output is None:
            names = _several(outputs, None)
            output = names[0] if len(names) == 1 else None
        if output is None:
            return plain(outputs)  # which says what is not clear
        rows = outputs[output].astype(np.float64)
        if softmax:
            rows = np.exp(rows - rows.max(axis=1, keepdims=True))
            rows /= rows.sum(axis=1, keepdims=True)
        best = rows.max(axis=1)
        if kind == MARGIN:
            best = best - np.partition(rows, -2, axis=1)[:, -2]
        return np.asarray(best.clip(0.0, 1.0))

    return of_classes if kind in (PROBABILITY, MARGIN) else plain


def offers_probabilities(outputs: Arrays, output: str | None = None) -> bool:
    """Tell whether outputs hold one number for each of several classes."""
    return len(_several(outputs, output)) == 1


def _several(outputs: Arrays, output: str | None) -> list[str]:
    several = [
        name
        for name, array in outputs.items()
        if array.dtype.kind == "f" and array.ndim == 2 and array.shape[1] > 1
    ]
    return [output] if output in several else several


def _probabilities(outputs: Arrays, output: str | None) -> tuple[NDArray[np.float64], bool]:
    names = _several(outputs, output)
    if len(names) != 1:
        shown = ", ".join(
            f"{name} ({array.dtype} {list(array.shape[1:])})" for name, array in outputs.items()
        )
        raise ConfidenceError(f"which output holds one number per class is not clear, of {shown}")
    rows = outputs[names[0]].astype(np.float64)
    if not np.isfinite(rows).all():
        raise ConfidenceError(f"output {names[0]!r} holds what is not finite")
    shares = (rows >= -_SUM).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) <= _SUM)
    if shares.mean() > _MOST:
        return rows, False
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), True


def _one_each(name: str, given: Any, outputs: Arrays) -> NDArray[np.float64]:
    """Check that there is one number for each row."""
    array = np.asarray(given)
    rows = len(next(iter(outputs.values())))
    if array.shape not in ((rows,), (rows, 1)) or array.dtype.kind not in "biuf":
        raise ConfidenceError(
            f"{name} gave {array.dtype} of shape {list(array.shape)}; a confidence is one number "
            f"for each of {rows} rows"
        )
    return _finite(name, array.reshape(rows).astype(np.float64))


def _finite(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfidenceError(f"{name} gave {values[row]} in row {row + 1}, which is not finite")
    return values
