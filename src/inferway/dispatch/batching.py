"""Batches as a deployment file offers them: sizes, the rule that forms them, and their times.

A policy with `pull` forms its own batches. Without it a free server follows the modified Neuts rule
of [Tan24], Sec. 5.2.2, with the file's `min` and `max`: below the smallest batch it waits for
more, else it takes what waits, at most the largest.

Departure: of the sizes that those who wait fill, it takes the one that serves the most per second
and keeps the first in time (`inferway.site.selection.formed`), not always the largest. With `pad`,
rows that fill no size may be run as the next one; with `wait`, a batch that could be larger waits
for more, so long after its first request came, and no longer than that one can be in time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferway.site.view import SIZES, Floats, Site

if TYPE_CHECKING:
    from inferway.deployment import Batch
    from inferway.dispatch.dispatcher import FormedBatch


class Rule(NamedTuple):
    """Batch rule of the servers of a class."""

    sizes: tuple[int, ...] = (1,)  # That are offered, increasing; 1 always is
    smallest: int = 1  # Requests below which a free server waits for more
    largest: int = 1
    pad: bool = False
    wait_s: float = 0.0  # Longest wait of a batch for more, from its first request's arrival on

    def form(
        self,
        form: Callable[[int, float], FormedBatch],
        rows: int,
        now_s: float,
        first_s: float,
        latest_s: float,
    ) -> tuple[FormedBatch, float]:
        """Form the batch that a free server takes of `rows` that wait, and until when it waits.

        Parameters
        ----------
        form
            `Dispatcher.form` of the server.
        rows
            That wait, at least 1.
        now_s, first_s, latest_s
            The time, when the first of them came, and its deadline or inf.

        Returns
        -------
        batch, until_s
            The second is in the future where the server should wait for more; else -inf.
        """
        batch = form(min(rows, self.largest), latest_s - now_s)
        if self.wait_s > 0.0 and batch.rows < form(self.largest, np.inf).rows:
            until_s = min(first_s + self.wait_s, latest_s - batch.run_s)
            if now_s < until_s:
                return batch, until_s
        return batch, -np.inf

    def within(self, rows: int) -> Rule:
        """Leave out what has more rows than a run may have."""
        sizes = tuple(size for size in self.sizes if size <= max(1, rows))
        largest = min(self.largest, sizes[-1])
        return self._replace(sizes=sizes, smallest=min(self.smallest, largest), largest=largest)

    def padded(self, rows: int) -> int:
        """Rows that the model runs for a batch of so many."""
        beyond = (size for size in self.sizes if size >= rows)
        return next(beyond, rows) if self.pad else rows

    def rounded(self, rows: int) -> int:
        """The largest size offered that so many rows fill; 0 for none."""
        return self.sizes[bisect_right(self.sizes, rows) - 1] if rows > 0 else 0


def rule_of(batch: Batch | None) -> Rule:
    """The rule of a variant; one at a time where the file offers no batches."""
    if batch is None:
        return Rule()
    sizes = tuple(sorted({1, *batch.sizes}))
    return Rule(sizes, batch.min, batch.max, batch.pad, batch.wait_s)


def rules_of(site: Site, batches: Sequence[Batch | None]) -> list[Rule]:
    """The rules of a site's classes, as far as their runs may go."""
    return [
        rule_of(batch).within(int(site.most_rows[site.first[k]])) for k, batch in enumerate(batches)
    ]


def row_s_of(site: Site, k: int) -> list[float]:
    """(S,) times of a row in runs of 1, 2, 4, ... rows, s: means over the servers of class k."""
    servers = site.row_s[site.first[k] : site.first[k + 1]]
    means: list[float] = (servers.sum(axis=0) / len(servers)).tolist()
    return means


def least_s(row_s: Sequence[float], rule: Rule) -> float:
    """Predict the service time of the smallest run that a server begins, s, from times of a row.

    That of a lone request, but where these wait for more.
    """
    return run_s_of(row_s, rule.smallest)


def most_per_s(row_s: Sequence[float], rule: Rule) -> float:
    """Predict how many requests a second a server takes that is never idle, from times of a row.

    In the batches that pay most, of those that its rule forms.
    """
    formed = [size for size in rule.sizes if rule.smallest <= size <= rule.largest]
    return max(size / run_s_of(row_s, size) for size in formed)


def run_s_of(row_s: Sequence[float] | Floats, rows: int) -> float:
    """Time of one run as `inferway.site.selection.run_time` has it, without compiling that.

    `row_s` are (S,) times of a row in runs of 1, 2, 4, ... rows.
    """
    size = min((rows - 1).bit_length(), SIZES - 1)
    full = 1 << size
    if rows >= full:
        return float(rows * row_s[size])
    half = full >> 1
    half_s, full_s = half * row_s[size - 1], full * row_s[size]
    return float(half_s + (full_s - half_s) * ((rows - half) / half))


def row_times(run_s: Mapping[int, float]) -> Floats:
    """(S,) times of a row in runs of 1, 2, 4, ... rows that give the times of some sizes of run.

    Of several sizes between two powers of two the largest is met. Sizes beyond them all take as
    long a row as the largest.
    """
    sizes, times_s = list(run_s), list(run_s.values())
    found = [float(np.interp(1, sizes, times_s))]
    for size in range(1, SIZES):
        full, half, half_s = 1 << size, 1 << (size - 1), found[-1]
        between = [one for one in sizes if half < one <= full]
        if between:
            part = (max(between) - half) / half
            full_s = max(half_s + (run_s[max(between)] - half_s) / part, half_s / 4.0)
        elif full < max(sizes):
            full_s = float(np.interp(full, sizes, times_s))
        else:
            full_s = 2.0 * half_s
        found.append(full_s)
    return np.array(found) / 2.0 ** np.arange(SIZES)


def foresee(site: Site, batches: Sequence[Batch | None]) -> None:
    """Have a site predict batches' times as the file says, by class, and divide what is larger.

    Nothing has been measured there yet.
    """
    for k, batch in enumerate(batches):
        if batch is None:
            continue
        servers = slice(int(site.first[k]), int(site.first[k + 1]))
        site.most_rows[servers] = max(batch.sizes)
        alone_s = {1: float(site.row_s[servers.start, 0])}
        run_s = alone_s | dict(zip(batch.sizes, batch.service_s, strict=True))
        for times_s in (site.row_s, site.slow_s, site.first_s):
            times_s[servers] = row_times(run_s)
        site.rate[k] = 1.0 / float(np.mean(site.row_s[servers, 0]))
        rule = rule_of(batch).within(int(site.most_rows[servers.start]))
        offered = [size for size in rule.sizes if size <= rule.largest]
        site.sizes[k, : len(offered)], site.sizes[k, len(offered) :] = offered, 0
        site.pads[k] = rule.pad
