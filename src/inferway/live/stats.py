"""Statistics of a site, as plain numbers that cost the request path next to nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from inferway.live.request import Outcome

# Upper ends of the latency histogram's buckets, in seconds; one more bucket has no end.
LATENCY_BOUNDS_S: Final = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip

# Upper ends of the batch sizes' buckets, in rows; one more bucket has no end.
BATCH_BOUNDS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)


class Stats:
    """Counts of one task by variant, whoever serves it; written by the event loop only.

    The variants are the K server classes that the task has, or has had. `outcomes[outcome][k]` are
    requests that ended so at class k, at index K where no variant was chosen. Answers are rows;
    `accuracy_sum` is over all of them, pinned ones included, `promised_sum` over the `promised`.
    `buckets` are answered requests by latency, `batches` runs of a model by rows.
    """

    def __init__(self, variants: Sequence[str] = ()) -> None:
        self.variants: list[str] = []
        self.outcomes = [[0] for _ in Outcome]
        self.rows: list[int] = []
        self.ignored = 0  # parameters of requests that mean nothing here
        self.accuracy_sum = 0.0
        self.promise_anew()
        self.buckets: list[list[int]] = []
        self.batches: list[list[int]] = []
        self.batch_rows: list[int] = []  # of all runs
        self.late: list[int] = []  # of the answers, requests whose deadline had passed
        self.moved: list[int] = []  # requests that it did not serve and that others were given
        self.latency_sum_s: list[float] = []
        self.service_sum_s: list[float] = []
        self.columns(variants)

    def columns(self, variants: Sequence[str]) -> list[int]:
        """Tell by which index each of these variants is counted; one that comes again goes on."""
        for name in variants:
            if name in self.variants:
                continue
            self.variants.append(name)
            for counts in self.outcomes:
                counts.insert(-1, 0)
            self.buckets.append([0] * (len(LATENCY_BOUNDS_S) + 1))
            self.batches.append([0] * (len(BATCH_BOUNDS) + 1))
            for of_rows in (self.rows, self.batch_rows, self.late, self.moved):
                of_rows.append(0)
            for sums_s in (self.latency_sum_s, self.service_sum_s):
                sums_s.append(0.0)
        return [self.variants.index(name) for name in variants]

    def promise_anew(self) -> None:
        """Count the answers of a promise from here on."""
        self.promised, self.promised_sum = 0, 0.0

    def answered(
        self,
        k: int,
        rows: int,
        accuracy: float,
        latency_s: float,
        service_s: float,
        counted: bool = True,
    ) -> None:
        """Count an answer of class k, and where it is `counted`, for the promise, too."""
        self.outcomes[0][k] += 1
        self.rows[k] += rows
        self.accuracy_sum += rows * accuracy
        if counted:
            self.promised += rows
            self.promised_sum += rows * accuracy
        self.buckets[k][bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        self.latency_sum_s[k] += latency_s
        self.service_sum_s[k] += service_s

    def ran(self, k: int, rows: int, most: int) -> None:
        """Count the runs of class k's model for so many rows, at most `most` in each."""
        self.batch_rows[k] += rows
        if rows > most:
            full, rows = divmod(rows, most)
            self.batches[k][bisect_left(BATCH_BOUNDS, most)] += full
            if not rows:
                return
        self.batches[k][bisect_left(BATCH_BOUNDS, rows)] += 1

    @property
    def total_rows(self) -> int:
        """Answers of all variants, those that are here no more included."""
        return sum(self.rows)

    def ended(self, outcome: Outcome, k: int = -1) -> None:
        """Count a request without an answer; k is -1 where no variant was chosen."""
        self.outcomes[outcome][k] += 1

    def total(self, outcome: Outcome) -> int:
        """Count the requests that ended so."""
        return sum(self.outcomes[outcome])
