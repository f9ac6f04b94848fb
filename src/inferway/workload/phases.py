"""The phases of a workload: when each begins and ends, and what holds in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import Arrivals, MapArrivals, PhasedArrivals
from inferway.workload.arrivals import MOST_PHASES, Chunk, mean_rate


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
    start, index = 0.0, 0
    cycle, ends = 0.0, _ends(arrivals)
    while start < horizon_s:
        phase = arrivals.phases[index]
        end = cycle + ends[index]
        known = phase.rate is not None or capacity_per_s is not None
        rate = phase.mean_rate_per_s(capacity_per_s) if known else None
        yield Span(index, start, min(end, horizon_s), rate, phase.accuracy_target)
        start, index = end, index + 1
        if index == len(ends):
            # Multiples of the cycle, not sums of phases, so that late phases do not drift.
            cycle, index = cycle + ends[-1], 0


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
    try:
        rate: float | None = mean_rate(arrivals, capacity_per_s)
    except ValueError:
        rate = None
    return (Span(0, 0.0, np.inf, rate, None),)


def phase_of(arrivals: PhasedArrivals, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return (n,) index of the phase that holds at each of (n,) times in seconds."""
    ends = np.array(_ends(arrivals))
    within = np.mod(times_s, ends[-1])
    index = np.searchsorted(ends, within, side="right").astype(np.int64)
    return np.asarray(np.minimum(index, len(ends) - 1))


def _ends(arrivals: PhasedArrivals) -> list[float]:
    return [float(end) for end in np.cumsum([phase.for_ for phase in arrivals.phases])]


class PhaseCourse:
    """The phase over time; asked at times that never fall.

    Parameters
    ----------
    arrivals
        The process, from a deployment's workload.
    """

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
