"""In which phase a workload is at a time, as the chunks of its arrivals tell it."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from inferway.deployment.workloads import Arrivals, MapArrivals, PhasedArrivals
from inferway.workload.arrivals import MOST_PHASES, Chunk


class Moment(NamedTuple):
    """The workload's phase, and how long it has been in it."""

    phase: int
    since_s: float
    """nan where there are no phases."""


class PhaseCourse:
    """The phase over time; asked at times that never fall.

    Parameters
    ----------
    arrivals
        The process, from a deployment's workload.
    """

    def __init__(self, arrivals: Arrivals) -> None:
        self._ends = np.zeros(0)
        if isinstance(arrivals, PhasedArrivals):
            self._ends = np.cumsum([phase.for_ for phase in arrivals.phases])
        self._markovian = isinstance(arrivals, MapArrivals) and len(arrivals.d0) <= MOST_PHASES
        self._coming: deque[tuple[float, int]] = deque()
        self._switched_s, self._phase = 0.0, 0

    def follow(self, chunk: Chunk) -> None:
        """Take note of a chunk of arrivals; times in it may be asked for from now on."""
        if self._markovian:
            self._coming.extend(zip(chunk.switch_s.tolist(), chunk.switch_to.tolist(), strict=True))

    def at(self, time_s: float) -> Moment:
        """The phase at a time, s; at the very time of a switch, the new one."""
        if len(self._ends):
            cycle = np.floor(time_s / self._ends[-1])
            within = time_s - cycle * self._ends[-1]
            phase = min(int(np.searchsorted(self._ends, within, side="right")), len(self._ends) - 1)
            begun = self._ends[phase - 1] if phase else 0.0
            return Moment(phase, max(0.0, float(within - begun)))
        if not self._markovian:
            return Moment(0, np.nan)
        while self._coming and self._coming[0][0] <= time_s:
            self._switched_s, self._phase = self._coming.popleft()
        return Moment(self._phase, time_s - self._switched_s)
