"""What has happened at a site, as plain numbers that cost the request path next to nothing."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from inferway.live.request import Outcome

LATENCY_BOUNDS_S: Final = (
    0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Upper ends of the latency histogram's buckets, in seconds; one more bucket has no end."""

BATCH_BOUNDS: Final = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
"""Upper ends of the batch sizes' buckets, in rows; one more bucket has no end."""


class Stats:
    """Counts of one site, written by the event loop only.

    Attributes
    ----------
    variants
        Names of the server classes, K of them.
    outcomes
        ``outcomes[outcome][k]``: requests that ended so at class k; index K where no variant was
        chosen.
    rows
        ``rows[k]``: answers (rows) given by class k.
    gone_rows
        Answers given by variants that have left the task.
    accuracy_sum
        Sum over all answers of the profile accuracy of their variant, pinned ones included.
    buckets
        ``buckets[k][i]``: answered requests of class k with a latency in bucket i.
    batches
        ``batches[k][i]``: runs of class k's model for so many rows at once that bucket i has them.
    batch_rows
        ``batch_rows[k]``: rows of these runs.
    late
        ``late[k]``: of the answers of class k, requests whose deadline had passed.
    moved
        ``moved[k]``: requests that class k did not serve and that others were given.
    latency_sum_s, service_sum_s
        Per class, over answered requests.
    ignored
        Parameters of requests that mean nothing here.
    """

    __slots__ = (
        "accuracy_sum",
        "batch_rows",
        "batches",
        "buckets",
        "gone_rows",
        "ignored",
        "late",
        "latency_sum_s",
        "moved",
        "outcomes",
        "rows",
        "service_sum_s",
        "variants",
    )

    def __init__(self, variants: tuple[str, ...]) -> None:
        classes = len(variants)
        self.variants = variants
        self.outcomes = [[0] * (classes + 1) for _ in Outcome]
        self.rows = [0] * classes
        self.gone_rows = 0
        self.ignored = 0
        self.accuracy_sum = 0.0
        self.buckets = [[0] * (len(LATENCY_BOUNDS_S) + 1) for _ in range(classes)]
        self.batches = [[0] * (len(BATCH_BOUNDS) + 1) for _ in range(classes)]
        self.batch_rows = [0] * classes
        self.late = [0] * classes
        self.moved = [0] * classes
        self.latency_sum_s = [0.0] * classes
        self.service_sum_s = [0.0] * classes

    def answered(
        self, k: int, rows: int, accuracy: float, latency_s: float, service_s: float
    ) -> None:
        """Count an answer of class k."""
        self.outcomes[0][k] += 1
        self.rows[k] += rows
        self.accuracy_sum += rows * accuracy
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

    def absorb(self, other: Stats) -> None:
        """Add what another site of the task has counted, class by class of the same name.

        What a variant that is no longer here has done counts for the task's means only.
        """
        places = {name: k for k, name in enumerate(self.variants)}
        for theirs, name in enumerate((*other.variants, "")):
            mine = places.get(name, -1)
            for own, outcomes in zip(self.outcomes, other.outcomes, strict=True):
                own[mine] += outcomes[theirs]
            if mine < 0:
                continue
            self.rows[mine] += other.rows[theirs]
            self.late[mine] += other.late[theirs]
            self.moved[mine] += other.moved[theirs]
            self.latency_sum_s[mine] += other.latency_sum_s[theirs]
            self.service_sum_s[mine] += other.service_sum_s[theirs]
            self.batch_rows[mine] += other.batch_rows[theirs]
            for own, counts in (
                (self.buckets[mine], other.buckets[theirs]),
                (self.batches[mine], other.batches[theirs]),
            ):
                for i, count in enumerate(counts):
                    own[i] += count
        self.ignored += other.ignored
        self.gone_rows += other.gone_rows + sum(
            rows
            for name, rows in zip(other.variants, other.rows, strict=True)
            if name not in places
        )
        self.accuracy_sum += other.accuracy_sum

    @property
    def total_rows(self) -> int:
        """Answers of all variants, those that are here no more included."""
        return sum(self.rows) + self.gone_rows

    def ended(self, outcome: Outcome, k: int = -1) -> None:
        """Count a request without an answer; k is -1 where no variant was chosen."""
        self.outcomes[outcome][k] += 1

    def total(self, outcome: Outcome) -> int:
        """Count the requests that ended so."""
        return sum(self.outcomes[outcome])
