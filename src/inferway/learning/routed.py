"""Sites routed at random by probabilities that hold for a slot, without a future of events.

Where routing reads no queue, the servers of a site meet only at its arrivals: a server is brought
up to date when the next request comes to it and when the slot ends. If besides requests are served
one at a time and never dropped, all that becomes of one is known when it comes (Lindley's
recursion, doi 10.1017/S0305004100027638). What happens is the general engine's doing with the
policy `alias`, event for event; but routing is as blind with `late: drop` as without, where
dispatch would leave out the servers that are predicted to be late. Servers that come and go do so
where slots end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from inferway.dispatch.alias import tabulate
from inferway.learning.arrivals import PHASES, Flow, next_event
from inferway.site.compiled import jit
from inferway.site.draw import step, uniform, unit, word
from inferway.site.handle import handle
from inferway.site.view import Floats, Ints
from inferway.twin.kernel.service_times import Laws, draw


class Servers(NamedTuple):
    """Requests at n servers of each site; C places each, a power of two above the capacity.

    Integers are unsigned: an index that may be negative costs a comparison at every use.
    """

    # (E, n) uint32: requests, those in service included; between slots, where `Terms.eager`
    queue: np.ndarray
    tail: np.ndarray  # (E, n) uint32: requests accepted so far; modulo C, the place of the next
    # (E, n) uint32: requests in service, 0 where the server waits for more; unless eager
    taken: np.ndarray
    started_s: Floats  # (E, n) when the service began; between slots, where eager
    free_s: Floats  # (E, n) when it ends; unless eager
    arrived_s: Floats  # (E, n, C) by place: when a request came,
    ends_s: Floats  # (E, n, C) where eager, when its service ends,
    phase: np.ndarray  # (E, n, C) uint8: and the workload's phase when it came


class Routed(NamedTuple):
    """Routing and batch rules of the slot."""

    threshold: Floats  # (E, n) alias tables
    other: np.ndarray  # (E, n) uint32
    smallest: Ints  # (E, K) batches that are waited for
    largest: Ints  # (E, K) batches that are not exceeded


class PhaseCounts(NamedTuple):
    """Counts by the phase in which a request arrived, since they were last cleared."""

    arrived: Ints  # (E, m)
    rejected: Ints  # (E, m)
    dropped: Ints  # (E, m)
    sent: Ints  # (E, m, K) accepted and not dropped
    answered: Ints  # (E, m, K, 2) answered in time and late
    # (E, m, K) batches begun, by the workload's phase when the next request came there
    batches: Ints


class Outcomes(NamedTuple):
    """Outcomes of the last slot's requests."""

    arrived: Ints  # (E,)
    rejected: Ints  # (E,) or dropped
    late: Ints  # (E,)
    timely: Ints  # (E, K)


class Terms(NamedTuple):
    """Terms that are the same at all sites."""

    server_class: np.ndarray  # (n,) uint32
    capacity: int  # Places at a server, the one in service included
    deadline_s: float
    drops: bool  # A request is dropped that would start after its deadline
    eager: bool  # A request's times are known as soon as it comes: one at a time, none dropped
    worth: Floats  # (K, 2) reward of an answer in time, beta g of eq. 2, and of a late one
    loss: float  # Cost of a rejected or dropped request, alpha of eq. 2
    # (K,) longest service time, by which the time served is divided in observations
    service_s: Floats
    age_s: float  # By which ages are divided
    sees_phase: bool
    batches: bool  # Observations say the sizes of the batches in service
    changing: bool  # Servers come and go, and observations say which are there


class Presence(NamedTuple):
    """Servers that come and go: on or off for exponential times, as seen where slots end."""

    away: np.ndarray  # (E, n) uint8: 0 where it is there
    states: np.ndarray  # (E,) streams
    share: Floats  # (E, n) routing of the slot among those that are there
    goes: Floats  # (n,) chance that one that is there is away a slot later,
    returns: Floats  # (n,) and that one that is away is there


class SiteArrays(NamedTuple):
    """Everything that the kernels share."""

    servers: Servers
    flow: Flow
    routed: Routed
    counted: PhaseCounts
    outcomes: Outcomes
    terms: Terms
    laws: Laws
    clock_s: Floats  # (E,)
    reward: Floats  # (E,) of the last slot, eq. 2
    observation: np.ndarray  # (E, d) float32
    states: np.ndarray  # (E, 3) streams: of decisions, of service times, of arrivals
    presence: Presence


_DECISIONS, _SERVICE, _ARRIVALS = range(3)
_AWAY, _GOING = 1, 2
_INLINE = {"forceinline": True}


def advance(sites: SiteArrays, probabilities: Floats, batches: Ints, slot_s: float) -> None:
    """Run every site for a slot, then observe it.

    (E, n) probabilities are at least 0, each row with a sum above 0; (E, K, 2) are the smallest and
    largest batch by class. Servers that are away are left out; where all are, requests are
    rejected.
    """
    given = handle(_Given(probabilities, batches))
    routed, outcomes = sites.routed, sites.outcomes
    for e in range(sites.clock_s.size):
        if sites.terms.changing:
            for s in range(given.probabilities.shape[1]):
                sites.presence.share[e, s] = given.probabilities[e, s]
            _share_out(sites, e)
        else:
            tabulate(given.probabilities[e], routed.threshold[e], routed.other[e])
        until_s = sites.clock_s[e] + slot_s
        outcomes.timely[e, :] = 0
        outcomes.arrived[e] = outcomes.rejected[e] = outcomes.late[e] = 0
        _note(sites, e, -1)
        if sites.terms.eager:
            _run_eager(sites, e, until_s)
        else:
            for k in range(routed.smallest.shape[1]):
                routed.smallest[e, k] = given.batches[e, k, 0]
                routed.largest[e, k] = given.batches[e, k, 1]
            _run(sites, e, until_s)
        sites.clock_s[e] = until_s
        _note(sites, e, 1)
        _observe(sites, e)


def look(sites: SiteArrays) -> None:
    """Observe every site as it is."""
    for e in range(sites.clock_s.size):
        _observe(sites, e)


def come_and_go(sites: SiteArrays) -> None:
    """Let servers go and return where a slot ends; what is at one that goes is routed anew."""
    presence = sites.presence
    for e in range(sites.clock_s.size):
        state, changed = presence.states[e], False
        for s in range(presence.goes.size):
            state = step(state)
            gone = presence.away[e, s] != 0
            if unit(state) < (presence.returns[s] if gone else presence.goes[s]):
                presence.away[e, s] = 0 if gone else _GOING
                changed = True
        presence.states[e] = state
        if not changed:
            continue
        _share_out(sites, e)
        for s in range(presence.goes.size):
            if presence.away[e, s] == _GOING:
                _hand_over(sites, e, s)
                presence.away[e, s] = _AWAY
        _observe(sites, e)


class _Given(NamedTuple):
    probabilities: Floats
    batches: Ints


@numba.njit(**_INLINE)
def _at(servers: Servers, e: int) -> Servers:
    """One site's part of the arrays: local to a call, they stay in registers."""
    return Servers(
        servers.queue[e],
        servers.tail[e],
        servers.taken[e],
        servers.started_s[e],
        servers.free_s[e],
        servers.arrived_s[e],
        servers.ends_s[e],
        servers.phase[e],
    )


@numba.njit(**_INLINE)
def _drawn(threshold: Floats, other: np.ndarray, state: Any) -> Any:
    u = uniform(word(state), 0) * threshold.size
    column = np.uint32(u)
    # Nobody could predict a branch, so there is none.
    return column ^ (np.uint32(u - column >= threshold[column]) * (column ^ other[column]))


@jit
def _share_out(sites: SiteArrays, e: int) -> None:
    """Tabulate the site's routing among the servers that are there; all alike where it has none."""
    share, away = sites.presence.share[e], sites.presence.away[e]
    total, there = 0.0, 0
    for s in range(share.size):
        share[s] = 0.0 if away[s] != 0 else share[s]
        total += share[s]
        there += away[s] == 0
    if total <= 0.0:
        for s in range(share.size):
            share[s] = 1.0 if there == 0 or away[s] == 0 else 0.0
    tabulate(share, sites.routed.threshold[e], sites.routed.other[e])


@jit
def _hand_over(sites: SiteArrays, e: int, s: int) -> None:
    """Route anew, oldest first, what is at a server that goes; what finds no place is rejected."""
    at, terms, counted = handle(_at(sites.servers, e)), sites.terms, sites.counted
    threshold, other, away = (
        sites.routed.threshold[e],
        sites.routed.other[e],
        sites.presence.away[e],
    )
    states, mask, now_s = sites.states[e], _mask(at.arrived_s), sites.clock_s[e]
    oldest, waiting = _oldest(at, s), np.int64(at.queue[s])
    at.queue[s] = 0
    at.taken[s] = 0
    for i in range(waiting):
        place = (oldest + i) & mask
        arrived_s, phase = at.arrived_s[s, place], at.phase[s, place]
        at.ends_s[s, place] = 0.0
        counted.sent[e, phase, terms.server_class[s]] -= 1
        states[_DECISIONS] = step(states[_DECISIONS])
        to = _drawn(threshold, other, states[_DECISIONS])
        queue, tail, k = np.int64(at.queue[to]), np.int64(at.tail[to]), terms.server_class[to]
        if away[to] != 0 or queue >= terms.capacity:
            counted.rejected[e, phase] += 1
            sites.outcomes.rejected[e] += 1
            sites.reward[e] -= terms.loss
            continue
        counted.sent[e, phase, k] += 1
        at.arrived_s[to, tail & mask] = arrived_s
        at.phase[to, tail & mask] = phase
        at.queue[to], at.tail[to] = queue + 1, tail + 1
        if terms.eager:
            # It starts now at the earliest, whenever it came.
            before = (tail - 1) & mask
            at.ends_s[to, before] = max(now_s, at.ends_s[to, before])
            time_s, states[_SERVICE] = draw(sites.laws, k, 1, states[_SERVICE])
            at.ends_s[to, tail & mask] = at.ends_s[to, before] + time_s
            if queue == 0:
                at.started_s[to] = now_s
        elif at.taken[to] == 0:
            _start(sites, e, to, now_s, sites.flow.phase[e])


@jit
def _run_eager(sites: SiteArrays, e: int, until_s: float) -> None:
    """Run one site up to a time, that included, where a request's times are known at once.

    It is counted as answered when it comes; those that stand there at the end are taken back, and
    counted again when the next slot begins.
    """
    flow, laws, terms, counted = sites.flow, sites.laws, sites.terms, sites.counted
    at = handle(_at(sites.servers, e))
    threshold, other = sites.routed.threshold[e], sites.routed.other[e]
    arrived, rejected = counted.arrived[e], counted.rejected[e]
    sent, answered = counted.sent[e], counted.answered[e]
    server_class, worth, capacity = terms.server_class, terms.worth, terms.capacity
    deadline_s, loss, mask = terms.deadline_s, terms.loss, _mask(at.ends_s)
    away = sites.presence.away[e]
    states = sites.states[e]
    decisions, service, arrivals = states[_DECISIONS], states[_SERVICE], states[_ARRIVALS]
    phase, next_s = flow.phase[e], flow.next_s[e]
    reward = _standing(sites, e, 1)
    while next_s <= until_s:
        now_s, then = next_s, phase
        arrives, phase, next_s, arrivals = next_event(flow, e, phase, now_s, arrivals)
        if not arrives:
            continue
        arrived[then] += 1
        decisions = step(decisions)
        s = _drawn(threshold, other, decisions)
        tail = np.int64(at.tail[s])
        # So many before it are still there, or no server is.
        if at.ends_s[s, (tail - capacity) & mask] > now_s or away[s] != 0:
            rejected[then] += 1
            reward -= loss
            continue
        k = server_class[s]
        time_s, service = draw(laws, k, 1, service)
        end_s = max(now_s, at.ends_s[s, (tail - 1) & mask]) + time_s
        place = tail & mask
        at.arrived_s[s, place] = now_s
        at.ends_s[s, place] = end_s
        at.phase[s, place] = then
        at.tail[s] = tail + 1
        late = np.uint8(end_s > now_s + deadline_s)
        sent[then, k] += 1
        answered[then, k, late] += 1
        reward += worth[k, late]
    for s in range(at.queue.size):
        queue = 0
        for place in range(mask + 1):
            queue += at.ends_s[s, place] > until_s
        at.queue[s] = queue
        head = np.int64(at.tail[s]) - queue
        at.started_s[s] = max(at.arrived_s[s, head & mask], at.ends_s[s, (head - 1) & mask])
    sites.reward[e] = reward + _standing(sites, e, -1)
    states[_DECISIONS], states[_SERVICE], states[_ARRIVALS] = decisions, service, arrivals
    flow.phase[e], flow.next_s[e] = phase, next_s


@jit
def _standing(sites: SiteArrays, e: int, sign: int) -> float:
    """Count those that stand at a site as answered, or take that back; what it is worth."""
    at, answered = handle(_at(sites.servers, e)), sites.counted.answered[e]
    mask, worth = _mask(at.ends_s), 0.0
    for s in range(at.queue.size):
        k = sites.terms.server_class[s]
        for i in range(at.queue[s]):
            place = (np.int64(at.tail[s]) - 1 - i) & mask
            late = np.uint8(at.ends_s[s, place] > at.arrived_s[s, place] + sites.terms.deadline_s)
            answered[at.phase[s, place], k, late] += sign
            worth += sign * sites.terms.worth[k, late]
    return worth


@numba.njit(**_INLINE)
def _mask(places: np.ndarray) -> Any:
    return np.uint32(places.shape[1] - 1)


@jit
def _run(sites: SiteArrays, e: int, until_s: float) -> None:
    flow, terms, counted = sites.flow, sites.terms, sites.counted
    at = handle(_at(sites.servers, e))
    threshold, other = sites.routed.threshold[e], sites.routed.other[e]
    states, mask = sites.states[e], _mask(at.arrived_s)
    phase, next_s = flow.phase[e], flow.next_s[e]
    sites.reward[e] = 0.0
    for s in range(at.queue.size):  # with a smaller batch, one that waits may start
        if at.taken[s] == 0:
            _start(sites, e, s, sites.clock_s[e], phase)
    while next_s <= until_s:
        now_s, then = next_s, phase
        arrives, phase, next_s, states[_ARRIVALS] = next_event(
            flow, e, phase, now_s, states[_ARRIVALS]
        )
        if not arrives:
            continue
        counted.arrived[e, then] += 1
        states[_DECISIONS] = step(states[_DECISIONS])
        s = _drawn(threshold, other, states[_DECISIONS])
        _catch_up(sites, e, s, now_s, phase)
        queue, tail = at.queue[s], np.int64(at.tail[s])
        if queue >= terms.capacity or sites.presence.away[e, s] != 0:
            counted.rejected[e, then] += 1
            sites.reward[e] -= terms.loss
            continue
        counted.sent[e, then, terms.server_class[s]] += 1
        at.arrived_s[s, tail & mask] = now_s
        at.phase[s, tail & mask] = then
        at.queue[s], at.tail[s] = queue + 1, tail + 1
        if at.taken[s] == 0:
            _start(sites, e, s, now_s, phase)
    for s in range(at.queue.size):
        _catch_up(sites, e, s, until_s, phase)
    flow.phase[e], flow.next_s[e] = phase, next_s


@jit
def _catch_up(sites: SiteArrays, e: int, s: int, now_s: float, phase: int) -> None:
    """Let a server be left by what it has finished, and go on with what is next."""
    at, terms = handle(_at(sites.servers, e)), sites.terms
    answered, k, mask = sites.counted.answered[e], terms.server_class[s], _mask(at.arrived_s)
    while at.taken[s] > 0 and at.free_s[s] <= now_s:
        end_s = at.free_s[s]
        for _ in range(at.taken[s]):
            place = _oldest(at, s) & mask
            late = np.uint8(end_s > at.arrived_s[s, place] + terms.deadline_s)
            answered[at.phase[s, place], k, late] += 1
            sites.reward[e] += terms.worth[k, late]
            at.queue[s] -= 1
        _start(sites, e, s, end_s, phase)


@jit
def _start(sites: SiteArrays, e: int, s: int, now_s: float, phase: int) -> None:
    """Let a free server take what the batch rule says (Sec. 5.2.2)."""
    at, terms, routed = handle(_at(sites.servers, e)), sites.terms, sites.routed
    laws, counted, states = sites.laws, sites.counted, sites.states[e]
    k, mask, waiting = terms.server_class[s], _mask(at.arrived_s), np.int64(at.queue[s])
    wanted = 0 if waiting < routed.smallest[e, k] else min(waiting, routed.largest[e, k])
    while terms.drops and at.queue[s] > 0:
        place = _oldest(at, s) & mask
        if at.arrived_s[s, place] + terms.deadline_s >= now_s:
            break
        at.queue[s] -= 1
        counted.dropped[e, at.phase[s, place]] += 1
        counted.sent[e, at.phase[s, place], k] -= 1
        sites.reward[e] -= terms.loss
    taken = min(wanted, np.int64(at.queue[s]), laws.size.shape[1] - 1)
    if taken > 0:
        taken = laws.size[k, taken]
        time_s, states[_SERVICE] = draw(laws, k, taken, states[_SERVICE])
        at.started_s[s], at.free_s[s] = now_s, now_s + time_s
        counted.batches[e, phase, k] += 1
    at.taken[s] = taken


@numba.njit(**_INLINE)
def _oldest(at: Servers, s: int) -> Any:
    return np.int64(at.tail[s]) - np.int64(at.queue[s])


@jit
def _note(sites: SiteArrays, e: int, sign: int) -> None:
    """Add what has been counted to the outcomes of the slot, or take it off."""
    counted, outcomes = sites.counted, sites.outcomes
    phases, classes = counted.sent.shape[1:]
    for phase in range(phases):
        outcomes.arrived[e] += sign * counted.arrived[e, phase]
        lost = counted.rejected[e, phase] + counted.dropped[e, phase]
        outcomes.rejected[e] += sign * lost
        for k in range(classes):
            outcomes.timely[e, k] += sign * counted.answered[e, phase, k, 0]
            outcomes.late[e] += sign * counted.answered[e, phase, k, 1]


@jit
def _observe(sites: SiteArrays, e: int) -> None:
    """Write what a controller sees of a site, in the order of `inferway.scheduling.observation`."""
    terms, flow, now_s = sites.terms, sites.flow, sites.clock_s[e]
    at, row = handle(_at(sites.servers, e)), sites.observation[e]
    row[:] = 0.0
    first, width, mask = 0, terms.capacity + 1, _mask(at.arrived_s)
    for s in range(at.queue.size):
        if sites.presence.away[e, s] != 0:
            first += 2 * width + 1
            continue
        queue, oldest = at.queue[s], _oldest(at, s)
        row[first + queue] = 1.0
        first += width
        if queue > 0 and (terms.eager or at.taken[s] > 0):
            served_s = now_s - at.started_s[s]
            row[first] = min(1.0, served_s / terms.service_s[terms.server_class[s]])
        first += 1
        for i in range(queue):
            age_s = now_s - at.arrived_s[s, (oldest + i) & mask]
            row[first + i] = min(1.0, age_s / terms.age_s)
        first += width
    if terms.batches:
        most = sites.laws.size.shape[1] - 1
        for s in range(at.queue.size):
            row[first + s] = at.taken[s] / most
        first += at.queue.size
    if terms.changing:
        for s in range(at.queue.size):
            row[first + s] = sites.presence.away[e, s] == 0
        first += at.queue.size
    if terms.sees_phase:
        row[first + flow.phase[e]] = 1.0
        first += flow.mean_s.size
        if flow.kind == PHASES:
            row[first] = (now_s - flow.switch_s[e]) / flow.lasts_s.max()
