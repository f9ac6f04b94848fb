"""Totals over the tasks of a report: what became of all requests together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TaskCounts(NamedTuple):
    """Requests of one task, as numbers or as rates, the same for all tasks that are added up."""

    requests: float
    answers: float
    accuracy_sum: float  # Of the answers; nan where an accuracy is not known
    in_time: float  # Answers within their deadline; all of them where there is none
    in_time_sum: float  # Their accuracies, summed; nan where one is not known


@dataclass(frozen=True)
class Totals:
    """All requests of several tasks.

    Attributes
    ----------
    accuracy
        Mean over the answers; nan without any, or where an accuracy is not known.
    goodput
        Accuracy of the answers in time, summed, over requests, as it is of a task.
    goodput_per_s
        The same sum a second; nan where no time is known.
    in_time_per_s
        Answers within their deadline a second; nan likewise.
    violation_ratio
        Requests without an answer in time, over requests.
    shares
        Of the answers, by task.
    """

    accuracy: float
    goodput: float
    goodput_per_s: float
    in_time_per_s: float
    violation_ratio: float
    shares: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """By name, as commands print it under ``totals``; what is not known is None."""
        told = {name: one for name, one in vars(self).items() if name != "shares"}
        numbers = {name: one if math.isfinite(one) else None for name, one in told.items()}
        shares = {name: one if math.isfinite(one) else None for name, one in self.shares.items()}
        return {**numbers, "shares": shares}


def totals_of(tasks: Mapping[str, TaskCounts], *, span_s: float = math.nan) -> Totals | None:
    """Add up what several tasks' requests got; None of a single task, which is its own total.

    Parameters
    ----------
    tasks
        Counts by task.
    span_s
        Seconds that they are of: 1 of rates; nan where that is not known.
    """
    if len(tasks) < 2:
        return None
    requests, answers, accuracy_sum, in_time, in_time_sum = map(
        math.fsum, zip(*tasks.values(), strict=True)
    )
    return Totals(
        accuracy=_ratio(accuracy_sum, answers),
        goodput=_ratio(in_time_sum, requests),
        goodput_per_s=_ratio(in_time_sum, span_s),
        in_time_per_s=_ratio(in_time, span_s),
        violation_ratio=_ratio(requests - in_time, requests),
        shares={name: _ratio(one.answers, answers) for name, one in tasks.items()},
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else math.nan
