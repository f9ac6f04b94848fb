"""Heap and rings give events in order of time, and of number where times are equal."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.site import Fleet
from inferway.twin.kernel.event_list import crowded, heap, larger, next_s, put, rings, take

times = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.5])


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), times, st.integers(0, 99)), max_size=120))
def test_a_heap(steps: list[tuple[bool, float, int]]) -> None:
    future = heap(4)
    plain: list[tuple[float, int]] = []
    for comes, at_s, item in steps:
        if comes:
            if crowded(future):
                future = larger(future)
            put(future, 0, item, at_s)
            plain.append((at_s, item))
        elif plain:
            first = min(plain)
            plain.remove(first)
            assert (next_s(future), take(future)) == first
    assert next_s(future) == (min(plain)[0] if plain else np.inf)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=120))
def test_rings(steps: list[tuple[bool, int]]) -> None:
    """Servers of a class take equally long, so that their completions come in order."""
    fleet = Fleet(("a", "b"), np.array([2.0, 0.5]), np.array([0.5, 0.9]), np.array([4, 2]))
    future = rings(fleet)
    plain: list[tuple[float, int]] = []
    now_s = 0.0
    for starts, server in steps:
        k = int(server >= 4)
        if starts and all(server != other for _, other in plain):
            put(future, k, server, now_s + (0.5, 2.0)[k])
            plain.append((now_s + (0.5, 2.0)[k], server))
        elif plain:
            first = min(plain)
            plain.remove(first)
            assert (next_s(future), take(future)) == first
            now_s = first[0]
    assert next_s(future) == (min(plain)[0] if plain else np.inf)
    assert not crowded(future)
    assert larger(future) is future
