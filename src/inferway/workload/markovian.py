"""The Markovian arrival process, simulated exactly.

Lucantoni, Stochastic Models 7(1), 1991, doi:10.1080/15326349108807174: the phase is a Markov chain
with generator D0 + D1; transitions counted in D1 bring an arrival, those in D0 none.

Arrivals that leave the phase as it is form, within a stay in phase i, a Poisson process of rate
D1[i, i] independent of when the stay ends. So only the changes of phase are walked one by one; the
many arrivals between two changes are drawn in one go.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from math import ceil

import numpy as np
from numpy.typing import NDArray

__all__ = ["markovian"]

_STAYS = 1024  # stays per chunk, where arrivals within stays are few
_ARRIVALS = 65_536  # about how many arrivals a chunk holds, where they are many

Matrix = NDArray[np.float64]


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
    silent = d0 - np.diag(np.diag(d0))
    loud = d1 - np.diag(np.diag(d1))
    leave = silent.sum(axis=1) + loud.sum(axis=1)
    inside = np.diag(d1).copy()
    # Row i: cumulative chances of the 2n ways to leave phase i, the silent ones first.
    ways = np.hstack([silent, loud])
    cumulative = [
        (np.cumsum(row) / total).tolist() if total > 0 else []
        for row, total in zip(ways, leave, strict=True)
    ]
    mean_stay = [1 / rate if rate > 0 else float("inf") for rate in leave]
    phase = bisect_right(np.cumsum(start).tolist(), rng.random())
    phase = min(phase, phases - 1)
    clock = 0.0
    while True:
        if leave[phase] == 0:
            yield from _forever(clock, float(inside[phase]), rng)
        stays, states, bring = [], [], []
        expected = 0.0
        lengths = rng.standard_exponential(_STAYS).tolist()
        picks = rng.random(_STAYS).tolist()
        for length, pick in zip(lengths, picks, strict=True):
            stay = length * mean_stay[phase]
            stays.append(stay)
            states.append(phase)
            expected += stay * inside[phase]
            way = min(bisect_right(cumulative[phase], pick), 2 * phases - 1)
            bring.append(way >= phases)
            phase = way % phases
            if leave[phase] == 0 or expected > _ARRIVALS:
                break
        # Only the last stay can be so long that its arrivals must not be drawn in one go.
        pieces = max(1, ceil(stays[-1] * inside[states[-1]] / _ARRIVALS))
        last, stays[-1] = stays[-1], stays[-1] / pieces
        ends = clock + np.cumsum(stays)
        ending = np.array(bring)
        ending[-1] &= pieces == 1
        yield _within(clock, ends, inside[states], ending, rng)
        clock = float(ends[-1])
        for piece in range(1, pieces):
            end = np.array([clock + last / pieces])
            ending = np.array([bring[-1] and piece == pieces - 1])
            yield _within(clock, end, inside[states[-1:]], ending, rng)
            clock = float(end[0])


def _within(
    clock: float,
    ends: NDArray[np.float64],
    rates: NDArray[np.float64],
    bring: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw the arrivals of some stays: Poisson inside each, and one at the end of some."""
    starts = np.concatenate([[clock], ends[:-1]])
    counts = rng.poisson(rates * (ends - starts))
    inside = np.repeat(starts, counts) + rng.random(counts.sum()) * np.repeat(ends - starts, counts)
    return np.sort(np.concatenate([inside, ends[bring]]))


def _forever(clock: float, rate: float, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """Yield a Poisson process from `clock` on: the phase is never left again."""
    while True:
        chunk = clock + np.cumsum(rng.standard_exponential(_ARRIVALS)) / rate
        clock = float(chunk[-1])
        yield chunk
