"""Arrivals of many sites, one at a time, from the stream of each: Markovian, by phases, or listed.

Poisson arrivals have no memory, so a process is where it is in its phase and when the next request
comes if the phase lasts so long; where a phase begins, the wait begins anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from inferway.deployment.workloads import (
    Arrivals,
    MapArrivals,
    PhasedArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from inferway.site.compiled import jit
from inferway.site.draw import exponential, step, unit
from inferway.site.view import Floats, Ints

# Kinds of arrivals: Markovian, Poisson with rates that change at set times, and listed times.
MAP, PHASES, TRACE = range(3)
_INLINE = {"forceinline": True}
_LONGEST_TRACE = 20_000_000
_CHUNK = 65_536


class Flow(NamedTuple):
    """The arrivals of E sites, m phases; TRACE has one phase that never ends."""

    kind: int
    mean_s: Floats  # (m,) mean time between arrivals; inf where a phase has none
    # (m,) how long a phase lasts, for MAP in the mean; inf where it is the only one
    lasts_s: Floats
    after: Floats  # (m, m) cumulative chances of the phase after one that ends
    # (m, m) cumulative chances of the phase after an arrival, for MAP; no columns where arrivals
    # change no phase
    along: Floats
    times_s: Floats  # (T,) for TRACE: arrivals, and the trace's length last
    next_s: Floats  # (E,) the next arrival, or the end of the phase if that is earlier
    phase: Ints  # (E,)
    switch_s: Floats  # (E,) when the phase began
    end_s: Floats  # (E,) when it ends
    at: Ints  # (E,) the next arrival of the trace
    base_s: Floats  # (E,) when the trace began, at the site's clock


@numba.njit(**_INLINE)
def next_event(
    flow: Flow, e: int, phase: int, now_s: float, state: Any
) -> tuple[bool, int, float, Any]:
    """Apply what happens now at site e, as `flow.next_s` said, and find what comes next.

    Returns whether a request arrives, the workload's phase then, when the next event is, and the
    state of the site's stream of arrivals.
    """
    if flow.kind == TRACE:
        return True, phase, _next_listed(flow, e), state
    arrives = now_s < flow.end_s[e]
    if not arrives or flow.along.shape[1] > 0:
        phase, state = _change(flow, e, phase, now_s, arrives, state)
    state = step(state)
    next_s = now_s + exponential(state) * flow.mean_s[phase]
    return arrives, phase, min(next_s, flow.end_s[e]), state


@jit
def _next_listed(flow: Flow, e: int) -> float:
    """The trace's next arrival; after its last it goes round."""
    flow.at[e] += 1
    if flow.at[e] == flow.times_s.size - 1:
        flow.at[e] = 0
        flow.base_s[e] += flow.times_s[-1]
    return flow.base_s[e] + flow.times_s[flow.at[e]]


@jit
def _change(
    flow: Flow, e: int, phase: int, now_s: float, arrives: bool, state: Any
) -> tuple[int, Any]:
    """The phase after an arrival or after the end of a phase, and the stream's state."""
    state = step(state)
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
    return after, state


def flow_of(arrivals: Arrivals, capacity_per_s: float, count: int) -> Flow:
    """The arrivals of so many sites; `begin` begins them. ValueError for a trace without a rate."""
    kind, mean_s, lasts_s = MAP, np.ones(1), np.full(1, np.inf)
    after, along, times_s = np.full((1, 1), np.inf), np.empty((1, 0)), np.zeros(1)
    match arrivals:
        case MapArrivals():
            d0, d1 = np.array(arrivals.d0), np.array(arrivals.d1)
            silent = d0 - np.diag(np.diag(d0))
            with np.errstate(divide="ignore"):
                mean_s, lasts_s = 1.0 / d1.sum(axis=1), 1.0 / silent.sum(axis=1)
            after = _cumulative(silent)
            along = _cumulative(d1) if (d1 != np.diag(np.diag(d1))).any() else along
        case PhasedArrivals(phases=phases):
            kind = PHASES
            mean_s = np.array([1.0 / one.mean_rate_per_s(capacity_per_s) for one in phases])
            lasts_s = np.array([one.for_ for one in phases])
            after = _cumulative(np.roll(np.eye(len(phases)), 1, axis=1))
        case TraceArrivals(file=file, speed=speed):
            kind = TRACE
            listed = np.concatenate(list(arrivals.pieces(_CHUNK)))[:_LONGEST_TRACE] / speed
            if len(listed) < 2 or listed[0] == listed[-1]:
                raise ValueError(f"{file} has no rate: all its times are equal")
            listed = listed - listed[0]
            # It goes round: a mean gap lies between its last arrival and its first.
            times_s = np.append(listed, listed[-1] * len(listed) / (len(listed) - 1))
        case PoissonArrivals():
            mean_s = np.array([1.0 / arrivals.mean_rate_per_s(capacity_per_s)])
        case _:
            raise AssertionError(arrivals)
    now: Any = (np.zeros(count, of) for of in (float, int, float, float, int, float))
    return Flow(kind, mean_s, lasts_s, after, along, times_s, *now)


def _cumulative(rates: Floats) -> Floats:
    """(m, m) cumulative chances by row; the last that can be takes what rounding leaves."""
    found = np.cumsum(rates, axis=1)
    for row, of in zip(found, rates, strict=True):
        row /= max(row[-1], 1e-300)
        row[np.flatnonzero(of)[-1] if of.any() else -1 :] = np.inf
    return found


def begin(flow: Flow, e: int, arrivals: Arrivals, chance: np.random.Generator) -> None:
    """The workload at a random time of its long run; the first site's trace at its beginning."""
    flow.phase[e], flow.switch_s[e] = 0, 0.0
    if isinstance(arrivals, TraceArrivals):
        length_s = flow.times_s[-1]
        begin_s = 0.0 if e == 0 else chance.random() * length_s
        at = int(np.searchsorted(flow.times_s[:-1], begin_s))
        again = at == len(flow.times_s) - 1
        flow.at[e] = 0 if again else at
        flow.base_s[e] = (length_s if again else 0.0) - begin_s
        flow.end_s[e] = np.inf
        flow.next_s[e] = flow.base_s[e] + flow.times_s[flow.at[e]]
        return
    left_s = np.inf
    if isinstance(arrivals, MapArrivals):
        flow.phase[e] = chance.choice(len(arrivals.d0), p=arrivals.stationary)
        left_s = chance.standard_exponential() * flow.lasts_s[flow.phase[e]]
    elif isinstance(arrivals, PhasedArrivals):
        ends_s = np.cumsum(flow.lasts_s)
        begin_s = chance.random() * ends_s[-1]
        flow.phase[e] = phase = int(np.searchsorted(ends_s, begin_s, side="right"))
        left_s = ends_s[phase] - begin_s
        flow.switch_s[e] = left_s - flow.lasts_s[phase]
    flow.end_s[e] = left_s
    gap_s = chance.standard_exponential() * flow.mean_s[flow.phase[e]]
    flow.next_s[e] = min(gap_s, left_s)
