"""Requests in the system: first come, first served, one queue per server and a central one.

A run needs memory for what is in the system at once and no more, however long it is and however
large the buffers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from inferway.site.compiled import jit
from inferway.site.view import Floats, Ints


class Waiting(NamedTuple):
    """Queues of n servers and the central one, number n, as linked lists in one pool."""

    first: Ints
    """(n + 1,) entry of the first in a queue; what it says counts if the queue is not empty."""
    last: Ints
    """(n + 1,) entry of the last."""
    next: Ints
    """(M,) the entry behind this one, in its queue or among the free."""
    arrived_s: Floats
    """(M,) when the request entered the site."""
    phase: Ints
    """(M,) the workload's phase at that time."""
    free: Ints
    """(2,) first free entry and how many are free."""


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
    entry = waiting.free[0]
    waiting.free[0] = waiting.next[entry]
    waiting.free[1] -= 1
    waiting.arrived_s[entry] = arrived_s
    waiting.phase[entry] = phase
    if empty:
        waiting.first[queue] = entry
    else:
        waiting.next[waiting.last[queue]] = entry
    waiting.last[queue] = entry


@jit
def pop(waiting: Waiting, queue: int) -> int:
    """The first of a queue leaves it; its entry stays as it is until the next push."""
    entry = waiting.first[queue]
    waiting.first[queue] = waiting.next[entry]
    waiting.next[entry] = waiting.free[0]
    waiting.free[0] = entry
    waiting.free[1] += 1
    return entry
