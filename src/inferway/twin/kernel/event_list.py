"""Events to come: completions in order of time.

Two structures with one face, told apart by type when compiled. Where every class has one service
time, its completions come in the order of their starts: a ring per class. In general, a heap. Both
give events of the same time in the order of their items, so that nothing depends on the structure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inferway.site.compiled import either, jit
from inferway.site.fleet import Fleet
from inferway.site.view import Floats, Ints

# Children of a place in the heap: four share a cache line, and the tree is half as deep.
_BRANCHES = 4


class Rings(NamedTuple):
    """Completions by class, in order: class k has places ``first[k] .. first[k + 1] - 1``."""

    first: Ints  # (K + 1,)
    at_s: Floats  # (n,) times
    item: Ints  # (n,) servers
    head: Ints  # (K,) place of a class's earliest, counted from `first`
    size: Ints  # (K,) how many a class has
    earliest: Floats  # (K,) time of a class's earliest; inf where it has none


class Heap(NamedTuple):
    """Events in a four-ary heap."""

    at_s: Floats  # (M,) times
    item: Ints  # (M,) servers, or other items
    size: Ints  # (1,)


def rings(fleet: Fleet) -> Rings:
    """Empty rings."""
    classes, servers = len(fleet.rate), fleet.servers
    return Rings(
        fleet.first.copy(),
        np.zeros(servers),
        np.zeros(servers, np.int64),
        np.zeros(classes, np.int64),
        np.zeros(classes, np.int64),
        np.full(classes, np.inf),
    )


def heap(entries: int) -> Heap:
    """An empty heap for so many events at once."""
    return Heap(np.zeros(entries), np.zeros(entries, np.int64), np.zeros(1, np.int64))


@jit
def put_in_rings(future: Rings, k: int, item: int, at_s: float) -> None:
    """Add behind the others of its class."""
    first = future.first[k]
    count = future.first[k + 1] - first
    place = future.head[k] + future.size[k]
    if place >= count:
        place -= count
    for _ in range(future.size[k]):
        before = place - 1 if place > 0 else count - 1
        if future.at_s[first + before] < at_s or future.item[first + before] < item:
            break
        future.at_s[first + place] = at_s
        future.item[first + place] = future.item[first + before]
        place = before
    future.at_s[first + place] = at_s
    future.item[first + place] = item
    if future.size[k] == 0:
        future.earliest[k] = at_s
    future.size[k] += 1


@jit
def next_of_rings(future: Rings) -> float:
    """The earliest of the classes' earliest."""
    least = future.earliest[0]
    for k in range(1, future.earliest.size):
        least = min(least, future.earliest[k])
    return least


@jit
def take_from_rings(future: Rings) -> int:
    """Of equal times, the class that is first."""
    k = 0
    for other in range(1, future.earliest.size):
        if future.earliest[other] < future.earliest[k]:
            k = other
    head = future.head[k]
    item = future.item[future.first[k] + head]
    head += 1
    if head == future.first[k + 1] - future.first[k]:
        head = 0
    future.head[k] = head
    future.size[k] -= 1
    future.earliest[k] = future.at_s[future.first[k] + head] if future.size[k] > 0 else np.inf
    return item


@jit
def put_in_heap(future: Heap, k: int, item: int, at_s: float) -> None:
    """Let it rise to its place."""
    place = future.size[0]
    future.size[0] = place + 1
    while place > 0:
        parent = (place - 1) // _BRANCHES
        if _comes_first(future, parent, at_s, item):
            break
        future.at_s[place] = future.at_s[parent]
        future.item[place] = future.item[parent]
        place = parent
    future.at_s[place] = at_s
    future.item[place] = item


@jit
def next_of_heap(future: Heap) -> float:
    """The top."""
    return future.at_s[0] if future.size[0] > 0 else np.inf


@jit
def take_from_heap(future: Heap) -> int:
    """Take the top, and let the last one sink from there."""
    item = future.item[0]
    size = future.size[0] - 1
    future.size[0] = size
    at_s, sinking = future.at_s[size], future.item[size]
    place = 0
    while True:
        child = _BRANCHES * place + 1
        if child >= size:
            break
        least = child
        for other in range(child + 1, min(child + _BRANCHES, size)):
            if _comes_first(future, other, future.at_s[least], future.item[least]):
                least = other
        if not _comes_first(future, least, at_s, sinking):
            break
        future.at_s[place] = future.at_s[least]
        future.item[place] = future.item[least]
        place = least
    future.at_s[place] = at_s
    future.item[place] = sinking
    return item


@jit
def heap_is_crowded(future: Heap) -> bool:
    """An event starts at most every server once, and leaves one to come for itself."""
    return 2 * future.size[0] > future.at_s.size


@jit
def _comes_first(future: Heap, place: int, at_s: float, item: int) -> bool:
    earlier = future.at_s[place] < at_s
    return earlier or (future.at_s[place] == at_s and future.item[place] < item)


# ``put(future, k, item, at_s)`` adds an event; of class k, where it is a completion.
put = either(Rings, put_in_rings, put_in_heap)
# ``next_s(future)``: the time of the earliest event; inf where there is none.
next_s = either(Rings, next_of_rings, next_of_heap)
# ``take(future)`` removes the earliest event and says which it is.
take = either(Rings, take_from_rings, take_from_heap)
# ``crowded(future)``: whether there may be no place for the completions of one more event.
crowded = either(Rings, lambda future: False, heap_is_crowded)


def larger(future: Any) -> Any:
    """The same future with twice the places, where places can run out."""
    if isinstance(future, Rings):
        return future
    return Heap(
        np.concatenate([future.at_s, np.zeros_like(future.at_s)]),
        np.concatenate([future.item, np.zeros_like(future.item)]),
        future.size,
    )
