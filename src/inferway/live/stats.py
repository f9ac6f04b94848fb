"""Statistics of a site, as plain numbers that cost the request path next to nothing."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from inferway.live.request import Outcome

# Upper ends of the latency histogram's buckets as metrics tell them, in seconds; one more has no
# end.
LATENCY_BOUNDS_S: Final = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
# As they are counted: 20 to the decade, the series R20 of ISO 3, so that a quantile read from them
# is within a tenth.
_R20: Final = (
    "1", "1.12", "1.25", "1.4", "1.6", "1.8", "2", "2.24", "2.5", "2.8",
    "3.15", "3.55", "4", "4.5", "5", "5.6", "6.3", "7.1", "8", "9",
)  # fmt: skip
FINE_BOUNDS_S: Final = tuple(
    end_s
    for decade in range(-5, 2)
    for mantissa in _R20
    if 5e-5 <= (end_s := float(f"{mantissa}e{decade}")) <= 20.0
)
_ENDS: Final = [0, *(FINE_BOUNDS_S.index(end_s) + 1 for end_s in LATENCY_BOUNDS_S), None]

# Upper ends of the batch sizes' buckets, in rows; one more bucket has no end.
BATCH_BOUNDS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)


class Stats:
    """Counts of one task by variant, whoever serves it; written by the event loop only.

    The variants are the K server classes that the task has, or has had. `outcomes[outcome][k]` are
    requests that ended so at class k, at index K where no variant was chosen. Answers are rows;
    `accuracy_sum` is over the `graded`, those of variants whose accuracy is known, pinned ones
    included; `promised_sum` is over the `promised`. `in_time_sum` is over requests that
    were answered before their deadline by a variant whose accuracy is known.
    `buckets` are answered requests by latency, in those of `FINE_BOUNDS_S`; `runs` of a model are,
    by rows, how many there were and how long they took, s.
    """

    def __init__(self, variants: Sequence[str] = ()) -> None:
        self.variants: list[str] = []
        self.outcomes = [[0] for _ in Outcome]
        self.rows: list[int] = []
        self.ignored = 0  # parameters of requests that mean nothing here
        self.graded, self.accuracy_sum, self.in_time_sum = 0, 0.0, 0.0
        self.promise_anew()
        self.buckets: list[list[int]] = []
        self.runs: list[dict[int, list[float]]] = []
        self.late: list[int] = []  # of the answers, requests whose deadline had passed
        self.moved: list[int] = []  # requests that it did not serve and that others were given
        self.latency_sum_s: list[float] = []
        self.service_sum_s: list[float] = []
        self.run_sum_s: list[float] = []  # a run for several requests counts for each of them
        self.answered_s: list[float] = []  # when the last answer was given, on the site's clock
        self.unanswered_sum_s = [0.0]  # from arrival to the end without an answer
        # Requests that a second variant was asked for, by the first and the second.
        self.escalations: dict[tuple[int, int], int] = {}
        self.columns(variants)

    def columns(self, variants: Sequence[str]) -> list[int]:
        """Tell by which index each of these variants is counted; one that comes again goes on."""
        for name in variants:
            if name in self.variants:
                continue
            self.variants.append(name)
            for counts in self.outcomes:
                counts.insert(-1, 0)
            self.unanswered_sum_s.insert(-1, 0.0)
            self.buckets.append([0] * (len(FINE_BOUNDS_S) + 1))
            self.runs.append({})
            for of_rows in (self.rows, self.late, self.moved):
                of_rows.append(0)
            for sums_s in (self.latency_sum_s, self.service_sum_s, self.run_sum_s):
                sums_s.append(0.0)
            self.answered_s.append(-math.inf)
        return [self.variants.index(name) for name in variants]

    def promise_anew(self) -> None:
        """Count the answers of a promise from here on."""
        self.promised, self.promised_sum = 0, 0.0

    def answered(
        self,
        k: int,
        rows: int,
        accuracy: float | None,
        latency_s: float,
        service_s: float,
        counted: bool = True,
        late: bool = False,
    ) -> None:
        """Count an answer of class k, and where it is `counted`, for the promise, too."""
        self.outcomes[0][k] += 1
        self.rows[k] += rows
        if late:
            self.late[k] += 1
        elif accuracy is not None:
            self.in_time_sum += accuracy
        if accuracy is not None:
            self.graded += rows
            self.accuracy_sum += rows * accuracy
            if counted:
                self.promised += rows
                self.promised_sum += rows * accuracy
        self.buckets[k][bisect_left(FINE_BOUNDS_S, latency_s)] += 1
        self.latency_sum_s[k] += latency_s
        self.service_sum_s[k] += service_s

    def escalated(self, first: int, second: int) -> None:
        """Count a request that the second variant is asked for after the first."""
        self.escalations[first, second] = self.escalations.get((first, second), 0) + 1

    def ran(self, k: int, rows: int, most: int, service_s: float) -> None:
        """Count the runs of class k's model for so many rows, at most `most` in each."""
        if rows > most:
            full, rest = divmod(rows, most)
            full_s = service_s * (rows - rest) / rows
            self._count(k, most, full, full_s)
            if rest:
                self._count(k, rest, 1, service_s - full_s)
        else:
            self._count(k, rows, 1, service_s)

    def _count(self, k: int, rows: int, number: int, took_s: float) -> None:
        runs = self.runs[k].get(rows)
        if runs is None:
            self.runs[k][rows] = runs = [0, 0.0]
        runs[0] += number
        runs[1] += took_s

    def batches(self, k: int) -> list[int]:
        """Count the runs of class k's model by rows, in the buckets of `BATCH_BOUNDS`."""
        buckets = [0] * (len(BATCH_BOUNDS) + 1)
        for rows, (number, _) in self.runs[k].items():
            buckets[bisect_left(BATCH_BOUNDS, rows)] += int(number)
        return buckets

    def batch_rows(self, k: int) -> int:
        """Count the rows of all runs of class k's model."""
        return sum(rows * int(number) for rows, (number, _) in self.runs[k].items())

    @property
    def accuracy_mean(self) -> float | None:
        """Mean accuracy of the answers, as it counted for each; None where none is known."""
        return self.accuracy_sum / self.graded if self.graded else None

    @property
    def total_rows(self) -> int:
        """Answers of all variants, those that are here no more included."""
        return sum(self.rows)

    def ended(self, outcome: Outcome, k: int = -1, took_s: float = 0.0) -> None:
        """Count a request without an answer; k is -1 where no variant was chosen."""
        self.outcomes[outcome][k] += 1
        self.unanswered_sum_s[k] += took_s

    @property
    def all_ended(self) -> int:
        """Count all requests that have ended, an answer by its rows."""
        return self.total_rows + sum(map(sum, self.outcomes[1:]))

    def total(self, outcome: Outcome) -> int:
        """Count the requests that ended so."""
        return sum(self.outcomes[outcome])


def coarse(counts: Sequence[int]) -> list[int]:
    """Count by `LATENCY_BOUNDS_S` what is counted by `FINE_BOUNDS_S`."""
    return [sum(counts[begin:end]) for begin, end in pairwise(_ENDS)]
