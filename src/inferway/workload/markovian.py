"""The Markovian arrival process, simulated exactly.

Lucantoni, Stochastic Models 7(1), 1991, doi:10.1080/15326349108807174: the phase is a Markov chain
with generator D0 + D1; transitions counted in D1 bring an arrival, those in D0 none.

The chain is walked step by step, at the rate at which anything at all happens in its phase, by
compiled code; the random numbers come in blocks from the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK: Final = 65_536
"""Arrivals, or steps of a chain, drawn at a time. Sums are rounded by chunk, so another size
changes the last digits of the times, and where several kinds of numbers take turns, all of them."""


class Clock:
    """A sum in two parts, so that its rounding errors do not add up (Knuth's TwoSum)."""

    def __init__(self) -> None:
        self.base = 0.0
        self.rest = 0.0
        """What `base` is short of the exact sum, below half of its last digit."""

    def after(self, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn (m,) gaps into the times at their ends, in place."""
        gaps[0] += self.rest
        np.cumsum(gaps, out=gaps)
        return self.moved(gaps, float(gaps[-1]))

    def moved(self, since: NDArray[np.float64], end: float) -> NDArray[np.float64]:
        """Turn times since `base`, that began at `rest`, into times, in place; go on from `end`."""
        since += self.base
        total = self.base + end
        back = total - self.base
        self.rest = (self.base - (total - back)) + (end - back)
        self.base = total
        return since


Matrix = NDArray[np.float64]
Walk = Callable[..., tuple[int, int, int, float]]


class Course(NamedTuple):
    """What happens in a stretch of time: m arrivals and s changes of the phase."""

    times_s: NDArray[np.float64]
    """(m,) sorted arrival times, s."""
    phase: NDArray[np.int64]
    """(m,) the phase that each arrival ends: in which the request arrives."""
    switch_s: NDArray[np.float64]
    """(s,) when the phase becomes another; the first at time 0, when it becomes what it is."""
    switch_to: NDArray[np.int64]
    """(s,) which one."""


def markovian(
    d0: Matrix, d1: Matrix, start: NDArray[np.float64], rng: np.random.Generator
) -> Iterator[Course]:
    """Yield what happens from time 0 on, stretch by stretch, for ever.

    Parameters
    ----------
    d0, d1
        (phases, phases) rates per second, a valid process.
    start
        (phases,) distribution of the phase at time 0; the stationary one makes the process
        stationary.
    rng
        Where randomness comes from.
    """
    phases = len(d0)
    # Row i: cumulative chances of the 2n things that can happen in phase i, the silent ones first.
    ways = np.hstack([d0 - np.diag(np.diag(d0)), d1])
    events = ways.sum(axis=1)
    cumulative = np.cumsum(ways, axis=1) / events[:, None]
    # The last way that can happen takes what rounding leaves below 1.
    for row, way in zip(cumulative, ways, strict=True):
        row[np.flatnonzero(way)[-1] :] = 1.0
    phase = min(int(np.searchsorted(np.cumsum(start), rng.random(), side="right")), phases - 1)
    clock, walk = Clock(), _walk()
    switch_s, switch_to = np.empty(CHUNK + 1), np.empty(CHUNK + 1, np.int64)
    switch_s[0], switch_to[0] = 0.0, phase
    switched = 1
    while True:
        gaps, picks = rng.standard_exponential(CHUNK), rng.random(CHUNK)
        during = np.empty(CHUNK, np.int64)
        found, switched, phase, end = walk(
            *(cumulative, 1 / events, phase, clock.rest, gaps, picks),
            *(during, switch_s, switch_to, switched),
        )
        switches = switch_s[:switched] + clock.base
        yield Course(
            clock.moved(gaps[:found], end), during[:found], switches, switch_to[:switched].copy()
        )
        switched = 0


@cache
def _walk() -> Walk:
    import numba

    walk: Walk = numba.njit(nogil=True)(_walk_plain)
    return walk


def _walk_plain(
    cumulative: Matrix,
    mean_s: NDArray[np.float64],
    phase: int,
    now_s: float,
    gaps: NDArray[np.float64],
    picks: NDArray[np.float64],
    during: NDArray[np.int64],
    switch_s: NDArray[np.float64],
    switch_to: NDArray[np.int64],
    switched: int,
) -> tuple[int, int, int, float]:
    """Take a step for each gap and pick; write the times of arrivals over the gaps.

    Their phases go to `during`, changes of the phase behind the first `switched` that are there.
    Returns the numbers of arrivals and changes, the phase and the time after the last step.
    """
    phases = len(mean_s)
    found = 0
    for step in range(len(gaps)):
        now_s += gaps[step] * mean_s[phase]
        low, high = 0, 2 * phases - 1
        while low < high:
            middle = (low + high) >> 1
            if cumulative[phase, middle] > picks[step]:
                high = middle
            else:
                low = middle + 1
        if low >= phases:
            gaps[found] = now_s
            during[found] = phase
            found += 1
            low -= phases
        if low != phase:
            switch_s[switched] = now_s
            switch_to[switched] = low
            switched += 1
            phase = low
    return found, switched, phase, now_s
