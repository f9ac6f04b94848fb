"""Arrival times of every process that a deployment file can name, and their phases.

A process is an endless stream of sorted chunks, drawn in one fixed order and in blocks of one fixed
size; cutting it at a horizon or a count changes nothing before the cut, so a longer run begins as
the shorter one did.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import (
    Arrivals,
    ConstantArrivals,
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    SinusoidalArrivals,
    TraceArrivals,
)

# Arrivals, or steps of a chain, drawn at a time. Sums are rounded by chunk, so another size
# changes the last digits of the times, and where several kinds of numbers take turns, all of them.
CHUNK: Final = 65_536


class Clock:
    """A sum in two parts, so that its rounding errors do not add up (Knuth's TwoSum)."""

    def __init__(self) -> None:
        self.base = 0.0
        self.rest = 0.0  # What `base` is short of the exact sum, below half of its last digit

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


class Chunk(NamedTuple):
    """Arrivals that follow one another, m of them."""

    times_s: Times  # (m,) sorted arrival times, s
    # (m,) index of the workload's phase at each arrival; 0 where there are no phases.
    phase: NDArray[np.int64]
    # (s,) when the phase has become another since the chunk before, s, up to the end of this one;
    # of Markovian arrivals alone, whose phases change at random. The first is at time 0.
    switch_s: Times = np.empty(0)
    switch_to: NDArray[np.int64] = np.empty(0, np.int64)  # (s,) which phase it has become


def markovian(
    d0: Matrix, d1: Matrix, start: NDArray[np.float64], rng: np.random.Generator
) -> Iterator[Chunk]:
    """Yield what happens from time 0 on, stretch by stretch, for ever.

    The (phases, phases) rates per second are of a valid process; `start`, (phases,), is the
    distribution of the phase at time 0, the stationary one for a stationary process.
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
        yield Chunk(
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


# Phases of Markovian arrivals that are told apart; a process with more has one for all.
MOST_PHASES = 32

Times = NDArray[np.float64]


def stream(
    arrivals: Arrivals, *, capacity_per_s: float | None = None, seed: int | np.random.Generator = 0
) -> Iterator[Chunk]:
    """Draw arrivals for ever, in bounded memory; a trace ends with its file.

    Parameters
    ----------
    arrivals
        The process, from a deployment's workload.
    capacity_per_s
        The greatest feasible rate, which a ``load`` in the file is relative to.
    seed
        The same seed gives the same arrivals; a generator is used from where it stands.

    Yields
    ------
    Chunks of at most 65,536 arrivals, at least one each.

    Raises
    ------
    ValueError
        If the process has a load and `capacity_per_s` is missing, or a trace cannot be read.
    """
    chunks = _chunks(arrivals, capacity_per_s, np.random.default_rng(seed))
    return (chunk for chunk in chunks if len(chunk.times_s))


def times(
    arrivals: Arrivals,
    *,
    horizon_s: float | None = None,
    count: int | None = None,
    capacity_per_s: float | None = None,
    seed: int | np.random.Generator = 0,
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
        As in `stream`.

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
    if horizon_s == 0 or count == 0:
        return np.empty(0)
    end_s, most = (np.inf if limit is None else limit for limit in (horizon_s, count))
    taken: list[Times] = []
    total = 0
    for chunk in stream(arrivals, capacity_per_s=capacity_per_s, seed=seed):
        taken.append(chunk.times_s)
        total += len(chunk.times_s)
        if total >= most or chunk.times_s[-1] >= end_s:
            break
    drawn = np.concatenate([*taken, np.empty(0)])
    if horizon_s is not None:
        return drawn[: np.searchsorted(drawn, horizon_s, side="left")]
    if len(drawn) < most:
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
            first = last = None
            gaps = -1
            for piece in arrivals.pieces(CHUNK):
                first = piece[0] if first is None else first
                last, gaps = piece[-1], gaps + len(piece)
            if first is None or last is None or first == last:
                raise ValueError(f"{file} has no rate: all its times are equal")
            return float(gaps / (last - first) * speed)
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


def _chunks(
    arrivals: Arrivals, capacity_per_s: float | None, rng: np.random.Generator
) -> Iterator[Chunk]:
    match arrivals:
        case PoissonArrivals():
            rate = arrivals.mean_rate_per_s(capacity_per_s)
            return (_unphased(np.divide(chunk, rate, out=chunk)) for chunk in _unit_poisson(rng))
        case ConstantArrivals():
            return map(_unphased, _constant(arrivals.mean_rate_per_s(capacity_per_s)))
        case SinusoidalArrivals():
            rate = arrivals.mean_rate_per_s(capacity_per_s)
            return map(_unphased, _sinusoidal(arrivals, rate, rng))
        case PhasedArrivals():
            return map(_phase_clock(arrivals, capacity_per_s), _unit_poisson(rng))
        case MapArrivals():
            return _markovian(arrivals, rng)
        case TraceArrivals(speed=speed):
            return (_unphased(piece / speed) for piece in arrivals.pieces(CHUNK))


def _unphased(times_s: Times) -> Chunk:
    return Chunk(times_s, np.zeros(len(times_s), np.int64))


def _markovian(arrivals: MapArrivals, rng: np.random.Generator) -> Iterator[Chunk]:
    d0, d1 = np.array(arrivals.d0), np.array(arrivals.d1)
    chunks = markovian(d0, d1, arrivals.stationary, rng)
    if len(d0) > MOST_PHASES:
        yield from (_unphased(chunk.times_s) for chunk in chunks)
    silent: list[Chunk] = []
    for chunk in chunks:
        silent.append(chunk)
        if len(chunk.times_s):
            switch_s = np.concatenate([one.switch_s for one in silent])
            switch_to = np.concatenate([one.switch_to for one in silent])
            yield chunk._replace(switch_s=switch_s, switch_to=switch_to)
            silent = []


def _unit_poisson(rng: np.random.Generator) -> Iterator[Times]:
    clock = Clock()
    while True:
        yield clock.after(rng.standard_exponential(CHUNK))


def _constant(rate: float) -> Iterator[Times]:
    for start in itertools.count(0, CHUNK):
        yield np.arange(start, start + CHUNK) / rate


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
) -> Callable[[Times], Chunk]:
    """Map a unit-rate process to one whose rate follows the phases, by its inverse mean count."""
    lengths = np.array([phase.for_ for phase in arrivals.phases])
    rates = np.array([phase.mean_rate_per_s(capacity_per_s) for phase in arrivals.phases])
    starts = np.concatenate([[0.0], np.cumsum(lengths)])
    counts = np.concatenate([[0.0], np.cumsum(lengths * rates)])

    def to_times(chunk: Times) -> Chunk:
        cycle = np.floor(chunk / counts[-1])
        # Clipped, since the quotient may round up to the next cycle.
        within = np.clip(chunk - cycle * counts[-1], 0.0, counts[-1])
        phase = np.searchsorted(counts[1:-1], within, side="right")
        begun = cycle * starts[-1] + starts[phase]
        times_s = begun + (within - counts[phase]) / rates[phase]
        return Chunk(times_s, phase.astype(np.int64, copy=False))

    return to_times


class Span(NamedTuple):
    """One run through a phase."""

    phase: int  # Index in the file's list
    start_s: float  # Included, in seconds from the start of the workload
    end_s: float  # Excluded
    rate_per_s: float | None  # None where the file gives a load and no capacity was passed
    accuracy_target: float | None  # None where the task's holds


def spans(
    arrivals: PhasedArrivals, *, horizon_s: float, capacity_per_s: float | None = None
) -> Iterator[Span]:
    """List the phases in [0, `horizon_s`) in order; after the last comes the first again."""
    start, cycle, ends = 0.0, 0.0, _ends(arrivals)
    for index, phase in itertools.cycle(enumerate(arrivals.phases)):
        if start >= horizon_s:
            return
        end = cycle + ends[index]
        known = phase.rate is not None or capacity_per_s is not None
        rate = phase.mean_rate_per_s(capacity_per_s) if known else None
        yield Span(index, start, min(end, horizon_s), rate, phase.accuracy_target)
        # Multiples of the cycle, not sums of phases, so that late phases do not drift.
        start, cycle = end, end if index == len(ends) - 1 else cycle


def phases_of(arrivals: Arrivals, capacity_per_s: float | None = None) -> tuple[Span, ...]:
    """List each phase once, as the first cycle runs through it.

    The phases of Markovian arrivals, which change at random, all begin at 0 and never end, as does
    the one of a process without phases; its rate is None too where a trace has none.
    """
    if isinstance(arrivals, MapArrivals) and len(arrivals.d0) <= MOST_PHASES:
        rates = np.array(arrivals.d1).sum(axis=1)
        return tuple(Span(i, 0.0, np.inf, float(rate), None) for i, rate in enumerate(rates))
    if isinstance(arrivals, PhasedArrivals):
        cycle_s = _ends(arrivals)[-1]
        return tuple(spans(arrivals, horizon_s=cycle_s, capacity_per_s=capacity_per_s))
    rate: float | None = None
    with suppress(ValueError):
        rate = mean_rate(arrivals, capacity_per_s)
    return (Span(0, 0.0, np.inf, rate, None),)


def _ends(arrivals: PhasedArrivals) -> list[float]:
    return [float(end) for end in np.cumsum([phase.for_ for phase in arrivals.phases])]


class PhaseCourse:
    """The phase over time; asked at times that never fall."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._ends = np.array(_ends(arrivals) if isinstance(arrivals, PhasedArrivals) else [])
        self._markovian = isinstance(arrivals, MapArrivals) and len(arrivals.d0) <= MOST_PHASES
        self._coming: deque[tuple[float, int]] = deque()
        self._switched_s, self._phase = 0.0, 0

    def follow(self, chunk: Chunk) -> None:
        """Take note of a chunk of arrivals; times in it may be asked for from now on."""
        if self._markovian:
            self._coming.extend(zip(chunk.switch_s.tolist(), chunk.switch_to.tolist(), strict=True))

    def at(self, time_s: float) -> tuple[int, float]:
        """The phase at a time, s, and for how long; at the very time of a switch, the new one.

        The time is nan where there are no phases.
        """
        if len(self._ends):
            cycle = np.floor(time_s / self._ends[-1])
            within = time_s - cycle * self._ends[-1]
            phase = min(int(np.searchsorted(self._ends, within, side="right")), len(self._ends) - 1)
            begun = self._ends[phase - 1] if phase else 0.0
            return phase, max(0.0, float(within - begun))
        if not self._markovian:
            return 0, np.nan
        while self._coming and self._coming[0][0] <= time_s:
            self._switched_s, self._phase = self._coming.popleft()
        return self._phase, time_s - self._switched_s
