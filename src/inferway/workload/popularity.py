"""Popularity of identical tasks among requests, and its change with time.

[SiSalem23], Sec. VI: task i of N, counted from 0, is asked for with probability
``p(i) = (i + 1)^-zipf / sum``; where popularity slides, with ``p((i + shift * k) mod N)`` after k
periods. Departure: the paper counts a period in requests, as many as come in an hour at 7,500 a
second; here it is a time, so that an hour is an hour at any request rate.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import Popularity

Float = NDArray[np.float64]


def zipf(tasks: int, exponent: float) -> Float:
    """(tasks,) shares that fall with rank as rank^-exponent and sum to 1."""
    weight = np.arange(1, tasks + 1, dtype=np.float64) ** -exponent
    return np.asarray(weight / weight.sum())


def share_at(popularity: Popularity | None, tasks: int, time_s: float) -> Float:
    """(tasks,) each task's share of the requests at a time; even where `popularity` is None."""
    if popularity is None:
        return np.full(tasks, 1.0 / tasks)
    ranked = zipf(tasks, popularity.zipf)
    if popularity.sliding is None:
        return ranked
    period = math.floor(time_s / popularity.sliding.every)
    return np.roll(ranked, -(popularity.sliding.shift * period) % tasks)


def mean_share(popularity: Popularity | None, tasks: int, start_s: float, end_s: float) -> Float:
    """(tasks,) mean of the shares over [start, end); end is after start."""
    if popularity is None or popularity.sliding is None:
        return share_at(popularity, tasks, start_s)
    every = popularity.sliding.every
    # Shares repeat after as many periods as bring the shift back to where it was.
    periods = tasks // math.gcd(tasks, popularity.sliding.shift)
    cycle = every * periods
    whole = math.floor((end_s - start_s) / cycle)
    total = np.zeros(tasks)
    if whole:
        total += whole * sum(
            every * share_at(popularity, tasks, (k + 0.5) * every) for k in range(periods)
        )
    start, last = start_s + whole * cycle, end_s
    while start < last:
        period = math.floor(start / every)
        end = min((period + 1) * every, last)
        if end <= start:  # a period's end that rounds to its start
            end = min((period + 2) * every, last)
            period += 1
        total += (end - start) * share_at(popularity, tasks, (period + 0.5) * every)
        start = end
    return np.asarray(total / total.sum())


def greatest_share(popularity: Popularity | None, tasks: int) -> Float:
    """(tasks,) the greatest share that each task ever has."""
    if popularity is None or popularity.sliding is None:
        return share_at(popularity, tasks, 0.0)
    ranked = zipf(tasks, popularity.zipf)
    # Sliding by `shift` visits every gcd(tasks, shift)-th rank.
    step = math.gcd(tasks, popularity.sliding.shift)
    return np.array([ranked[i % step :: step].max() for i in range(tasks)])
