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
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from inferway.live.log import Logger, logger
from inferway.live.pool import Pool
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
_NO_QUANTILES: Final = (np.nan,) * len(_QUANTILES)
_EDGES_S: Final = (0.0, *FINE_BOUNDS_S, FINE_BOUNDS_S[-1])

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
        self._places: dict[str, _Place] = {}
        # The numbers of the sample that comes next; of a task as they were until its turn comes.
        self._row = np.empty(0)
        self._present: list[int] = []  # columns of what is of the moment
        self._cpu: dict[Every, tuple[float, float]] = {}
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
        sites = list(self._sites())
        self._lay_out(sites)
        seconds, minutes = self.rings["second"], self.rings["minute"]
        if not seconds.takes(now_s):
            return
        begun, self._minute = self._minute, now_s // 60.0
        minute = begun is not None and begun != self._minute and minutes.takes(now_s)
        row = self._row
        minute_row = np.full_like(row, np.nan)
        row[seconds.columns[_PROCESS]] = self._process("second")
        if minute:
            minute_row[minutes.columns[_PROCESS]] = self._process("minute")
        for site in sites:
            place = self._places[site.task]
            busy = place.sample(row, minute_row if minute else None)
            if busy or minute:
                await asyncio.sleep(0)
        # Whoever reads meanwhile sees no sample that is half written.
        seconds.write(now_s, row)
        if minute:
            # Queues are what they were on average.
            minute_row[self._present] = seconds.mean(60)[self._present]
            minutes.write(now_s, minute_row)

    def _lay_out(self, sites: Sequence[TaskSite]) -> None:
        """Give every task and variant that has come a place, and take it from tasks that went."""
        if len(sites) == len(self._places) and all(
            (place := self._places.get(site.task)) is not None and place.fits(site)
            for site in sites
        ):
            return
        wanted, places, start = {_PROCESS: len(NODE_FIELDS)}, {}, len(NODE_FIELDS)
        present = list[int]()
        for site in sites:
            places[site.task] = place = _Place(site, start, self._places.get(site.task))
            wanted[site.task, ""] = len(TASK_FIELDS)
            wanted |= {(site.task, name): len(VARIANT_FIELDS) for name in place.variants}
            present += place.present
            start += place.width
        self._places, self._present = places, present
        self._row = np.full(start, np.nan)
        rows = dict(ROWS)
        row_bytes = 4 * start + 8
        while row_bytes * sum(rows.values()) > self._limit_bytes and max(rows.values()) > 2:
            rows = {every: max(2, count // 2) for every, count in rows.items()}
        for every, ring in self.rings.items():
            ring.lay_out(wanted, rows[every])

    def _process(self, every: Every) -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        now = time.monotonic(), used.ru_utime + used.ru_stime
        begun_s, cpu_s = self._cpu.get(every, now)
        self._cpu[every] = now
        past_s = now[0] - begun_s
        return (now[1] - cpu_s) / past_s if past_s else np.nan, resident_bytes()

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
                | _escalations(site)
                for site in sites
            },
        }


def _escalations(site: TaskSite) -> dict[str, dict[str, dict[str, int]]]:
    """Tell what has been asked again so far, by first and second variant; nothing where none is."""
    pool, names = site.present, site.stats.variants
    if not site.stats.escalations and (pool is None or not pool.dispatcher.settles):
        return {}
    found: dict[str, dict[str, int]] = {}
    for (first, second), count in site.stats.escalations.items():
        found.setdefault(names[first], {})[names[second]] = count
    return {"escalations": found}


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

    def write(self, now_s: float, values: _Values) -> None:
        """Keep a sample that ends now: (width,) numbers."""
        if self._at >= 0 and now_s < self.times[self._at]:  # the clock has been set back
            self.times[:] = np.nan
        self._at = (self._at + 1) % len(self.times)
        self.times[self._at], self._values[self._at] = now_s, values

    def read(self, key: _Key, places: npt.NDArray[np.intp]) -> _Values:
        """(places, fields) numbers of a key."""
        return self._values[places, self.columns[key]].astype(np.float64)

    def mean(self, samples: int) -> _Values:
        """(width,) means of all numbers over the last samples."""
        return np.asarray(self._values[self.after(-np.inf)[-samples:]].mean(0, np.float64))

    def after(self, since_s: float) -> npt.NDArray[np.intp]:
        """Find the rows of the samples after a time, the oldest first."""
        rows = len(self.times)
        order = (np.arange(self._at + 1, self._at + 1 + rows) % rows).astype(np.intp)
        return order[self.times[order] > since_s]


class _Counts(NamedTuple):
    """Counts of a task so far, and what is there at the moment: two that are equal had nothing
    between them.
    """

    pool: Pool | None
    outcomes: list[list[int]]
    # Requests on their way, late answers, rows; those whose accuracy is known, and its sum.
    sums: tuple[float, ...]
    latency_sum_s: list[float]
    queued: list[int]  # by server, as the rest
    healthy: list[bool]
    instances: int
    held: int
    buckets: list[list[int]]

    @classmethod
    def of(cls, site: TaskSite, before: _Counts | None) -> _Counts:
        """Read them; what no answer has changed since then is not read again."""
        stats, pool = site.stats, site.present
        outcomes = [counts[:] for counts in stats.outcomes]
        known = [] if before is None else before.buckets
        same = [] if before is None else before.outcomes[Outcome.ANSWERED]
        buckets = [
            known[k] if k < len(known) and same[k] == answered else stats.buckets[k][:]
            for k, answered in enumerate(outcomes[Outcome.ANSWERED][:-1])
        ]
        rows = sum(stats.rows), stats.graded, stats.accuracy_sum
        return cls(
            pool,
            outcomes,
            (site.in_flight, sum(stats.late), *rows),
            stats.latency_sum_s[:],
            [] if pool is None else list(map(len, pool.queues)),
            [] if pool is None else pool.health.healthy[:],
            0 if pool is None else len(pool.instances),
            0 if pool is None else len(pool.held),
            buckets,
        )

    def by_variant(self) -> dict[int, tuple[int, int]]:
        """Tell requests and healthy instances of each variant that answers, by column."""
        if self.pool is None:
            return {}
        found = {}
        for k, column in enumerate(self.pool.columns):
            servers = slice(*self.pool.first[k : k + 2])
            found[column] = sum(self.queued[servers]), sum(self.healthy[servers])
        return found


class _Place:
    """A task's numbers in a sample, those of its variants behind its own.

    `before` is what the task had there until now, None where it had none.
    """

    def __init__(self, site: TaskSite, start: int, before: _Place | None) -> None:
        self.site, self.variants = site, tuple(site.stats.variants)
        self._stats = site.stats
        goes_on = before is not None and before._stats is site.stats
        self._second: _Counts | None = before._second if before is not None and goes_on else None
        self._minute: _Counts | None = before._minute if before is not None and goes_on else None
        self._quiet = False  # whether the last sample had nothing new, as the next one may
        own, each = len(TASK_FIELDS), len(VARIANT_FIELDS)
        self.width = own + each * len(self.variants)
        self._columns = slice(start, start + self.width)
        promised = start + TASK_FIELDS.index(_PROMISED[0])
        self._promised = slice(promised, promised + len(_PROMISED))
        ends = (start + own + each * place for place in range(len(self.variants) + 1))
        widths = own - TASK_FIELDS.index("held"), *[len(_PRESENT)] * len(self.variants)
        self.present = [
            column
            for end, width in zip(ends, widths, strict=True)
            for column in range(end - width, end)
        ]

    def fits(self, site: TaskSite) -> bool:
        """Tell whether it still is this task's, with as many variants."""
        return site.stats is self._stats and len(site.stats.variants) == len(self.variants)

    def sample(self, row: _Values, minute_row: _Values | None) -> bool:
        """Write the task's numbers into a sample, that of a minute too where one is given.

        Where nothing happened since the sample before, all but the promise stays as it is: many
        tasks rest most of the time. Returns whether anything did.
        """
        now = _Counts.of(self.site, self._second)
        same = now == self._second
        if not (same and self._quiet):
            row[self._columns] = self._numbers(now, self._second)
        row[self._promised] = _promised(self.site)
        self._second, self._quiet = now, same
        if minute_row is not None:
            minute_row[self._columns] = self._numbers(now, self._minute)
            minute_row[self._promised] = row[self._promised]
            self._minute = now
        return not same

    def _numbers(self, now: _Counts, before: _Counts | None) -> list[float]:
        """List what has been counted since then, from 0 on where it is None."""
        kinds = len(now.outcomes)
        then = before or _Counts(None, [[0]] * kinds, (0.0,) * len(now.sums), [], [], [], 0, 0, [])
        ended = [
            sum(counts) - sum(past)
            for counts, past in zip(now.outcomes, then.outcomes, strict=True)
        ]
        in_flight, late, rows, graded, accuracy_sum = (
            count - past for count, past in zip(now.sums, then.sums, strict=True)
        )
        past_answered = then.outcomes[Outcome.ANSWERED][:-1]
        present, nothing = now.by_variant(), [0] * (len(FINE_BOUNDS_S) + 1)
        buckets, latency_s, of_variants = nothing, 0.0, list[float]()
        for k in range(len(self.variants)):
            known = k < len(past_answered)
            answered = now.outcomes[Outcome.ANSWERED][k] - (past_answered[k] if known else 0)
            mean_s = np.nan
            if answered:
                took_s = now.latency_sum_s[k] - (then.latency_sum_s[k] if known else 0.0)
                latency_s, mean_s = latency_s + took_s, took_s / answered
                new = zip(
                    buckets, now.buckets[k], then.buckets[k] if known else nothing, strict=True
                )
                buckets = [count + end - begin for count, end, begin in new]
            of_variants += answered, mean_s, *present.get(k, (0, 0))
        answers = ended[Outcome.ANSWERED]
        return [
            *(max(0.0, sum(ended) + in_flight), *ended, late, rows),
            accuracy_sum / graded if graded else np.nan,
            latency_s / answers if answers else np.nan,
            *(quantiles_s(buckets) if answers else _NO_QUANTILES),
            *(np.nan,) * len(_PROMISED),
            *(now.held, now.sums[0], now.instances, sum(now.queued), sum(now.healthy)),
            *of_variants,
        ]


def _promised(site: TaskSite) -> tuple[float, float, float, float]:
    """Tell target, mean, balance and the number of the state; NaN where there is none."""
    promise = site.promise
    if promise is None:
        return (np.nan,) * 4
    mean = np.nan if promise.mean is None else promise.mean
    return promise.target, mean, promise.balance, STATES.index(promise.state)


def quantiles_s(counts: Sequence[float]) -> list[float]:
    """Read p50, p95 and p99 from counts by `FINE_BOUNDS_S`; NaN without any.

    Within a bucket latencies are taken to lie evenly; beyond the last bound, at it.
    """
    ends = list(accumulate(counts))
    if not ends[-1]:
        return list(_NO_QUANTILES)
    found = []
    for part in _QUANTILES.values():
        rank = part * ends[-1]
        place = bisect_left(ends, rank)
        low, high = _EDGES_S[place : place + 2]
        found.append(low + (1.0 - (ends[place] - rank) / counts[place]) * (high - low))
    return found
