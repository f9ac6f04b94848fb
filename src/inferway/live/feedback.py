"""Feedback on answers as clients send it, and what is told of a variant's accuracy."""

from __future__ import annotations

from typing import Annotated

import msgspec

from inferway.dispatch.drift_alarm import DriftAlarm
from inferway.protocol import RefusalError

Label = int | str


class FeedbackItem(msgspec.Struct, forbid_unknown_fields=True):
    """Feedback on one answer; exactly one of `label`, `correct` and `score` says how right it was.

    Attributes
    ----------
    id
        X-Request-Id of the answer.
    label
        The right class; of a request of several rows, a list with one for each.
    correct
        Whether it was right.
    score
        How right it was, 0..1.
    """

    id: str
    label: Label | list[Label] | msgspec.UnsetType = msgspec.UNSET
    correct: bool | msgspec.UnsetType = msgspec.UNSET
    score: Annotated[float, msgspec.Meta(ge=0, le=1)] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        given = (self.label, self.correct, self.score)
        if sum(one is not msgspec.UNSET for one in given) != 1:
            raise ValueError("feedback has exactly one of label, correct and score")

    def score_of(self, classes: str | None) -> float:
        """Say how right an answer of these classes was, 0..1; in the mean where it has more rows.

        RefusalError where its label cannot be compared with it.
        """
        if self.score is not msgspec.UNSET:
            return self.score
        if self.correct is not msgspec.UNSET:
            return float(self.correct)
        assert self.label is not msgspec.UNSET
        if classes is None:
            raise RefusalError(
                400,
                f"answer {self.id[:128]!r} has no class that a label could be compared with; send "
                "correct or score",
            )
        said: list[Label] = msgspec.json.decode(classes)
        labels = self.label if isinstance(self.label, list) else [self.label]
        if len(labels) != len(said):
            raise RefusalError(
                400,
                f"answer {self.id[:128]!r} has {_rows(len(said))}, and its label is of "
                f"{_rows(len(labels))}",
            )
        if any(type(one) is not type(other) for one, other in zip(said, labels, strict=True)):
            raise RefusalError(
                400,
                f"answer {self.id[:128]!r} has the class {said[0]!r}, and its label is "
                f"{labels[0]!r}, of another kind",
            )
        return sum(one == other for one, other in zip(said, labels, strict=True)) / len(said)


def _rows(count: int) -> str:
    return f"{count} row" if count == 1 else f"{count} rows"


class Joined(msgspec.Struct, frozen=True):
    """The outcome of feedback: how many matched an answer, and the ids of those that did not.

    Attributes
    ----------
    matched
        Answers that it was taken for.
    unknown
        Ids of no answer that is kept.
    doubled
        Ids that feedback had come for before; it was left aside.
    """

    matched: int
    unknown: list[str]
    doubled: list[str]


class VariantAccuracy(msgspec.Struct, frozen=True):
    """Accuracy of a variant's present model, by its profile and by feedback.

    Attributes
    ----------
    profile
        As the file or a profile says; None where nothing does.
    labels
        Answers that feedback has come for.
    mean
        Mean score of those since the last drift alarm; None before the first.
    low, high
        Limits of a confidence sequence of that, of 95 %, which may be looked at all the time.
    estimate
        Accuracy that counts where the promise is on what is measured: that of the profile until
        labels, joined with comparisons, speak against it; None where nothing says the profile's.
    compared
        Answers that have been compared with those of the most accurate variant.
    agreed
        Of these, those that are the same in all rows.
    agreement
        Share of rows that are, each request weighed by the inverse of its propensity; None before
        the first.
    joint
        Accuracy by labels and comparisons together, as mean labels have it alone; None before the
        first label.
    joint_low, joint_high
        Limits of that, which may be looked at all the time.
    alarms
        Alarms of drift so far; 0 where nobody looks for it.
    alarm
        The last one; None before the first.
    """

    profile: float | None
    labels: int
    mean: float | None
    low: float
    high: float
    estimate: float | None
    compared: int
    agreed: int
    agreement: float | None
    joint: float | None
    joint_low: float
    joint_high: float
    alarms: int = 0
    alarm: DriftAlarm | None = None

    @property
    def recent(self) -> int:
        """Number of labels since the last alarm, which `mean` is of."""
        return self.labels - (0 if self.alarm is None else self.alarm.labels)
