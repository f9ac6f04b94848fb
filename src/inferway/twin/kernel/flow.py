"""Arrivals of many sites, one at a time, from the stream of each: Markovian, by phases, or listed.

Poisson arrivals have no memory, so a process is where it is in its phase and when the next request
comes if the phase lasts so long; where a phase begins, the wait begins anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba

from inferway.site.compiled import jit
from inferway.site.view import Floats, Ints
from inferway.twin.kernel.chance import exponential, step, unit

MAP, PHASES, TRACE = range(3)
"""Kinds of arrivals: Markovian, Poisson with rates that change at set times, and listed times."""
_INLINE = {"forceinline": True}


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


@numba.njit(**_INLINE)
def next_event(
    flow: Flow, e: int, phase: int, now_s: float, state: Any
) -> tuple[bool, int, float, Any]:
    """What happens now at site e, and what comes next.

    Parameters
    ----------
    phase
        Up to now.
    now_s
        As `flow.next_s` said.
    state
        The site's stream of arrivals.

    Returns
    -------
    (bool, int, float, uint64)
        Whether a request arrives, the phase then, when the next event is, and the stream's state.
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
