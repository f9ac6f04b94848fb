"""What a request takes of the server's cores besides its model, measured while it serves."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from inferway.deployment.overhead import MeasuredOverhead
from inferway.dispatch.service_times import remember_overhead

EVERY_S: Final = 1.0
"""How long an interval is."""
ENOUGH: Final = 20
"""Requests that have to end in an interval for it to count."""
LAST: Final = 30
"""Intervals that the estimate is the median of, at most."""
FEWEST: Final = 5
"""Intervals before there is one."""
NEWS: Final = 0.02
"""Change of the estimate from which on predictions and the file follow."""
KEEP_S: Final = 10.0
"""How often it is written to the file at most."""
_NOTHING: Final = MeasuredOverhead(-1.0, 0.0, Path(), -1.0)


class ProcessCounts(NamedTuple):
    """Counts of a process since its start, which only grow.

    Attributes
    ----------
    at_s
        When they were read, s.
    cpu_s
        CPU time of the process, all threads together, or of the server's threads alone.
    run_cpu_s
        Of that, what models have taken, by what ran them.
    ended
        Requests that have ended, one of several rows as so many.
    in_flight
        Requests that are here now.
    stretched_s
        How much more models have taken than by their profiles, by what ran them; below 0 where
        they took less, as those that wait for an accelerator.
    """

    at_s: float
    cpu_s: float
    run_cpu_s: Mapping[int, float]
    ended: int
    in_flight: int
    stretched_s: Mapping[int, float] = MappingProxyType({})


class OverheadEstimate:
    """CPU time per request of a server besides its models, from counts at the ends of intervals.

    An interval in which nothing came tells what the server burns without requests, which is of no
    request: the median of the last of these is taken off. Intervals with few requests tell nothing,
    nor do those in which models came or went, as loading is no request's either.

    Attributes
    ----------
    seconds
        The estimate, s; None before there is one.
    beyond_s
        The same with what models take beyond their profiles, s. Between other work a model takes
        longer than one call after the other, as it is profiled.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.beyond_s: float | None = None
        self._beyond: deque[float] = deque(maxlen=LAST)
        self._busy: deque[float] = deque(maxlen=LAST)
        self._idle: deque[float] = deque(maxlen=LAST)
        self._last: ProcessCounts | None = None

    @property
    def measured(self) -> MeasuredOverhead | None:
        """The estimate as of now, as predictions and plans count it."""
        if self.seconds is None or self.beyond_s is None:
            return None
        return MeasuredOverhead(self.beyond_s, time.time(), Path(), self.seconds)

    @property
    def intervals(self) -> int:
        """Intervals that the estimate is of."""
        return len(self._busy)

    def begin_anew(self) -> None:
        """Forget the intervals with requests, as other models are served; the estimate stays."""
        self._busy.clear()
        self._beyond.clear()

    @property
    def idle_cores(self) -> float:
        """CPU time per second that the server takes without requests."""
        return median(self._idle) if self._idle else 0.0

    def take(self, now: ProcessCounts) -> None:
        """Take the counts at the end of an interval."""
        before, self._last = self._last, now
        if before is None or now.run_cpu_s.keys() != before.run_cpu_s.keys():
            return
        passed_s, ended = now.at_s - before.at_s, now.ended - before.ended
        runs_s = sum(now.run_cpu_s.values()) - sum(before.run_cpu_s.values())
        own_s = now.cpu_s - before.cpu_s - runs_s
        if passed_s <= 0.0:
            return
        if ended == 0 and now.in_flight == before.in_flight == 0:
            self._idle.append(max(0.0, own_s / passed_s))
        elif ended >= ENOUGH:
            # What another process or device does while a model runs is not of these cores.
            beyond_s = sum(
                max(0.0, took_s - before.stretched_s.get(key, took_s))
                for key, took_s in now.stretched_s.items()
            )
            own_s = max(0.0, own_s - self.idle_cores * passed_s)
            self._busy.append(own_s / ended)
            self._beyond.append((own_s + beyond_s) / ended)
            if len(self._busy) >= FEWEST:
                self.seconds, self.beyond_s = median(self._busy), median(self._beyond)


class OverheadMeter:
    """Measures what requests take besides models, tells whoever predicts, and keeps it.

    All methods belong to the event loop. It is of the whole process, where that is the server's
    own, or of threads whose CPU time it is told how to read.

    Parameters
    ----------
    counts
        Gives models' CPU time, what of it is beyond profiles, requests that have ended, and those
        in flight: as `ProcessCounts`.
    tell
        Called with the estimate where it is another.
    file
        Where it is kept; None for nowhere.
    key
        Names what is measured, as it is kept: the models that are served. With another, what was
        measured before counts no longer. Empty where nothing is kept.
    log
        Told when it cannot be kept.
    """

    def __init__(
        self,
        counts: Callable[[], tuple[Mapping[int, float], Mapping[int, float], int, int]],
        tell: Callable[[MeasuredOverhead], None],
        file: Path | None,
        key: Callable[[], str],
        log: Any,
    ) -> None:
        self.estimate = OverheadEstimate()
        self._counts, self._tell, self._file, self._key = counts, tell, file, key
        self._of = ""
        self._log, self._told, self._kept = log, _NOTHING, _NOTHING
        self._kept_at_s, self._fails = -KEEP_S, False
        self._cpu_s: Callable[[], float] = time.process_time
        self._measuring: asyncio.Task[None] | None = None

    def begin(self, cpu_s: Callable[[], float] = time.process_time) -> None:
        """Measure from now on, by the CPU time that this reads, s: that of the server."""
        self._cpu_s = cpu_s
        self._measuring = asyncio.create_task(self._measure())

    async def end(self) -> None:
        """Measure no more, and keep what is known."""
        if self._measuring is not None:
            self._measuring.cancel()
            self._measuring = None
            await self.keep()

    async def _measure(self) -> None:
        while True:
            self.look()
            if time.monotonic() - self._kept_at_s >= KEEP_S:
                await self.keep()
            await asyncio.sleep(EVERY_S)

    def look(self) -> None:
        """Take an interval into account, which ends now."""
        if (key := self._key()) != self._of:
            self.estimate.begin_anew()
            self._of, self._kept = key, _NOTHING
        run_cpu_s, stretched_s, ended, in_flight = self._counts()
        now = ProcessCounts(
            time.monotonic(), self._cpu_s(), run_cpu_s, ended, in_flight, stretched_s
        )
        self.estimate.take(now)
        measured = self.estimate.measured
        if measured is not None and _is_news(measured, self._told):
            self._told = measured
            self._tell(measured)

    async def keep(self) -> None:
        """Write the estimate to the file, where it is of what is served and another than there."""
        measured, file, key = self.estimate.measured, self._file, self._of
        if measured is None or file is None or not key or self.estimate.intervals < FEWEST:
            return
        if not _is_news(measured, self._kept):
            return
        self._kept_at_s = time.monotonic()
        try:
            await asyncio.to_thread(remember_overhead, file, key, measured.own_s, measured.seconds)
        except OSError as error:  # it is measured again by whoever starts next
            if not self._fails:
                reason = error.strerror or str(error)
                self._log.warning("overhead not kept", file=str(file), reason=reason)
            self._fails = True
        else:
            self._kept, self._fails = measured, False


def _is_news(now: MeasuredOverhead, before: MeasuredOverhead) -> bool:
    pairs = ((now.own_s, before.own_s), (now.seconds, before.seconds))
    return any(last_s < 0.0 or abs(one_s - last_s) > NEWS * last_s for one_s, last_s in pairs)
