"""Arrival times of every process that a deployment file can name.

A process is an endless stream of sorted chunks of times, drawn in one fixed order; cutting it at a
horizon or a count changes nothing before the cut, so a longer run begins as the shorter one did.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.column import read_times
from inferway.deployment.workloads import (
    Arrivals,
    ConstantArrivals,
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    SinusoidalArrivals,
    TraceArrivals,
)
from inferway.workload.markovian import markovian

__all__ = ["mean_rate", "peak_rate", "times"]

Times = NDArray[np.float64]
_CHUNK = 8192


def times(
    arrivals: Arrivals,
    *,
    horizon_s: float | None = None,
    count: int | None = None,
    capacity_per_s: float | None = None,
    seed: int = 0,
) -> Times:
    """Draw arrival times.

    Parameters
    ----------
    arrivals
        The process, from a deployment's workload.
    horizon_s
        Draw the arrivals in [0, horizon_s), in seconds.
    count
        Draw this many arrivals, instead. A trace must hold as many.
    capacity_per_s
        The greatest feasible rate, which a ``load`` in the file is relative to.
    seed
        The same seed gives the same times.

    Returns
    -------
    (n,) sorted arrival times in seconds.

    Raises
    ------
    ValueError
        If not exactly one of `horizon_s` and `count` is given, one is negative, the process has a
        load and `capacity_per_s` is missing, or a trace cannot be read or is too short.
    """
    if (horizon_s is None) == (count is None):
        raise ValueError("give either horizon_s or count")
    if (horizon_s is not None and not 0 <= horizon_s < np.inf) or (count is not None and count < 0):
        raise ValueError(f"cannot draw arrivals for horizon_s={horizon_s}, count={count}")
    stream = _stream(arrivals, capacity_per_s, np.random.default_rng(seed))
    taken: list[Times] = []
    total = 0
    for chunk in stream:
        taken.append(chunk)
        total += len(chunk)
        if horizon_s is not None and len(chunk) and chunk[-1] >= horizon_s:
            break
        if count is not None and total >= count:
            break
    drawn = np.concatenate(taken) if taken else np.empty(0)
    if horizon_s is not None:
        return drawn[: np.searchsorted(drawn, horizon_s, side="left")]
    if count is not None and len(drawn) < count:
        raise ValueError(f"the trace holds {len(drawn)} arrivals, fewer than {count}")
    return drawn[:count]


def mean_rate(arrivals: Arrivals, capacity_per_s: float | None = None) -> float:
    """Return the long-run arrival rate, per second.

    Raises
    ------
    ValueError
        If the process has a load and `capacity_per_s` is missing, or a trace has no rate.
    """
    match arrivals:
        case PhasedArrivals(phases=phases):
            requests = sum(p.for_ * p.mean_rate_per_s(capacity_per_s) for p in phases)
            return requests / sum(p.for_ for p in phases)
        case TraceArrivals(file=file, speed=speed):
            recorded = read_times(file)
            if recorded[-1] == recorded[0]:
                raise ValueError(f"{file} has no rate: all its times are equal")
            return float((len(recorded) - 1) / (recorded[-1] - recorded[0]) * speed)
        case _:
            return arrivals.mean_rate_per_s(capacity_per_s)


def peak_rate(arrivals: Arrivals, capacity_per_s: float | None = None) -> float:
    """Return the greatest rate at any time, per second (for a trace, over any one second).

    Raises
    ------
    ValueError
        As `mean_rate`.
    """
    match arrivals:
        case PhasedArrivals(phases=phases):
            return max(phase.mean_rate_per_s(capacity_per_s) for phase in phases)
        case SinusoidalArrivals(amplitude=amplitude):
            return arrivals.mean_rate_per_s(capacity_per_s) * (1 + amplitude)
        case MapArrivals(d1=d1):
            return max(sum(row) for row in d1)
        case TraceArrivals():
            replayed = times(arrivals, horizon_s=np.finfo(float).max)
            after = np.searchsorted(replayed, replayed + 1.0, side="left")
            return float((after - np.arange(len(replayed))).max())
        case _:
            return arrivals.mean_rate_per_s(capacity_per_s)


def _stream(
    arrivals: Arrivals, capacity_per_s: float | None, rng: np.random.Generator
) -> Iterator[Times]:
    match arrivals:
        case PoissonArrivals():
            rate = arrivals.mean_rate_per_s(capacity_per_s)
            return (chunk / rate for chunk in _unit_poisson(rng))
        case ConstantArrivals():
            return _constant(arrivals.mean_rate_per_s(capacity_per_s))
        case SinusoidalArrivals():
            return _sinusoidal(arrivals, arrivals.mean_rate_per_s(capacity_per_s), rng)
        case PhasedArrivals():
            return map(_phase_clock(arrivals, capacity_per_s), _unit_poisson(rng))
        case MapArrivals():
            return markovian(np.array(arrivals.d0), np.array(arrivals.d1), arrivals.stationary, rng)
        case TraceArrivals():
            return iter([read_times(arrivals.file) / arrivals.speed])


def _unit_poisson(rng: np.random.Generator) -> Iterator[Times]:
    """Yield a Poisson process of rate 1."""
    last = 0.0
    while True:
        chunk = last + np.cumsum(rng.standard_exponential(_CHUNK))
        last = float(chunk[-1])
        yield chunk


def _constant(rate: float) -> Iterator[Times]:
    for start in itertools.count(0, _CHUNK):
        yield np.arange(start, start + _CHUNK) / rate


def _sinusoidal(
    arrivals: SinusoidalArrivals, rate: float, rng: np.random.Generator
) -> Iterator[Times]:
    """Thin a Poisson process at the peak rate (Lewis and Shedler, doi:10.1002/nav.3800260304)."""
    peak = rate * (1 + arrivals.amplitude)
    for candidates in _unit_poisson(rng):
        at = candidates / peak
        turn = 2 * np.pi * np.mod(at, arrivals.period) / arrivals.period
        accept = (1 + arrivals.amplitude * np.sin(turn)) / (1 + arrivals.amplitude)
        yield at[rng.random(len(at)) < accept]


def _phase_clock(
    arrivals: PhasedArrivals, capacity_per_s: float | None
) -> Callable[[Times], Times]:
    """Map a unit-rate process to one whose rate follows the phases, by its inverse mean count."""
    lengths = np.array([phase.for_ for phase in arrivals.phases])
    rates = np.array([phase.mean_rate_per_s(capacity_per_s) for phase in arrivals.phases])
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    counts = np.concatenate([[0.0], np.cumsum(lengths * rates)])

    def to_time(chunk: Times) -> Times:
        cycles, within = np.divmod(chunk, counts[-1])
        return np.asarray(cycles * ends[-1] + np.interp(within, counts, ends))

    return to_time
