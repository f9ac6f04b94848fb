"""Many sites in lockstep, each routed at random by probabilities that hold for a slot.

Where routing reads no queue, the servers of a site meet only at its arrivals: a server is brought
up to date when the next request comes to it and when the slot ends, and no future has to be kept
in order. What happens is the general engine's doing with the policy `alias`, event for event.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types
from numba.experimental import structref

from inferway.dispatch.alias_table import tabulate
from inferway.site.compiled import jit
from inferway.site.draw import uniform
from inferway.site.handle import handle
from inferway.site.view import Floats, Ints
from inferway.twin.kernel.chance import exponential, step, unit, word
from inferway.twin.kernel.laws import Laws, draw

MAP, PHASES, TRACE = range(3)
"""Kinds of arrivals: Markovian, Poisson with rates that change at set times, and listed times."""
_DECISIONS, _SERVICE, _ARRIVALS = range(3)
inlined = numba.njit(forceinline=True)


class Servers(NamedTuple):
    """What stands at the servers; C places each, a power of two."""

    queue: Ints
    """(E, n) requests, those in service included."""
    taken: Ints
    """(E, n) requests in service, where batches are formed; 0 where the server waits for more."""
    head: Ints
    """(E, n) place of the oldest request."""
    free_s: Floats
    """(E, n) when all that stands there will be served, where that is known."""
    arrived_s: Floats
    """(E, n, C) by place: when a request came,"""
    started_s: Floats
    """(E, n, C) when its service begins, if that is known,"""
    ends_s: Floats
    """(E, n, C) when it ends, inf where it is not,"""
    phase: Ints
    """(E, n, C) and the workload's phase when it came."""


class Flow(NamedTuple):
    """The arrivals of E sites, m phases; TRACE has one phase that never ends."""

    kind: int
    mean_s: Floats
    """(m,) mean time between arrivals; inf where a phase has none."""
    lasts_s: Floats
    """(m,) how long a phase lasts, for MAP in the mean; inf where it is the only one."""
    after: Floats
    """(m, m) cumulative chances of the phase after one that ends."""
    along: Floats
    """(m, m) cumulative chances of the phase after an arrival, for MAP; m columns or, where
    arrivals change no phase, none."""
    times_s: Floats
    """(T,) for TRACE: arrivals, and the trace's length last."""
    next_s: Floats
    """(E,) the next arrival, or the end of the phase if that is earlier."""
    phase: Ints
    """(E,)"""
    switch_s: Floats
    """(E,) when the phase began."""
    end_s: Floats
    """(E,) when it ends."""
    at: Ints
    """(E,) the next arrival of the trace."""
    base_s: Floats
    """(E,) when the trace began, at the site's clock."""


class Routed(NamedTuple):
    """Routing and batch rules of the slot."""

    threshold: Floats
    """(E, n) alias tables."""
    other: Ints
    """(E, n)"""
    smallest: Ints
    """(E, K) batches that are waited for."""
    largest: Ints
    """(E, K) batches that are not exceeded."""


class Counted(NamedTuple):
    """Counts by the phase in which a request arrived, since they were last cleared."""

    arrived: Ints
    """(E, m)"""
    rejected: Ints
    """(E, m)"""
    dropped: Ints
    """(E, m)"""
    sent: Ints
    """(E, m, K)"""
    answered: Ints
    """(E, m, K, 2) answered in time and late."""
    batches: Ints
    """(E, m, K) batches begun, by the workload's phase at that time."""
    slot: Ints
    """(E,) arrivals of the present slot."""


class Terms(NamedTuple):
    """What is the same at all sites."""

    server_class: Ints
    """(n,)"""
    capacity: int
    """Places at a server, the one in service included."""
    deadline_s: float
    drops: bool
    """Whether a request is dropped that would start after its deadline."""
    eager: bool
    """Whether a request's times are known as soon as it comes: one at a time, none dropped."""
    worth: Floats
    """(K, 2) reward of an answer in time, beta g of eq. 2, and of a late one."""
    loss: Floats
    """(3,) unused, cost of a rejected and of a dropped request."""
    service_s: Floats
    """(K,) longest service time, by which the time served is divided in observations."""
    age_s: float
    """By which ages are divided."""
    sees_phase: bool
    batches: bool
    """Whether observations say the sizes of the batches in service."""


class Sites(NamedTuple):
    """Everything that the kernels share."""

    servers: Servers
    flow: Flow
    routed: Routed
    counted: Counted
    terms: Terms
    laws: Laws
    clock_s: Floats
    """(E,)"""
    reward: Floats
    """(E,) of the present slot, eq. 2."""
    observation: np.ndarray
    """(E, d) float32."""
    states: np.ndarray
    """(E, 3) streams: of decisions, of service times, of arrivals."""


class Here(NamedTuple):
    """One site's part of the arrays: local to a call, they stay in registers."""

    queue: Ints
    taken: Ints
    head: Ints
    free_s: Floats
    arrived_s: Floats
    started_s: Floats
    ends_s: Floats
    phase: Ints
    threshold: Floats
    other: Ints
    smallest: Ints
    largest: Ints
    arrived: Ints
    rejected: Ints
    dropped: Ints
    sent: Ints
    answered: Ints
    batches: Ints
    states: np.ndarray
    reward: Floats
    mask: int


@jit
def step_slot(sites: Sites, probabilities: Floats, batches: Ints, slot_s: float) -> None:
    """Route by these probabilities for a slot, then observe.

    Parameters
    ----------
    probabilities
        (E, n) at least 0, each row with a sum above 0.
    batches
        (E, K, 2) smallest and largest batch by class.
    """
    sites = handle(sites)
    for e in range(sites.clock_s.size):
        tabulate(probabilities[e], sites.routed.threshold[e], sites.routed.other[e])
        for k in range(sites.routed.smallest.shape[1]):
            sites.routed.smallest[e, k] = batches[e, k, 0]
            sites.routed.largest[e, k] = batches[e, k, 1]
        run_slot(sites, e, sites.clock_s[e] + slot_s)
        observe(sites, e)


@inlined
def _here(sites: Sites, e: int) -> Here:
    servers, routed, counted = sites.servers, sites.routed, sites.counted
    return Here(
        servers.queue[e],
        servers.taken[e],
        servers.head[e],
        servers.free_s[e],
        servers.arrived_s[e],
        servers.started_s[e],
        servers.ends_s[e],
        servers.phase[e],
        routed.threshold[e],
        routed.other[e],
        routed.smallest[e],
        routed.largest[e],
        counted.arrived[e],
        counted.rejected[e],
        counted.dropped[e],
        counted.sent[e],
        counted.answered[e],
        counted.batches[e],
        sites.states[e],
        sites.reward[e : e + 1],
        servers.arrived_s.shape[2] - 1,
    )


@jit
def run_slot(sites: Sites, e: int, until_s: float) -> None:
    """Run one site up to a time, that included."""
    flow, laws, terms = sites.flow, sites.laws, sites.terms
    server_class, capacity, eager, rejected = (
        terms.server_class,
        terms.capacity,
        terms.eager,
        terms.loss[1],
    )
    # All below is inlined, and what a handle leads to that stays here is as good as local.
    here = handle(_here(sites, e))
    n = here.queue.size
    here.reward[0] = 0.0
    phase, next_s, count = flow.phase[e], flow.next_s[e], 0
    if not eager:
        for s in range(n):  # with a smaller batch, one that waits may start
            if here.queue[s] > here.taken[s] == 0:
                _start(here, laws, terms, s, server_class[s], sites.clock_s[e], phase)
    while next_s <= until_s:
        now_s = next_s
        arrives, phase, next_s = _next(flow, here, e, phase, now_s)
        if not arrives:
            continue
        count += 1
        here.arrived[phase] += 1
        state = step(here.states[_DECISIONS])
        here.states[_DECISIONS] = state
        u = uniform(word(state), 0) * n
        s = int(u)
        # Without a branch: nobody could predict it.
        s += int(u - s >= here.threshold[s]) * (here.other[s] - s)
        k = server_class[s]
        _catch_up(here, laws, terms, s, k, now_s, phase)
        queue = here.queue[s]
        if queue >= capacity:
            here.rejected[phase] += 1
            here.reward[0] -= rejected
            continue
        here.sent[phase, k] += 1
        place = (here.head[s] + queue) & here.mask
        here.arrived_s[s, place] = now_s
        here.phase[s, place] = phase
        here.queue[s] = queue + 1
        if eager:
            time_s, here.states[_SERVICE] = draw(laws, k, 1, here.states[_SERVICE])
            start_s = max(now_s, here.free_s[s])
            here.started_s[s, place] = start_s
            here.ends_s[s, place] = start_s + time_s
            here.free_s[s] = start_s + time_s
        else:
            here.ends_s[s, place] = np.inf
            if here.taken[s] == 0:
                _start(here, laws, terms, s, k, now_s, phase)
    for s in range(n):
        _catch_up(here, laws, terms, s, server_class[s], until_s, phase)
    flow.phase[e], flow.next_s[e] = phase, next_s
    sites.counted.slot[e] = count
    sites.clock_s[e] = until_s


@inlined
def _catch_up(
    here: Here, laws: Laws, terms: Terms, s: int, k: int, now_s: float, phase: int
) -> None:
    """What a server has finished by now leaves it, and it goes on with what is next."""
    queue, place = here.queue[s], here.head[s]
    while queue > 0 and here.ends_s[s, place] <= now_s:
        end_s = here.ends_s[s, place]
        late = int(end_s > here.arrived_s[s, place] + terms.deadline_s)
        here.answered[here.phase[s, place], k, late] += 1
        here.reward[0] += terms.worth[k, late]
        place = (place + 1) & here.mask
        queue -= 1
        if not terms.eager:
            here.taken[s] -= 1
            if here.taken[s] == 0 and queue > 0:
                here.queue[s], here.head[s] = queue, place
                _start(here, laws, terms, s, k, end_s, phase)
                queue, place = here.queue[s], here.head[s]
    here.queue[s], here.head[s] = queue, place


@jit
def _start(here: Here, laws: Laws, terms: Terms, s: int, k: int, now_s: float, phase: int) -> None:
    """Let a free server take what the batch rule says."""
    waiting = here.queue[s]
    wanted = 0 if waiting < here.smallest[k] else min(waiting, here.largest[k])
    if terms.drops:
        while here.queue[s] > 0:
            place = here.head[s]
            if here.arrived_s[s, place] + terms.deadline_s >= now_s:
                break
            here.head[s] = (place + 1) & here.mask
            here.queue[s] -= 1
            here.dropped[here.phase[s, place]] += 1
            here.sent[here.phase[s, place], k] -= 1
            here.reward[0] -= terms.loss[2]
        wanted = min(wanted, here.queue[s])
    if wanted > 0:
        wanted = laws.size[k, min(wanted, laws.size.shape[1] - 1)]
        time_s, here.states[_SERVICE] = draw(laws, k, wanted, here.states[_SERVICE])
        for i in range(wanted):
            place = (here.head[s] + i) & here.mask
            here.started_s[s, place] = now_s
            here.ends_s[s, place] = now_s + time_s
        here.batches[phase, k] += 1
    here.taken[s] = wanted


@inlined
def _next(flow: Flow, here: Here, e: int, phase: int, now_s: float) -> tuple[bool, int, float]:
    """Whether what happens now is an arrival, the phase then, and when the next will be."""
    if flow.kind == TRACE:
        flow.at[e] += 1
        if flow.at[e] == flow.times_s.size - 1:
            flow.at[e] = 0
            flow.base_s[e] += flow.times_s[-1]
        return True, phase, flow.base_s[e] + flow.times_s[flow.at[e]]
    arrives = now_s < flow.end_s[e]
    if not arrives or flow.along.shape[1] > 0:
        phase = _change(flow, here, e, phase, now_s, arrives)
    # Poisson arrivals have no memory: where a phase begins they begin anew.
    state = step(here.states[_ARRIVALS])
    here.states[_ARRIVALS] = state
    return arrives, phase, min(now_s + exponential(state) * flow.mean_s[phase], flow.end_s[e])


@jit
def _change(flow: Flow, here: Here, e: int, phase: int, now_s: float, arrives: bool) -> int:
    """The phase after an arrival or after the end of a phase."""
    state = step(here.states[_ARRIVALS])
    chances = flow.along[phase] if arrives else flow.after[phase]
    u, after = unit(state), 0
    while chances[after] <= u:
        after += 1
    if after != phase or not arrives:
        flow.switch_s[e] = now_s
        lasts_s = flow.lasts_s[after]
        if flow.kind == MAP:
            state = step(state)
            lasts_s *= exponential(state)
        flow.end_s[e] = now_s + lasts_s
    here.states[_ARRIVALS] = state
    return after


@jit
def observe(sites: Sites, e: int) -> None:
    """Write what a controller sees of a site, in the order of `inferway.scheduling.observation`."""
    terms, flow, now_s = sites.terms, sites.flow, sites.clock_s[e]
    servers = sites.servers
    queue, head, taken = servers.queue[e], servers.head[e], servers.taken[e]
    started_s, arrived_s = servers.started_s[e], servers.arrived_s[e]
    row = sites.observation[e]
    row[:] = 0.0
    at, width, mask = 0, terms.capacity + 1, arrived_s.shape[1] - 1
    for s in range(queue.size):
        row[at + queue[s]] = 1.0
        at += width
        if queue[s] > 0 and (terms.eager or taken[s] > 0):
            served_s = now_s - started_s[s, head[s]]
            row[at] = min(1.0, served_s / terms.service_s[terms.server_class[s]])
        at += 1
        for i in range(queue[s]):
            age_s = now_s - arrived_s[s, (head[s] + i) & mask]
            row[at + i] = min(1.0, age_s / terms.age_s)
        at += width
    if terms.batches:
        most = sites.laws.size.shape[1] - 1
        for s in range(queue.size):
            row[at + s] = taken[s] / most
        at += queue.size
    if terms.sees_phase:
        row[at + flow.phase[e]] = 1.0
        at += flow.mean_s.size
        if flow.kind == PHASES:
            row[at] = (now_s - flow.switch_s[e]) / flow.lasts_s.max()


@structref.register
class _SitesType(types.StructRef):  # type: ignore[misc, name-defined]
    """`Sites` behind one pointer: unpacking fifty arrays at every slot would cost 20 us."""


if numba.config.DISABLE_JIT:

    def bind(sites: Sites) -> Any:
        """What the other calls take."""
        return sites

else:

    class _SitesRef(structref.StructRefProxy):  # type: ignore[misc]
        pass

    structref.define_proxy(_SitesRef, _SitesType, list(Sites._fields))

    def bind(sites: Sites) -> Any:
        """A handle to the sites that Python hands over in no time."""
        return _SitesRef(
            sites.servers,
            sites.flow,
            sites.routed,
            sites.counted,
            sites.terms,
            sites.laws,
            sites.clock_s,
            sites.reward,
            sites.observation,
            sites.states,
        )


def advance(bound: Any, probabilities: Floats, batches: Ints, slot_s: float) -> None:
    """Run every site for a slot; see `step_slot`."""
    sites = Sites(
        bound.servers,
        bound.flow,
        bound.routed,
        bound.counted,
        bound.terms,
        bound.laws,
        bound.clock_s,
        bound.reward,
        bound.observation,
        bound.states,
    )
    step_slot(sites, probabilities, batches, slot_s)


def look(bound: Any) -> None:
    """Observe every site as it is."""
    sites = Sites(
        bound.servers,
        bound.flow,
        bound.routed,
        bound.counted,
        bound.terms,
        bound.laws,
        bound.clock_s,
        bound.reward,
        bound.observation,
        bound.states,
    )
    for e in range(sites.clock_s.size):
        observe(handle(sites), e)
