"""A binary heap of numbered things, least key first, whose keys may change."""

from __future__ import annotations

from inferway.placement.contract import Float, Index
from inferway.site.compiled import jit


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
