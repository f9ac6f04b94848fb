"""Serving under an allocation: the loads of one slot ([SiSalem23], Sec. III-E).

Every request goes to the cheapest instance on its path that is not yet saturated. Where request
types compete for an instance, the paper leaves the order of arrival open. Here all types' requests
come evenly over the slot, so that competing types fill an instance in proportion to their rates
and learn at the same moment that it is full. Loads are therefore real numbers, not counts.

Up to the last option that a type uses, all its allocated options are full, so eq. 12 with the
capacities of eq. 7 gives exactly the cost of these loads, whatever the order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.options import Options
from inferway.placement.contract import Allocation, Float, Index, Offset, batch_of, integral_of
from inferway.site.compiled import entry, jit

_CLOSED: Final = -1
_UNUSED: Final = -2


def instances(network: DeliveryNetwork, allocation: Allocation) -> Float:
    """(P,) instances that an allocation stands for; the pinned ones run whatever it says."""
    pinned = network.pairs.pinned
    return np.where(pinned > 0, pinned, allocation)


def serve(
    network: DeliveryNetwork, requests: Float, allocation: Allocation, *, out: Float | None = None
) -> Float:
    """Serve one slot's requests.

    Parameters
    ----------
    network
        The inference delivery network.
    requests
        (R,) requests of each type in the slot.
    allocation
        (P,) 0 or 1 for each useful pair.
    out
        (O,) array to write into, for callers who serve slot after slot of a large network.

    Returns
    -------
    load
        (O,) requests that each option serves. What exceeds the repository's capacity (eq. 9 rules
        it out) is counted there all the same.

    Raises
    ------
    ValueError
        For arrays of another shape, and counts that are negative or not finite.
    """
    requests = batch_of(network, requests)
    allocation = integral_of(network, allocation)
    options, pairs = network.options, network.pairs
    load = np.empty(len(options.pair)) if out is None else out
    if load.shape != (len(options.pair),) or load.dtype != np.float64:
        raise ValueError(f"loads are {len(options.pair)} floats, not {load.shape} of {load.dtype}")
    fill(options.first, options.pair, pairs.capacity, pairs.pinned, allocation, requests, load)
    return load


@entry
def fill(
    first: Offset,
    pair: Index,
    capacity: Float,
    pinned: Float,
    x: Allocation,
    requests: Float,
    load: Float,
) -> None:
    """Write the loads."""
    types = len(first) - 1
    # Few pairs are allocated, and fewer are ever used: those are numbered when they first are, so
    # that the memory behind the arrays below is touched for them alone.
    number = np.full(len(x), _CLOSED, np.int32)
    count = 0
    for p in range(len(x)):
        if x[p] > 0 or pinned[p] > 0.0:
            number[p] = _UNUSED
            count += 1
    room = np.empty(count)
    rate = np.empty(count)
    seen = np.empty(count)
    due = np.empty(count)
    # Types that use an instance, as linked lists; instances by the time at which they will be full.
    head = np.empty(count, np.int32)
    heap = np.empty(count, np.int32)
    place = np.empty(count, np.int32)
    current = np.empty(types, np.int64)  # the option that a type uses now
    since = np.zeros(types)
    follower = np.full(types, -1, np.int32)
    held = 0
    for rho in range(types):
        load[first[rho] : first[rho + 1]] = 0.0
        if requests[rho] <= 0:
            continue
        o = _next_open(pair, number, room, first[rho], first[rho + 1])
        current[rho] = o
        p = pair[o]
        if number[p] == _UNUSED:
            _open(number, p, held, capacity, pinned, room, rate, seen, head)
            heap[held] = place[held] = held
            held += 1
        i = number[p]
        follower[rho] = head[i]
        head[i] = rho
        rate[i] += requests[rho]
    for k in range(held):
        due[k] = room[k] / rate[k]
    used = held
    for k in range(held // 2 - 1, -1, -1):
        sink(heap, place, due, k, held)
    while used and due[heap[0]] < 1.0:
        full = heap[0]
        now = due[full]
        room[full] = 0.0
        due[full] = np.inf
        rho = head[full]
        head[full] = -1
        while rho >= 0:
            after = follower[rho]
            o = current[rho]
            load[o] += requests[rho] * (now - since[rho])
            since[rho] = now
            o = _next_open(pair, number, room, o, first[rho + 1])
            current[rho] = o
            p = pair[o]
            if number[p] == _UNUSED:
                _open(number, p, used, capacity, pinned, room, rate, seen, head)
                heap[used] = place[used] = used
                due[used] = np.inf
                used += 1
            i = number[p]
            follower[rho] = head[i]
            head[i] = rho
            if i != full:  # else it is the last resort, and stays so
                room[i] -= rate[i] * (now - seen[i])
                seen[i] = now
                rate[i] += requests[rho]
                due[i] = now + max(room[i], 0.0) / rate[i]
                rise(heap, place, due, place[i])
                sink(heap, place, due, place[i], used)
            rho = after
        sink(heap, place, due, place[full], used)
    for rho in range(types):
        if requests[rho] > 0:
            load[current[rho]] += requests[rho] * (1.0 - since[rho])


@jit
def _open(
    number: Index,
    p: int,
    i: int,
    capacity: Float,
    pinned: Float,
    room: Float,
    rate: Float,
    seen: Float,
    head: Index,
) -> None:
    number[p] = i
    room[i] = capacity[p] * (pinned[p] if pinned[p] > 0.0 else 1.0)
    rate[i] = seen[i] = 0.0
    head[i] = -1


@jit
def _next_open(pair: Index, number: Index, room: Float, start: int, end: int) -> int:
    """First option from `start` on whose instance has room, else the last one."""
    for o in range(start, end):
        i = number[pair[o]]
        if i == _UNUSED or (i >= 0 and room[i] > 0.0):
            return o
    return end - 1


@jit
def rise(heap: Index, place: Index, key: Float, i: int) -> None:
    """Put in order after the key of the thing at position i fell; `place` inverts `heap`."""
    moved = heap[i]
    while i > 0:
        parent = (i - 1) // 2
        if key[heap[parent]] <= key[moved]:
            break
        heap[i] = heap[parent]
        place[heap[i]] = i
        i = parent
    heap[i] = moved
    place[moved] = i


@jit
def sink(heap: Index, place: Index, key: Float, i: int, held: int) -> None:
    """Put in order after the key of the thing at position i rose; the heap holds `held`."""
    moved = heap[i]
    while True:
        child = 2 * i + 1
        if child >= held:
            break
        if child + 1 < held and key[heap[child + 1]] < key[heap[child]]:
            child += 1
        if key[moved] <= key[heap[child]]:
            break
        heap[i] = heap[child]
        place[heap[i]] = i
        i = child
    heap[i] = moved
    place[moved] = i


def spent(network: DeliveryNetwork, load: Float) -> Float:
    """(R,) what each type's requests cost under (O,) loads, in the unit of the options' costs."""
    total = np.zeros(len(network.options.first) - 1)
    _spend(network.options, load, total)
    return total


def tally(network: DeliveryNetwork, load: Float) -> tuple[Float, Float]:
    """Sum up (O,) loads by the tier that served them, and by the task that they were for.

    Each is (parts, 3): requests, the seconds that they took together, and their summed inaccuracy
    in 0..1.
    """
    options, used = network.options, np.flatnonzero(load)
    served = load[used]
    values = (served, served * network.latency_s[used], served * network.inaccuracy[used])
    task = np.repeat(network.requests.task, np.diff(options.first))[used]
    tier = network.tier[options.node[used]]
    tiers, tasks = np.zeros((len(network.tiers), 3)), np.zeros((len(network.tasks), 3))
    for column, value in enumerate(values):
        tiers[:, column] = np.bincount(tier, value, len(network.tiers))
        tasks[:, column] = np.bincount(task, value, len(network.tasks))
    return tiers, tasks


@entry
def _spend(options: Options, load: Float, total: Float) -> None:
    for rho in range(len(total)):
        for o in range(options.first[rho], options.first[rho + 1]):
            total[rho] += options.cost[o] * load[o]
