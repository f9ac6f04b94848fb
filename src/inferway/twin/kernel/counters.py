"""Counters of a run, in memory that does not grow with its length.

P phases of the workload (a request belongs to the phase in which it arrived), K server classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from inferway.site.compiled import jit
from inferway.site.view import Floats, Ints

LENGTHS = 256  # Queue lengths told apart; the last stands for all beyond
_OCTAVES = 80
_SHIFT = 45  # Bits of a response time that its bucket leaves out: 128 buckets to the octave
# The bucket of 2^-40 s, a picosecond; all that is shorter falls into it.
_LEAST = (1023 - 40) << (52 - _SHIFT)
BUCKETS = _OCTAVES << (52 - _SHIFT)


class Tally(NamedTuple):
    """Counts and sums since the warm-up."""

    arrived: Ints  # (P,) requests that entered
    rejected: Ints  # (P,) refused at once
    sent: Ints  # (P, K) dispatched to a server of the class, less those withdrawn
    answered: Ints  # (P, K) answered, in time or late
    late: Ints  # (P, K) answered after the deadline
    dropped: Ints  # (P,) dropped when the deadline had passed
    response_s: Floats  # (P, K) sum of response times, s
    histogram: Ints  # (P, K, BUCKETS) response times by `bucket`
    lengths: Floats  # (K, LENGTHS) server-seconds spent with so many requests at a server
    # (2,) integral of the number in the system, request-seconds; and the same of those who left,
    # summed one by one as they did.
    area: Floats


def empty_tally(phases: int, classes: int) -> Tally:
    """All zero."""
    shape = (phases, classes)
    return Tally(
        arrived=np.zeros(phases, np.int64),
        rejected=np.zeros(phases, np.int64),
        sent=np.zeros(shape, np.int64),
        answered=np.zeros(shape, np.int64),
        late=np.zeros(shape, np.int64),
        dropped=np.zeros(phases, np.int64),
        response_s=np.zeros(shape),
        histogram=np.zeros((*shape, BUCKETS), np.int64),
        lengths=np.zeros((classes, LENGTHS)),
        area=np.zeros(2),
    )


@jit
def bucket(value: float) -> int:
    """The bucket of a number at least 0: its exponent and the first seven bits behind it."""
    index = int(np.float64(value).view(np.int64) >> _SHIFT) - _LEAST
    return min(max(index, 0), BUCKETS - 1)


def quantiles(histogram: Ints, levels: Sequence[float]) -> list[float]:
    """Quantiles of what a histogram by `bucket` holds, linear within a bucket; nan where empty."""
    total = int(histogram.sum())
    if total == 0:
        return [math.nan for _ in levels]
    below = np.cumsum(histogram)
    found = []
    for level in levels:
        rank = level * total
        place = int(np.searchsorted(below, rank, side="left"))
        inside = (rank - (below[place] - histogram[place])) / histogram[place]
        low, high = _edge(place), _edge(place + 1)
        found.append(low + inside * (high - low))
    return found


def _edge(place: int) -> float:
    """The lower edge of a bucket; 0 of the first, which holds all that is shorter."""
    return float(np.int64((place + _LEAST) << _SHIFT).view(np.float64)) if place > 0 else 0.0
