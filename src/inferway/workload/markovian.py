"""The Markovian arrival process, simulated exactly.

Lucantoni, Stochastic Models 7(1), 1991, doi:10.1080/15326349108807174: the phase is a Markov chain
with generator D0 + D1; transitions counted in D1 bring an arrival, those in D0 none.

The chain is walked step by step, at the rate at which anything at all happens in its phase, by
compiled code; the random numbers come in blocks from the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from inferway.workload.clock import CHUNK, Clock

__all__ = ["markovian"]

Matrix = NDArray[np.float64]
Walk = Callable[..., tuple[int, int, float]]


def markovian(
    d0: Matrix, d1: Matrix, start: NDArray[np.float64], rng: np.random.Generator
) -> Iterator[NDArray[np.float64]]:
    """Yield sorted chunks of arrival times in seconds, for ever.

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
    while True:
        gaps, picks = rng.standard_exponential(CHUNK), rng.random(CHUNK)
        found, phase, end = walk(cumulative, 1 / events, phase, clock.rest, gaps, picks)
        yield clock.moved(gaps[:found], end)


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
) -> tuple[int, int, float]:
    """Take a step for each gap and pick; write the times of arrivals over the gaps.

    Returns the number of arrivals, the phase and the time after the last step.
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
            found += 1
            phase = low - phases
        else:
            phase = low
    return found, phase, now_s
