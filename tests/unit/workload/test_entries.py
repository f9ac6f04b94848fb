from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.network.layout import assign


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_each_task_enters_at_different_places(tasks: int, size: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.permutations(range(size)))) * 7
    per_task = data.draw(st.integers(1, size))
    found = assign(tasks, places, per_task, seed=data.draw(st.integers(0, 9)))
    assert found.shape == (tasks, per_task)
    assert (np.diff(found, axis=1) > 0).all()
    assert set(found.ravel().tolist()) <= set(places.tolist())


def test_the_draw_follows_from_the_seed() -> None:
    places = np.arange(24)
    one = assign(20, places, 2, seed=1)
    assert one.tolist() == assign(20, places, 2, seed=1).tolist()
    assert one.tolist() != assign(20, places, 2, seed=2).tolist()
    assert assign(30, places, 2, seed=1)[:20].tolist() == one.tolist()


def test_every_place_is_as_likely() -> None:
    drawn = np.bincount(assign(6000, np.arange(6), 2, seed=3).ravel())
    # 2,000 each, with a standard deviation below 37.
    assert np.abs(drawn - 2000).max() < 5 * 37


def test_without_a_number_all_places() -> None:
    assert assign(2, np.array([5, 3])).tolist() == [[3, 5], [3, 5]]


def test_refused() -> None:
    with pytest.raises(ValueError, match="no node where requests could enter"):
        assign(2, np.array([], np.int64), 1)
    with pytest.raises(ValueError, match="enter at 3 nodes, but there are 2 to draw from"):
        assign(2, np.arange(2), 3)
