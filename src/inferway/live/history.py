"""The last minutes and hours of what is served: one sample a second of each task.

Nothing is counted for it while requests are served. A sample is the difference between what
`Stats` counts now and what it had counted at the sample before, beside the queues of the moment.
The last quarter of an hour is kept by the second, and a day by the minute, in arrays that are as
large at the start as they will ever be.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from inferway.live.log import Logger, logger
from inferway.live.process import resident_bytes
from inferway.live.request import Outcome
from inferway.live.site import TaskSite
from inferway.live.stats import FINE_BOUNDS_S

Every = Literal["second", "minute"]

ROWS: Final[dict[Every, int]] = {"second": 15 * 60, "minute": 24 * 60}
"""How many samples of each kind are kept, where there is room for them."""
LIMIT_BYTES: Final = 2_000_000
"""The most that all samples take; with more tasks and variants, fewer samples are kept."""
NUMBERS: Final = 10_000
"""Numbers of one page of samples, about: to write more would hold requests up."""

STATES: Final = ("unknown", "kept", "at-risk", "missed")
_LENGTH_S: Final[dict[Every, float]] = {"second": 1.0, "minute": 60.0}
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

# Counted over a sample.
_ENDED: Final = tuple(outcome.name.lower() for outcome in Outcome)
_COUNTED: Final = ("arrivals", *_ENDED, "late", "rows")
_MEASURED: Final = ("accuracy", "latency_mean_s", *(f"latency_{name}_s" for name in _QUANTILES))
# At its end.
_PROMISED: Final = ("target", "mean", "balance", "state")
_PRESENT: Final = ("queued", "healthy")
TASK_FIELDS: Final = (
    *(*_COUNTED, *_MEASURED, *_PROMISED),
    *("held", "in_flight", "instances", *_PRESENT),
)
VARIANT_FIELDS: Final = ("answered", "latency_mean_s", *_PRESENT)
NODE_FIELDS: Final = ("cpu_cores", "memory_bytes")

_Values = npt.NDArray[np.float64]
# A task, and one of its variants or "" for the whole; two empty names are the process.
_Key = tuple[str, str]
_PROCESS: Final = ("", "")


class History:
    """Samples of every task, of its variants and of the process.

    All methods but the constructor belong to the event loop.

    Parameters
    ----------
    sites
        Gives the tasks that there are now, whether a fleet answers them or not.
    limit_bytes
        The most that the samples take.
    log
        Told of samples that could not be taken; None for standard error.
    """

    def __init__(
        self,
        sites: Callable[[], Sequence[TaskSite]],
        limit_bytes: int = LIMIT_BYTES,
        log: Logger | None = None,
    ) -> None:
        self._sites, self._limit_bytes, self._log = sites, limit_bytes, log or logger()
        self.rings: dict[Every, Ring] = {
            every: Ring(rows, _LENGTH_S[every]) for every, rows in ROWS.items()
        }
        self._counted: dict[tuple[Every, _Key], tuple[Any, Any]] = {}
        self._minute: float | None = None  # the one that the last sample is of
        self._sampling: asyncio.Task[None] | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the samples."""
        return sum(ring.nbytes for ring in self.rings.values())

    def begin(self) -> None:
        """Take a sample at every full second from now on."""
        self._sampling = asyncio.get_running_loop().create_task(self._sample_on())

    def end(self) -> None:
        """Take no more samples."""
        if self._sampling is not None:
            self._sampling.cancel()

    async def _sample_on(self) -> None:
        while True:
            await asyncio.sleep(1.0 - time.time() % 1.0)
            try:
                await self.sample(float(time.time() // 1.0))
            except Exception as error:
                said = "a sample of the history could not be taken"
                self._log.error(said, exc_info=error)

    async def sample(self, now_s: float) -> None:
        """Take a sample, that of a minute too where one ends; the time is of the epoch, s.

        Between two tasks others have their turn.
        """
        self._lay_out()
        seconds, minutes = self.rings["second"], self.rings["minute"]
        if not seconds.takes(now_s):
            return
        begun, self._minute = self._minute, now_s // 60.0
        minute = begun is not None and begun != self._minute and minutes.takes(now_s)
        second_rows = [(_PROCESS, self._process("second"))]
        minute_rows = [(_PROCESS, self._process("minute"))] if minute else []
        for site in self._sites():
            if (site.task, "") not in seconds.columns:  # it has come meanwhile
                continue
            second_rows += self._task("second", site)
            if minute:
                minute_rows += self._task("minute", site)
            await asyncio.sleep(0)
        # Whoever reads meanwhile sees no sample that is half written.
        seconds.begin(now_s)
        for key, values in second_rows:
            seconds.put(key, values)
        if minute:
            minutes.begin(now_s)
        for key, values in minute_rows:
            if key not in seconds.columns:  # a variant that has come meanwhile
                continue
            if key != _PROCESS:
                # Queues are what they were on average.
                present = len(_PRESENT) + (0 if key[1] else 3)
                values[-present:] = seconds.mean(key, 60)[-present:]
            minutes.put(key, values)

    def _lay_out(self) -> None:
        """Give every task and variant that has come a place, and take it from tasks that went."""
        wanted = {_PROCESS: len(NODE_FIELDS)}
        for site in self._sites():
            wanted[site.task, ""] = len(TASK_FIELDS)
            wanted |= dict.fromkeys(
                ((site.task, name) for name in site.stats.variants), len(VARIANT_FIELDS)
            )
        seconds, minutes = self.rings["second"], self.rings["minute"]
        if wanted.keys() == seconds.columns.keys():
            return
        self._counted = {at: kept for at, kept in self._counted.items() if at[1] in wanted}
        rows = dict(ROWS)
        row_bytes = 4 * sum(wanted.values()) + 8
        while row_bytes * sum(rows.values()) > self._limit_bytes and max(rows.values()) > 2:
            rows = {every: max(2, count // 2) for every, count in rows.items()}
        seconds.lay_out(wanted, rows["second"])
        minutes.lay_out(wanted, rows["minute"])

    def _since_before(self, every: Every, site: TaskSite) -> tuple[_Counts, _Counts]:
        """What a task has counted now, and had at the sample before; zeros where it is new."""
        at, now = (every, (site.task, "")), _Counts.of(site)
        known, before = self._counted.get(at, (None, None))
        self._counted[at] = site.stats, now
        if known is not site.stats:
            before = None
        return now, now.less(before)

    def _task(self, every: Every, site: TaskSite) -> Iterator[tuple[_Key, _Values]]:
        now, since = self._since_before(every, site)
        ended, (in_flight, late, rows, graded, accuracy_sum) = since.ended, since.sums
        present = _present(site)
        with np.errstate(invalid="ignore", divide="ignore"):
            accuracy = accuracy_sum / graded
            mean_s = since.latency_sum_s.sum() / ended[Outcome.ANSWERED]
            each_s = since.latency_sum_s / since.answered
        measured = accuracy, mean_s, *quantiles_s(since.buckets)
        queued, healthy = np.sum([(0, 0), *present.values()], axis=0)
        instances = 0 if site.present is None else len(site.present.instances)
        held = 0 if site.present is None else len(site.present.held)
        yield (
            (site.task, ""),
            np.array(
                [
                    *(max(0.0, ended.sum() + in_flight), *ended, late, rows),
                    *measured,
                    *_promised(site),
                    *(held, now.sums[0], instances, queued, healthy),
                ]
            ),
        )
        for column, name in enumerate(site.stats.variants):
            counted = since.answered[column], each_s[column]
            yield (site.task, name), np.array([*counted, *present.get(column, (0, 0))])

    def _process(self, every: Every) -> _Values:
        used, at = resource.getrusage(resource.RUSAGE_SELF), (every, _PROCESS)
        now = time.monotonic(), used.ru_utime + used.ru_stime
        begun_s, cpu_s = self._counted.get(at, now)
        self._counted[at] = now
        past_s = now[0] - begun_s
        return np.array([(now[1] - cpu_s) / past_s if past_s else np.nan, resident_bytes()])

    def page(self, every: Every, since_s: float = 0.0) -> dict[str, Any]:
        """Show the samples after a time, in seconds of the epoch, the oldest first.

        Of many, the first ones: `more` says that there are others. `response_times` are the
        answers of each variant since the start, by `response_bounds_s`.
        """
        ring = self.rings[every]
        places = ring.after(since_s)
        most = max(1, NUMBERS // max(1, ring.width))
        shown = places[:most]

        def series(key: _Key, fields: Sequence[str]) -> dict[str, list[Any]]:
            # Microseconds and millionths are enough.
            told = ring.read(key, shown).round(6)
            named: dict[str, list[Any]] = dict(zip(fields, told.T.tolist(), strict=True))
            if "state" in named:
                named["state"] = [
                    None if one != one else STATES[int(one)] for one in named["state"]
                ]
            return named

        sites = [site for site in self._sites() if (site.task, "") in ring.columns]
        return {
            "schema": 1,
            "every": every,
            "now": time.time(),
            "times": ring.times[shown].tolist(),
            "more": len(places) > most,
            "response_bounds_s": FINE_BOUNDS_S,
            "process": series(_PROCESS, NODE_FIELDS) if _PROCESS in ring.columns else {},
            "tasks": {
                site.task: series((site.task, ""), TASK_FIELDS)
                | {
                    "variants": {
                        name: series((site.task, name), VARIANT_FIELDS)
                        for name in site.stats.variants
                        if (site.task, name) in ring.columns
                    },
                    "response_times": dict(
                        zip(site.stats.variants, site.stats.buckets, strict=True)
                    ),
                }
                for site in sites
            },
        }


class Ring:
    """The last samples of one length, in one array, each key's numbers beside each other.

    `times` are the samples' ends in seconds of the epoch, NaN where there is none yet, and
    `columns` the first and the last column of a key, as for a slice.
    """

    def __init__(self, rows: int, length_s: float) -> None:
        self.length_s, self.columns = length_s, dict[_Key, slice]()
        self.times = np.full(rows, np.nan)
        self._values = np.full((rows, 0), np.nan, np.float32)
        self._at = -1  # row of the last sample

    @property
    def width(self) -> int:
        """Numbers of a sample."""
        return self._values.shape[1]

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._values.nbytes + self.times.nbytes

    def lay_out(self, wanted: dict[_Key, int], rows: int) -> None:
        """Have so many rows and columns; what is kept of the samples so far stays."""
        kept, before, times = self.after(-np.inf)[-rows:], self._values, self.times
        columns, start = self.columns, 0
        self.columns = {}
        for key, width in wanted.items():
            self.columns[key] = slice(start, start + width)
            start += width
        self.times, self._values = np.full(rows, np.nan), np.full((rows, start), np.nan, np.float32)
        self._at = len(kept) - 1
        self.times[: len(kept)] = times[kept]
        for key in wanted.keys() & columns.keys():
            self._values[: len(kept), self.columns[key]] = before[kept, columns[key]]

    def takes(self, now_s: float) -> bool:
        """Tell whether a sample may end now: not where the clock has stood still since the last."""
        return self._at < 0 or not 0.0 <= self.times[self._at] - now_s < self.length_s

    def begin(self, now_s: float) -> None:
        """Begin a sample that ends now."""
        if self._at >= 0 and now_s < self.times[self._at]:  # the clock has been set back
            self.times[:] = np.nan
        self._at = (self._at + 1) % len(self.times)
        self.times[self._at], self._values[self._at] = now_s, np.nan

    def put(self, key: _Key, values: _Values) -> None:
        """Write what a key has in the sample that has begun; nothing where it has no place."""
        if (columns := self.columns.get(key)) is not None:
            self._values[self._at, columns] = values

    def read(self, key: _Key, places: npt.NDArray[np.intp]) -> _Values:
        """(places, fields) numbers of a key."""
        return self._values[places, self.columns[key]].astype(np.float64)

    def mean(self, key: _Key, samples: int) -> _Values:
        """(fields,) means of a key's numbers over its last samples."""
        places = self.after(-np.inf)[-samples:]
        return np.asarray(self.read(key, places).mean(axis=0))

    def after(self, since_s: float) -> npt.NDArray[np.intp]:
        """Find the rows of the samples after a time, the oldest first."""
        rows = len(self.times)
        order = (np.arange(self._at + 1, self._at + 1 + rows) % rows).astype(np.intp)
        return order[self.times[order] > since_s]


class _Counts(NamedTuple):
    """What a task has counted so far, each a row of numbers."""

    ended: _Values  # requests by outcome
    # Requests on their way, late answers, rows; those whose accuracy is known, and its sum.
    sums: _Values
    buckets: _Values  # answered requests by latency
    answered: _Values  # by variant
    latency_sum_s: _Values  # by variant

    @classmethod
    def of(cls, site: TaskSite) -> _Counts:
        """Read them."""
        stats = site.stats
        buckets = np.array(stats.buckets, np.float64).reshape(-1, len(FINE_BOUNDS_S) + 1)
        rows = stats.total_rows, stats.graded, stats.accuracy_sum
        sums = site.in_flight, sum(stats.late), *rows
        return cls(
            np.array([sum(counts) for counts in stats.outcomes], np.float64),
            np.array(sums, np.float64),
            buckets.sum(axis=0),
            np.array(stats.outcomes[Outcome.ANSWERED][:-1], np.float64),
            np.array(stats.latency_sum_s),
        )

    def less(self, before: _Counts | None) -> _Counts:
        """Count from an earlier time on; the variants that came since then, from 0."""
        if before is None:
            return self
        padded = (
            np.pad(then, (0, len(now) - len(then))) for now, then in zip(self, before, strict=True)
        )
        return _Counts(*(now - then for now, then in zip(self, padded, strict=True)))


def _present(site: TaskSite) -> dict[int, tuple[int, int]]:
    """Tell requests and healthy instances of each variant that answers, by column."""
    pool = site.present
    if pool is None:
        return {}
    found = {}
    for k, column in enumerate(pool.columns):
        servers = slice(*pool.first[k : k + 2])
        queued = sum([len(queue) for queue in pool.queues[servers]])
        found[column] = queued, sum(pool.health.healthy[servers])
    return found


def _promised(site: TaskSite) -> tuple[float, float, float, float]:
    """Tell target, mean, balance and the number of the state; NaN where there is none."""
    promise = site.promise
    if promise is None:
        return (np.nan,) * 4
    mean = np.nan if promise.mean is None else promise.mean
    return promise.target, mean, promise.balance, STATES.index(promise.state)


def quantiles_s(counts: _Values) -> list[float]:
    """Read p50, p95 and p99 from counts by `FINE_BOUNDS_S`; NaN without any.

    Within a bucket latencies are taken to lie evenly; beyond the last bound, at it.
    """
    ends = np.cumsum(counts)
    if not ends[-1]:
        return [np.nan] * len(_QUANTILES)
    ranks = np.array([*_QUANTILES.values()]) * ends[-1]
    places = np.searchsorted(ends, ranks)
    bounds = np.array([0.0, *FINE_BOUNDS_S, FINE_BOUNDS_S[-1]])
    part = 1.0 - (ends[places] - ranks) / counts[places]
    low, high = bounds[places], bounds[places + 1]
    found: list[float] = (low + part * (high - low)).tolist()
    return found
