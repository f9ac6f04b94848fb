"""Scores: how right an answer is, per row, 0..1, and what they come to over all rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.profiling.function import FILE_FUNCTION, FunctionError, UserFunction
from inferway.spelling import closest

Arrays = dict[str, NDArray[Any]]
Rows = NDArray[np.float64]

DEFAULT: Final = "class"
EXACT_MATCH: Final = "exact-match"
NAMES: Final = (DEFAULT, "top-5", "f1", EXACT_MATCH)

_MOST_CLASSES: Final = 1_000  # of F1, which is computed of each on each resample
_TOP: Final = re.compile(r"top-([1-9][0-9]*)")


class ScoreError(ValueError):
    """A score that there is not, or that does not fit outputs and labels; one sentence."""


@dataclass(frozen=True)
class Score:
    """A way to tell right answers from wrong ones.

    Attributes
    ----------
    name
        As it was asked for.
    judge
        Called with the outputs by name, of shape [N, ...] each, and the labels, shape [N, ...];
        gives a score per row, shape [N].
    classes
        Of F1 alone: called likewise, gives the classes answered, shape [N].
    digest
        Hash of the user's file; None for a score of ours.
    """

    name: str
    judge: Callable[[Arrays, NDArray[Any]], Any]
    classes: Callable[[Arrays, NDArray[Any]], NDArray[Any]] | None = None
    digest: str | None = None

    def rows(self, outputs: Arrays, labels: NDArray[Any]) -> Rows:
        """Score each row, 0..1.

        With F1 it is 1 where the class is right and 0 where it is not: a row has no F1.

        Parameters
        ----------
        outputs
            A model's, by name, each of shape [N, ...].
        labels
            Shape [N, ...].

        Returns
        -------
        ndarray
            float64 of shape [N].

        Raises
        ------
        ScoreError
            When the outputs or labels are not what the score needs, or a function of the user's
            fails or gives something else.
        """
        try:
            given = np.asarray(self.judge(outputs, labels))
        except FunctionError as error:
            raise ScoreError(str(error)) from error
        if given.shape != (len(labels),) or given.dtype.kind not in "biuf":
            raise ScoreError(
                f"{self.name} gave {given.dtype} of shape {list(given.shape)}; a score is one "
                f"number for each of {len(labels)} rows"
            )
        rows = given.astype(np.float64)
        wrong = ~((rows >= 0) & (rows <= 1))
        if wrong.any():
            row = int(wrong.argmax())
            raise ScoreError(f"{self.name} gave {rows[row]:g} in row {row + 1}; a score is 0 to 1")
        return rows


def score_of(name: str, *, output: str | None = None, folder: Path | None = None) -> Score:
    """Find a score by its name.

    Parameters
    ----------
    name
        ``class``, the right class or not; ``top-5`` or any number, the class among as many likely
        ones; ``f1``, macro-F1 over the classes of labels and answers; ``exact-match``, an answer
        equal to its label; or ``./FILE.py:FUNCTION``, a function of outputs and labels.
    output
        The output to look at. By default the only one of integers or texts, one per row, where
        there is such, else the only one of floats, whose greatest value names the class.
    folder
        Where a relative file name starts; the current folder by default.

    Raises
    ------
    ScoreError
        When there is no such score.
    """
    if FILE_FUNCTION.fullmatch(name):
        try:
            function = UserFunction(name, folder)
        except FunctionError as error:
            raise ScoreError(str(error)) from None
        return Score(name, function, None, function.digest)

    def classes(outputs: Arrays, labels: NDArray[Any]) -> NDArray[Any]:
        return _classes(outputs, labels, output)

    def right_class(outputs: Arrays, labels: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(classes(outputs, labels) == labels)

    def few_classes(outputs: Arrays, labels: NDArray[Any]) -> NDArray[Any]:
        answered = classes(outputs, labels)
        count = len(np.unique(np.concatenate([answered, labels])))
        if count > _MOST_CLASSES:
            raise ScoreError(
                f"f1 is over {_MOST_CLASSES:,} classes at most, and labels and answers have "
                f"{count:,}"
            )
        return answered

    if name in ("class", "f1"):
        return Score(name, right_class, few_classes if name == "f1" else None)
    if name == EXACT_MATCH:
        return Score(name, lambda outputs, labels: _exact(outputs, labels, output))
    if top := _TOP.fullmatch(name):
        most = int(top[1])
        return Score(name, lambda outputs, labels: _among(outputs, labels, output, most))
    near = closest(name, NAMES)
    meant = f"did you mean {near}?" if near else f"there are {', '.join(NAMES)}, ./FILE.py:FUNCTION"
    raise ScoreError(f"there is no score {name!r}; {meant}")


def classes_of(outputs: Arrays) -> NDArray[Any]:
    """Read the class that each row was answered with, integers or texts of shape [N].

    Raises
    ------
    ScoreError
        When the outputs hold no class, or it is not clear which does.
    """
    return _answered(outputs, None)[1]


def texts(array: NDArray[Any]) -> NDArray[Any]:
    """Turn an output of BYTES into an array of str; anything else stays."""
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "replace")
    if array.dtype != object:
        return array
    words = [
        one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in array.flat
    ]
    return np.array(words, dtype=str).reshape(array.shape)


def _classes(outputs: Arrays, labels: NDArray[Any], output: str | None) -> NDArray[Any]:
    """Read the class that each row was answered with."""
    _check_one_label(labels)
    name, classes, count = _answered(outputs, output)
    if count is None:
        _check_kind(name, classes, labels)
    else:
        _check_numbered(name, count, labels)
    return classes


def _answered(outputs: Arrays, output: str | None) -> tuple[str, NDArray[Any], int | None]:
    """Read the classes, from which output, and how many there are where each has a number."""
    name = output or _said_class(outputs)
    if name is not None:
        answer = texts(_output(outputs, name))
        if answer.dtype.kind != "f":
            classes = answer.reshape(len(answer), -1)
            if classes.shape[1] != 1:
                raise ScoreError(
                    f"output {name!r} has rows of {classes.shape[1]} values, and a class is one; "
                    "score such answers with exact-match or ./FILE.py:FUNCTION"
                )
            return name, classes[:, 0], None
    name, scores = _scores(outputs, name)
    # A row that is no answer at all is never right.
    classes = np.where(np.isnan(scores).any(axis=1), -1, scores.argmax(axis=1))
    return name, classes, scores.shape[1]


def _said_class(outputs: Arrays) -> str | None:
    """Find the only output of one integer or text per row."""
    kinds = "iubUSO"
    single = [
        name
        for name, array in outputs.items()
        if array.dtype.kind in kinds and array.size == len(array)
    ]
    return single[0] if len(single) == 1 else None


def _scores(outputs: Arrays, output: str | None) -> tuple[str, NDArray[Any]]:
    """Find the output of one number per class, shape [N, classes]."""
    if output is None:
        floats = [name for name, array in outputs.items() if array.dtype.kind == "f"]
        if len(floats) != 1:
            shown = ", ".join(f"{name} ({array.dtype})" for name, array in outputs.items())
            raise ScoreError(f"which output holds the classes is not clear, of {shown}; name one")
        output = floats[0]
    array = _output(outputs, output)
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] < 2:
        raise ScoreError(
            f"output {output!r} has {array.dtype} rows of shape {list(array.shape[1:])}, and the "
            "class is the greatest of several numbers; score such answers with ./FILE.py:FUNCTION"
        )
    return output, array


def _output(outputs: Arrays, name: str) -> NDArray[Any]:
    if name not in outputs:
        raise ScoreError(f"there is no output {name!r}; the model gives {', '.join(outputs)}")
    return outputs[name]


def _check_one_label(labels: NDArray[Any]) -> None:
    if labels.ndim != 1:
        raise ScoreError(
            f"the labels have rows of shape {list(labels.shape[1:])}, and a class is one value"
        )


def _check_kind(name: str, classes: NDArray[Any], labels: NDArray[Any]) -> None:
    """Refuse texts beside numbers: none would ever be right."""
    if (classes.dtype.kind == "U") != (labels.dtype.kind == "U"):
        kinds = ("texts", "numbers") if classes.dtype.kind == "U" else ("numbers", "texts")
        raise ScoreError(f"output {name!r} holds {kinds[0]} and the labels are {kinds[1]}")


def _check_numbered(name: str, classes: int, labels: NDArray[Any]) -> None:
    """Refuse labels that are not the places of classes, 0, 1, ..."""
    where = f"output {name!r} has {classes} classes, 0 to {classes - 1}"
    if labels.dtype.kind == "U":
        raise ScoreError(f"{where}, and the labels are texts; number them in the same order")
    wrong = (labels < 0) | (labels >= classes) | (labels != np.floor(labels))
    if wrong.any():
        raise ScoreError(f"{where}, and a label is {labels[int(wrong.argmax())]}")


def _exact(outputs: Arrays, labels: NDArray[Any], output: str | None) -> NDArray[np.bool_]:
    if output is None and len(outputs) != 1:
        raise ScoreError(
            f"which output is to match is not clear, of {', '.join(outputs)}; name one"
        )
    name = output or next(iter(outputs))
    answer = texts(_output(outputs, name))
    rows = len(labels)
    given, right = answer.reshape(rows, -1), labels.reshape(rows, -1)
    if given.shape != right.shape:
        raise ScoreError(
            f"output {name!r} has rows of shape {list(answer.shape[1:])} and the labels have rows "
            f"of shape {list(labels.shape[1:])}"
        )
    _check_kind(name, given, right)
    return np.asarray((given == right).all(axis=1))


def _among(
    outputs: Arrays, labels: NDArray[Any], output: str | None, most: int
) -> NDArray[np.bool_]:
    """Tell whether the right class is one of the `most` likely ones; ties count against it."""
    _check_one_label(labels)
    name, scores = _scores(outputs, output)
    _check_numbered(name, scores.shape[1], labels)
    classes = scores.shape[1]
    if most >= classes:
        raise ScoreError(f"output {name!r} has {classes} classes, so each is in the top {most}")
    own = np.take_along_axis(scores, labels.astype(np.int64)[:, None], axis=1)
    return np.asarray((scores >= own).sum(axis=1) <= most)
