"""State of an engine's run besides the site: who is served since when, the rules, the counters.

The counters take memory that does not grow with the run's length: P phases of the workload (a
request belongs to the phase in which it arrived), K server classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from inferway.site.chances import TRIED
from inferway.site.compiled import either, jit
from inferway.site.natural import natural
from inferway.site.selection import predicted_join
from inferway.site.transitions import (
    admit,
    admit_alone,
    begin_alone,
    begin_batch,
    join,
    leave,
    ready,
    release,
    release_alone,
)
from inferway.site.view import Floats, Indices, Ints, Site
from inferway.twin.kernel.others import NoOthers

# Why a call of an engine ended: what was asked is done; the pool of requests or the future is
# full; the records are full; a queue is nearly as long as the view has places; the policy decided
# for a server that there is not; a request was rejected, of which a scheduler wants to hear.
DONE, ROOM, FULL, DEEP, BROKEN, REFUSED = range(6)
PRESENT, TROUBLE, UNCOUNTED, REROUTED, CLASSES = range(5)  # Places in `World.counts`

UNLIMITED = 2**62  # Places at a server without a buffer limit
ANSWERED, LATE, DROPPED, REJECTED = range(4)  # What became of a request; late ones were answered

LENGTHS = 256  # Queue lengths told apart; the last stands for all beyond
_OCTAVES = 80
_SHIFT = 45  # Bits of a response time that its bucket leaves out: 128 buckets to the octave
# The bucket of 2^-40 s, a picosecond; all that is shorter falls into it.
_LEAST = (1023 - 40) << (52 - _SHIFT)
BUCKETS = _OCTAVES << (52 - _SHIFT)


class Serving(NamedTuple):
    """Work of n servers."""

    # (n,) when the request in service entered the site (the engine of one request at a time).
    since_s: Floats
    phase: Indices  # (n,) the workload's phase at that time
    batch: Ints  # (n,) requests in service, the first of the server's queue; 0 when there are none
    started_s: Floats  # (n,) start of the service
    # (n,) its end; inf where it has been broken off. Of a server that waits for a larger batch by
    # the file's rule, when the deadline of its first has passed, if it is dropped then.
    ends_s: Floats
    down: Ints  # (n,) reasons why the server is away


class Rules(NamedTuple):
    """Rules for the whole run."""

    places: int  # Places at a server, the one in service included
    central: int  # Places in the central queue
    # Whether requests wait in the central queue, first come, first served: a newcomer while
    # others do, and one that the policy rejects while a busy server would be in time, once free.
    holds: bool
    # Whether the policy says what a free server takes; else the file's rule for batches does.
    pulls: bool
    # Whether those who wait for a batch by that rule are dropped when their deadlines pass.
    expires: bool
    deadline_s: float  # From arrival; inf where there is none
    drops: bool  # Whether a request is dropped that its server would start after its deadline
    records: bool  # Whether every request is recorded
    grows: bool  # Whether the view gets more places where a queue outgrows them
    tells: bool  # Whether a call ends after a rejection
    # Whether nobody looks at who is idle between the end of a run and the start of the next.
    unwatched: bool
    foresees: bool  # Whether the policy learns what is predicted of a request that it has sent


class Outages(NamedTuple):
    """When servers fail and return: at random, or at set times."""

    every_s: Floats  # (n,) mean time to the next failure; inf where a server never fails at random
    for_s: Floats  # (n,) mean time until it returns
    server: Ints  # (M,) the server of each set change
    # (M,) 1 where it goes, -1 where it returns; 2 where it takes no more requests and answers those
    # that it has, -2 where it takes some again.
    change: Ints


class Records(NamedTuple):
    """One row per request that has left, R at most before they are taken away."""

    arrived_s: Floats
    started_s: Floats  # nan where it was never served
    left_s: Floats
    server: Ints  # -1 where it was never dispatched
    outcome: Ints
    phase: Ints
    size: Ints  # (1,) rows so far


def empty_serving(servers: int) -> Serving:
    """No server does anything."""
    return Serving(
        since_s=np.zeros(servers),
        phase=np.zeros(servers, np.int32),
        batch=np.zeros(servers, np.int64),
        started_s=np.full(servers, np.nan),
        ends_s=np.full(servers, np.inf),
        down=np.zeros(servers, np.int64),
    )


def empty_records(rows: int) -> Records:
    """Room for so many rows."""
    return Records(
        arrived_s=np.zeros(rows),
        started_s=np.zeros(rows),
        left_s=np.zeros(rows),
        server=np.zeros(rows, np.int64),
        outcome=np.zeros(rows, np.int64),
        phase=np.zeros(rows, np.int64),
        size=np.zeros(1, np.int64),
    )


class Waiting(NamedTuple):
    """Queues of n servers and the central one, number n, as linked lists in one pool."""

    # (n + 1,) entry of the first in a queue; what it says counts if the queue is not empty.
    first: Ints
    last: Ints  # (n + 1,) entry of the last
    next: Ints  # (M,) the entry behind this one, in its queue or among the free
    arrived_s: Floats  # (M,) when the request entered the site
    phase: Ints  # (M,) the workload's phase at that time
    free: Ints  # (2,) first free entry and how many are free


def empty_waiting(servers: int, entries: int) -> Waiting:
    """Empty queues."""
    return Waiting(
        first=np.zeros(servers + 1, np.int64),
        last=np.zeros(servers + 1, np.int64),
        next=np.arange(1, entries + 1, dtype=np.int64),
        arrived_s=np.zeros(entries),
        phase=np.zeros(entries, np.int64),
        free=np.array([0, entries], np.int64),
    )


def enlarged(waiting: Waiting) -> Waiting:
    """The same queues with twice the entries."""
    entries = len(waiting.next)
    added = np.arange(entries + 1, 2 * entries + 1, dtype=np.int64)
    free = waiting.free.copy()
    if free[1] > 0:  # the new ones come first, and the old ones behind them
        added[-1] = free[0]
    free[:] = entries, free[1] + entries
    return waiting._replace(
        next=np.concatenate([waiting.next, added]),
        arrived_s=np.concatenate([waiting.arrived_s, np.zeros(entries)]),
        phase=np.concatenate([waiting.phase, np.zeros(entries, np.int64)]),
        free=free,
    )


@jit
def push(waiting: Waiting, queue: int, empty: bool, arrived_s: float, phase: int) -> None:
    """A request joins the end of a queue; `empty` says whether it is the first there."""
    entry = natural(waiting.free[0])
    waiting.free[0] = waiting.next[entry]
    waiting.free[1] -= 1
    waiting.arrived_s[entry] = arrived_s
    waiting.phase[entry] = phase
    if empty:
        waiting.first[queue] = entry
    else:
        waiting.next[natural(waiting.last[queue])] = entry
    waiting.last[queue] = entry


@jit
def pop(waiting: Waiting, queue: int) -> int:
    """The first of a queue leaves it; its entry stays as it is until the next push."""
    entry = natural(waiting.first[queue])
    waiting.first[queue] = waiting.next[entry]
    waiting.next[entry] = waiting.free[0]
    waiting.free[0] = entry
    waiting.free[1] += 1
    return entry


class World(NamedTuple):
    """Everything that the general engine's kernels share."""

    bound: Any  # `inferway.dispatch.steps.Binding`
    upkeep: Any  # What of the site is kept up: `Lengths` or `Times`
    future: Any
    laws: Any
    serving: Serving
    waiting: Any
    tally: Any
    records: Records
    outages: Outages
    rules: Rules
    targets: Floats  # (P,) accuracy target by phase
    states: np.ndarray  # (3,) streams: of decisions, of service times, of failures
    # (5,) requests in the system; why the call must end after this event; those in the system
    # that do not count, since they arrived during the warm-up; whether routing has changed, so that
    # free servers where requests wait for a larger batch are asked again. And
    # bit mask of the classes that an arrival may go to.
    counts: Ints
    # (2,) from when on requests count, s, inf during the warm-up; start of the present call, s.
    since_s: Floats
    again: (
        Any  # `SecondAnswers` where requests may be asked of a second server, else `SingleAnswer`
    )
    others: Any = NoOthers()  # `Others` where tasks with worlds of their own share devices with it

    @property
    def site(self) -> Site:
        """The view that the policy sees."""
        return cast("Site", self.bound.site)


class Lengths(NamedTuple):
    """Queue lengths and who is idle: all that most policies read."""

    nothing: int


class Ends(NamedTuple):
    """Also when services end and servers fall free, as predicted, of requests run one by one."""

    nothing: int


class Times(NamedTuple):
    """Every time and prediction of the view."""

    nothing: int


def _enter_ends(upkeep: Any, site: Site, server: int, places: int) -> int:
    return admit_alone(site, server, places)


def _exit_ends(upkeep: Any, site: Site, server: int, k: int) -> None:
    release_alone(site, server, k)


def _begin_ends(upkeep: Any, site: Site, server: int, taken: int) -> None:
    begin_alone(site, server, taken > 0)


def _enter_times(upkeep: Any, site: Site, server: int, places: int) -> int:
    ready(site, server)
    admit(site, server, 1)
    return site.server_class[server]


def _exit_times(upkeep: Any, site: Site, server: int, k: int) -> None:
    ready(site, server)
    release(site, server)


def _begin_times(upkeep: Any, site: Site, server: int, taken: int) -> None:
    ready(site, server)
    begin_batch(site, server, taken)


def _foreseen_times(upkeep: Any, site: Site, server: int) -> tuple[float, float]:
    return predicted_join(site, server, 1)


_enter_less = either(
    Ends, _enter_ends, lambda upkeep, site, server, places: join(site, server, places)
)
_exit_less = either(Ends, _exit_ends, lambda upkeep, site, server, k: leave(site, server, k))
_begin_less = either(Ends, _begin_ends, lambda upkeep, site, server, taken: None)
_foreseen_less = either(Ends, _foreseen_times, lambda upkeep, site, server: (np.nan, np.nan))
# ``enter(upkeep, site, server, places)``: a request joins the server; its class.
enter = either(
    Times,
    _enter_times,
    lambda upkeep, site, server, places: _enter_less(upkeep, site, server, places),
)
# ``exit_(upkeep, site, server, k)``: the first request of the server, of class k, leaves it.
exit_ = either(
    Times, _exit_times, lambda upkeep, site, server, k: _exit_less(upkeep, site, server, k)
)
# ``begin(upkeep, site, server, taken)``: the server starts a batch of so many, or waits with 0.
begin = either(
    Times,
    _begin_times,
    lambda upkeep, site, server, taken: _begin_less(upkeep, site, server, taken),
)
# ``foreseen(upkeep, site, server)``: predicted wait and service time of who joins now, s.
foreseen = either(
    Times, _foreseen_times, lambda upkeep, site, server: _foreseen_less(upkeep, site, server)
)


def deeper(site: Site) -> Site:
    """The same view with twice the places at each server."""
    places = site.arrived_s.shape[1]
    turn = (site.head[:, None] + np.arange(places)) % places
    grown = {}
    for name in ("arrived_s", "rows", "expected_s"):
        ring = getattr(site, name)
        straight = np.take_along_axis(ring, turn, axis=1)
        grown[name] = np.concatenate([straight, np.zeros_like(straight)], axis=1)
    site.head[:] = 0
    site.open[:] = site.healthy & ((site.again != TRIED) | np.isnan(site.started_s))
    return site._replace(**grown)


class Tally(NamedTuple):
    """Counts and sums since the warm-up."""

    arrived: Ints  # (P,) requests that entered
    rejected: Ints  # (P,) refused at once
    sent: Ints  # (P, K) dispatched to a server of the class, less those withdrawn
    answered: Ints  # (P, K) answered, in time or late
    late: Ints  # (P, K) answered after the deadline
    dropped: Ints  # (P,) dropped when the deadline had passed
    response_s: Floats  # (P, K) sum of response times, s
    histogram: Ints  # (P, K, BUCKETS) response times by `bucket`
    # (K, LENGTHS) server-seconds spent with at least so many requests at a server.
    reached_s: Floats
    # (2,) integral of the number in the system, request-seconds; and the same of those who left,
    # summed one by one as they did.
    area: Floats
    held_s: Floats  # (D,) slot seconds of each device that runs have held, or changes
    changes: Ints  # (D,) times that it has begun to load another variant


def empty_tally(phases: int, classes: int, devices: int = 0) -> Tally:
    """All zero."""
    shape = (phases, classes)
    return Tally(
        arrived=np.zeros(phases, np.int64),
        rejected=np.zeros(phases, np.int64),
        sent=np.zeros(shape, np.int64),
        answered=np.zeros(shape, np.int64),
        late=np.zeros(shape, np.int64),
        dropped=np.zeros(phases, np.int64),
        response_s=np.zeros(shape),
        histogram=np.zeros((*shape, BUCKETS), np.int64),
        reached_s=np.zeros((classes, LENGTHS)),
        area=np.zeros(2),
        held_s=np.zeros(devices),
        changes=np.zeros(devices, np.int64),
    )


@jit
def bucket(value: float) -> int:
    """The bucket of a number at least 0: its exponent and the first seven bits behind it."""
    index = int(np.float64(value).view(np.int64) >> _SHIFT) - _LEAST
    return min(max(index, 0), BUCKETS - 1)


def quantiles(histogram: Ints, levels: Sequence[float]) -> list[float]:
    """Quantiles of what a histogram by `bucket` holds, linear within a bucket; nan where empty."""
    total = int(histogram.sum())
    if total == 0:
        return [math.nan for _ in levels]
    below = np.cumsum(histogram)
    found = []
    for level in levels:
        rank = level * total
        place = int(np.searchsorted(below, rank, side="left"))
        inside = (rank - (below[place] - histogram[place])) / histogram[place]
        low, high = _edge(place), _edge(place + 1)
        found.append(low + inside * (high - low))
    return found


def _edge(place: int) -> float:
    """The lower edge of a bucket; 0 of the first, which holds all that is shorter."""
    return float(np.int64((place + _LEAST) << _SHIFT).view(np.float64)) if place > 0 else 0.0
