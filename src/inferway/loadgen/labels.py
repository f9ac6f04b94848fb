"""The user's own inputs and labels: what goes out, and how right the answers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.message import Inputs
from inferway.profiling.data import read
from inferway.profiling.score import DEFAULT, Score, ScoreError, score_of
from inferway.protocol import Signature

Arrays = dict[str, NDArray[Any]]
# Requests by their numbers, and the outputs of their answers, one row for each; all of one shape.
Answers = Sequence[tuple[NDArray[np.int64], Arrays]]

UNKNOWN: Final = -1


@dataclass(frozen=True)
class LabeledFiles:
    """Files of labeled data, and how answers are scored against the labels.

    Attributes
    ----------
    files
        By task, as `inferway.profiling.data.read` takes them.
    score
        What makes an answer right.
    group
        Array or column of the files that says which rows are alike.
    """

    files: Mapping[str, Path]
    score: Score = field(default_factory=lambda: score_of(DEFAULT))
    group: str | None = None

    def inputs(self, task: str, signature: Signature) -> Inputs:
        """Read a task's inputs, which must fit what the server says that it takes.

        DataError when they do not, or the file cannot be read.
        """
        data = read(self.files[task], signature, group=self.group)
        return Inputs(data.inputs, data.labels, data.groups)


class Judged(NamedTuple):
    """What the labels say of some requests, of shape (n,) each.

    Scores are 0..1, NaN where there was no answer. Classes, answered and true, are -1 where there
    are none, or the score does not go by them; texts are numbered in the order of the alphabet.
    """

    score: NDArray[np.float64]
    answered: NDArray[np.int32]
    true: NDArray[np.int32]


def judge(
    score: Score, labels: NDArray[Any], requests: NDArray[np.int64], answers: Answers
) -> Judged:
    """Score answers.

    Parameters
    ----------
    score
        What makes an answer right.
    labels
        Shape (n, ...): of each request.
    requests
        Shape (n,): their numbers, ascending.
    answers
        Of these requests, and maybe of others.

    Raises
    ------
    ScoreError
        When the outputs or the labels are not what the score needs.
    """
    count = len(requests)
    scores = np.full(count, np.nan)
    said: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
    for numbers, outputs in answers:
        own = np.isin(numbers, requests)
        if not own.any():
            continue
        places = np.searchsorted(requests, numbers[own])
        given = {name: array[own] for name, array in outputs.items()}
        scores[places] = score.rows(given, labels[places])
        if score.classes is not None:
            said.append((places, score.classes(given, labels[places])))
    answered, true = np.full((2, count), UNKNOWN, np.int32)
    numbered = labels.ndim == 1 and labels.dtype.kind in "biu"
    if numbered:
        true[:] = labels
    elif labels.ndim == 1 and score.classes is not None:
        names = np.unique(np.concatenate([labels, *(classes for _, classes in said)]))
        true[:] = np.searchsorted(names, labels)
        said = [(places, np.searchsorted(names, classes)) for places, classes in said]
    for places, classes in said:
        answered[places] = classes
    return Judged(scores, answered, true)


def check(score: Score, task: str, labels: NDArray[Any], outputs: Arrays) -> None:
    """Score one answer against every label, of which each may be one that no answer can match.

    A function of the user's is asked once alone. ScoreError when something does not fit.
    """
    labels = labels if score.digest is None else labels[:1]
    repeated = {
        name: np.broadcast_to(array, (len(labels), *array.shape[1:]))
        for name, array in outputs.items()
    }
    try:
        score.rows(repeated, labels)
    except ScoreError as error:
        raise ScoreError(f"task {task!r}: {error}") from error
