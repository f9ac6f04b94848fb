"""Batches as a deployment file offers them: sizes, the rule that forms them, and their times.

A policy with `pull` forms its own batches. Without it a free server follows the modified Neuts rule
of [Tan24], Sec. 5.2.2, with the file's `min` and `max`: below the smallest batch it waits for
more, else it takes what waits, at most the largest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inferway.site.view import SIZES, Site

if TYPE_CHECKING:
    from inferway.deployment import Batch


class Rule(NamedTuple):
    """Batch rule of the servers of a class."""

    sizes: tuple[int, ...] = (1,)  # That are offered, increasing; 1 always is
    smallest: int = 1  # Requests below which a free server waits for more
    largest: int = 1

    def take(self, waiting: int) -> int:
        """Number of those waiting that a free server takes, before rounding."""
        return 0 if waiting < self.smallest else min(waiting, self.largest)

    def within(self, rows: int) -> Rule:
        """Leave out what has more rows than a run may have."""
        sizes = tuple(size for size in self.sizes if size <= max(1, rows))
        largest = min(self.largest, sizes[-1])
        return Rule(sizes, min(self.smallest, largest), largest)

    def rounded(self, rows: int) -> int:
        """The largest size offered that so many rows fill; 0 for none."""
        return self.sizes[bisect_right(self.sizes, rows) - 1] if rows > 0 else 0


def rule_of(batch: Batch | None) -> Rule:
    """The rule of a variant; one at a time where the file offers no batches."""
    if batch is None:
        return Rule()
    return Rule(tuple(sorted({1, *batch.sizes})), batch.min, batch.max)


def rules_of(site: Site, batches: Sequence[Batch | None]) -> list[Rule]:
    """The rules of a site's classes, as far as their runs may go."""
    return [
        rule_of(batch).within(int(site.most_rows[site.first[k]])) for k, batch in enumerate(batches)
    ]


def least_s(site: Site, k: int, rule: Rule) -> float:
    """Predict the service time of the smallest run that servers of class k begin, s.

    That of a lone request, but where these wait for more.
    """
    return rule.smallest * _row_s(site, k, rule.smallest)


def most_per_s(site: Site, k: int, rule: Rule) -> float:
    """Predict how many requests a second a server of class k takes that is never idle.

    In the batches that pay most, of those that its rule forms.
    """
    formed = [size for size in rule.sizes if rule.smallest <= size <= rule.largest]
    return max(1.0 / _row_s(site, k, size) for size in formed)


def column_of(rows: int) -> int:
    """Return what `size_class` does, for those who need not wait until that is compiled."""
    return min((rows - 1).bit_length(), SIZES - 1)


def _row_s(site: Site, k: int, rows: int) -> float:
    """Mean over the servers of class k, s for each of so many rows in one run."""
    servers = slice(int(site.first[k]), int(site.first[k + 1]))
    return float(np.mean(site.row_s[servers, column_of(rows)]))


def foresee(site: Site, batches: Sequence[Batch | None]) -> None:
    """Have a site predict batches' times as the file says, by class, and divide what is larger.

    Nothing has been measured there yet.
    """
    for k, batch in enumerate(batches):
        if batch is None:
            continue
        servers = slice(int(site.first[k]), int(site.first[k + 1]))
        site.most_rows[servers] = max(batch.sizes)
        for size, service_s in zip(batch.sizes, batch.service_s, strict=True):
            # Sizes beyond are taken to be like this one until their own turn comes.
            beyond = slice(column_of(size), SIZES)
            for times_s in (site.row_s, site.slow_s):
                times_s[servers, beyond] = service_s / size
        site.rate[k] = 1.0 / float(np.mean(site.row_s[servers, 0]))
