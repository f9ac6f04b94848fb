"""The requests that come to a network: how many of each type in a slot, and one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import (
    Arrivals,
    ConstantArrivals,
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    Popularity,
    SinusoidalArrivals,
    TraceArrivals,
)
from inferway.network.delivery import DeliveryNetwork
from inferway.network.options import Float, Index
from inferway.workload.arrivals import peak_rate, spans, stream, times
from inferway.workload.popularity import greatest_share, mean_share, zipf

Count = NDArray[np.int64]

_DEVIATIONS = 6.0  # a count is above its mean by so many of them less than once in 1e9
_SLOTS, _TRACE = 0x5107, 0x7ACE  # tell these uses of the seed from others


@dataclass(frozen=True)
class TaskStream:
    """The requests for some identical tasks together: when they come, and for what.

    They spread over the tasks by popularity, evenly if None; `type_of` has the (tasks, entries)
    request types, and every entry of a task gets an equal part.
    """

    arrivals: Arrivals
    popularity: Popularity | None
    type_of: NDArray[np.int64]


@dataclass(frozen=True)
class Demand:
    """The request batches r_t of [SiSalem23], Sec. III-D, slot by slot.

    Attributes
    ----------
    streams
        What comes together.
    types
        R, the number of request types.
    slot_s
        Length of a slot in seconds.
    seed
        Any slot can be drawn at any time, and is the same each time.
    """

    streams: tuple[TaskStream, ...]
    types: int
    slot_s: float
    seed: int = 0
    _counted: dict[int, _Counted] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def counts(self, slot: int) -> Count:
        """(R,) requests of each type in a slot, counted from 0.

        The number of requests follows the arrival process; each of them is for a task drawn by
        popularity and enters at one of the task's entries, drawn evenly.
        """
        total = np.zeros(self.types, np.int64)
        for index, one in enumerate(self.streams):
            rng = np.random.default_rng([self.seed, _SLOTS, index, slot])
            drawn = rng.multinomial(self._number(index, slot, rng), self._shares(one, slot))
            total += np.bincount(one.type_of.ravel(), drawn, self.types).astype(np.int64)
        return total

    def expected(self, slot: int) -> Float:
        """(R,) mean number of requests of each type in a slot; for a trace, split evenly."""
        total = np.zeros(self.types)
        for index, one in enumerate(self.streams):
            mean = _mean_number(one.arrivals, slot * self.slot_s, (slot + 1) * self.slot_s)
            if mean is None:
                mean = float(self._number(index, slot, np.random.default_rng(self.seed)))
            total += np.bincount(one.type_of.ravel(), self._shares(one, slot) * mean, self.types)
        return total

    def _shares(self, one: TaskStream, slot: int) -> Float:
        tasks, entries = one.type_of.shape
        start, end = slot * self.slot_s, (slot + 1) * self.slot_s
        return np.repeat(mean_share(one.popularity, tasks, start, end) / entries, entries)

    def _number(self, index: int, slot: int, rng: np.random.Generator) -> int:
        arrivals = self.streams[index].arrivals
        start, end = slot * self.slot_s, (slot + 1) * self.slot_s
        match arrivals:
            case ConstantArrivals():
                rate = arrivals.mean_rate_per_s()
                return round(float(np.ceil(_near(end * rate)) - np.ceil(_near(start * rate))))
            case TraceArrivals() | MapArrivals():
                # Arrival by arrival: neither has a law for the number in a slot on its own.
                made = _Counted(arrivals, self.slot_s, self.seed + index)
                return self._counted.setdefault(index, made).of(slot)
            case _:
                return int(rng.poisson(_mean_number(arrivals, start, end) or 0.0))


def peaks(streams: tuple[TaskStream, ...], types: int, slot_s: float) -> Float:
    """(R,) requests in a slot of each type, at most; random counts pass it in one slot of 1e9."""
    peak = np.zeros(types)
    for one in streams:
        tasks, entries = one.type_of.shape
        share = greatest_share(one.popularity, tasks) / entries
        if isinstance(one.arrivals, TraceArrivals):
            number = float(_Counted(one.arrivals, slot_s, 0).greatest())
        else:
            number = peak_rate(one.arrivals) * slot_s
        counted = isinstance(one.arrivals, ConstantArrivals | TraceArrivals)
        variance = number * share * (1.0 - share * counted)
        most = number * share + _DEVIATIONS * np.sqrt(variance)
        if counted:
            most = np.minimum(np.ceil(_near(number)), most)
        peak += np.bincount(one.type_of.ravel(), np.repeat(most, entries), types)
    return np.asarray(np.ceil(_near(peak)))


def _near(value: Any) -> Any:
    """Take the whole number that a value misses by rounding alone."""
    whole = np.round(value)
    return np.where(np.abs(value - whole) <= 1e-9 * np.maximum(1.0, np.abs(whole)), whole, value)


def _mean_number(arrivals: Arrivals, start: float, end: float) -> float | None:
    match arrivals:
        case ConstantArrivals() | PoissonArrivals() | MapArrivals():
            return arrivals.mean_rate_per_s() * (end - start)
        case SinusoidalArrivals(amplitude=amplitude, period=period):
            turn = 2 * np.pi / period
            swing = amplitude / turn * (np.cos(turn * start) - np.cos(turn * end))
            return float(arrivals.mean_rate_per_s() * (end - start + swing))
        case PhasedArrivals(phases=phases):
            cycle = sum(phase.for_ for phase in phases)
            per_cycle = sum(phase.for_ * phase.mean_rate_per_s() for phase in phases)

            def until(time: float) -> float:
                whole = np.floor(time / cycle)
                inside = spans(arrivals, horizon_s=time - whole * cycle)
                part = sum((s.end_s - s.start_s) * (s.rate_per_s or 0.0) for s in inside)
                return float(whole * per_cycle + part)

            return until(end) - until(start)
        case TraceArrivals():
            return None


class _Counted:
    """Counts the arrivals of a process, slot after slot, as far as anyone asked."""

    def __init__(self, arrivals: Arrivals, slot_s: float, seed: int) -> None:
        self._chunks, self._slot_s = stream(arrivals, seed=seed), slot_s
        self._counts, self._until_s = Counter[int](), 0.0

    def of(self, slot: int) -> int:
        self._count((slot + 1) * self._slot_s)
        return self._counts[slot]

    def greatest(self) -> int:
        self._count(np.inf)
        return max(self._counts.values(), default=0)

    def _count(self, until_s: float) -> None:
        while self._until_s < until_s:
            if (chunk := next(self._chunks, None)) is None:
                self._until_s = np.inf
            elif len(chunk.times_s):
                slots = np.floor(chunk.times_s / self._slot_s).astype(np.int64)
                numbers, counts = np.unique(slots, return_counts=True)
                self._counts.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
                self._until_s = float(chunk.times_s[-1])


class Trace(NamedTuple):
    """Requests in the order of their times, n of them.

    Seconds from the start, request types, tasks as in `DeliveryNetwork.tasks`, and the nodes where
    they enter; (n,) each.
    """

    time_s: Float
    type: Index
    task: Index
    entry: Index


def requests_of(network: DeliveryNetwork, demand: Demand, duration_s: float) -> Trace:
    """Draw the requests that a demand stands for in [0, duration_s) seconds, one by one.

    Each stream's requests come as its arrival process says; each is for a task drawn by the
    popularity at its time, and enters at one of the task's entries, drawn evenly. Counted by slot
    they follow the law of `Demand.counts`, and where that draws arrival by arrival (a trace, a MAP)
    or not at all (constant arrivals), a stream has the same number in each slot. A longer trace
    begins as the shorter one does.
    """
    times_s: list[Float] = []
    types: list[Count] = []
    for index, one in enumerate(demand.streams):
        # The seed that the demand counts arrivals with, where it counts them.
        time_s = times(one.arrivals, horizon_s=duration_s, seed=demand.seed + index)
        uniform = np.random.default_rng([demand.seed, _TRACE, index]).random((len(time_s), 2))
        tasks, entries = one.type_of.shape
        task = _task(one.popularity, tasks, time_s, uniform[:, 0])
        entry = np.minimum((uniform[:, 1] * entries).astype(np.int64), entries - 1)
        times_s.append(time_s)
        types.append(one.type_of[task, entry])
    time_s = np.concatenate(times_s)
    order = np.argsort(time_s, kind="stable")
    kind = np.concatenate(types)[order]
    requests, paths = network.requests, network.paths
    entry = paths.node[paths.first[requests.path[kind]]]
    return Trace(time_s[order], kind.astype(np.int32), requests.task[kind], entry)


def _task(popularity: Popularity | None, tasks: int, time_s: Float, uniform: Float) -> Count:
    """Draw each request's task, 0..tasks - 1, by the shares of `popularity.share_at`."""
    if popularity is None:
        return np.minimum((uniform * tasks).astype(np.int64), tasks - 1)
    below = np.cumsum(zipf(tasks, popularity.zipf))
    rank = np.minimum(np.searchsorted(below, uniform, side="right"), tasks - 1)
    if popularity.sliding is None:
        return rank
    period = np.floor(time_s / popularity.sliding.every).astype(np.int64)
    # Task i has rank i + shift * period, so rank k is that of task k - shift * period.
    return np.asarray((rank - popularity.sliding.shift * period) % tasks)
