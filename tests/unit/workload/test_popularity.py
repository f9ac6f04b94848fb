from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.deployment.workloads import Popularity
from inferway.workload.popularity import greatest_share, mean_share, share_at, zipf


def sliding(shift: int, every: str = "1 h", exponent: float = 1.2) -> Popularity:
    said = {"zipf": exponent, "sliding": {"shift": shift, "every": every}}
    return Popularity.read(said)


def test_the_papers_profile() -> None:
    weights = [(i + 1) ** -1.2 for i in range(20)]
    assert zipf(20, 1.2).tolist() == pytest.approx([w / sum(weights) for w in weights])
    paper = sliding(5)
    for hours in range(9):
        expected = [weights[(i + 5 * hours) % 20] / sum(weights) for i in range(20)]
        for time in (hours * 3600.0, hours * 3600.0 + 3599.0):
            assert share_at(paper, 20, time).tolist() == pytest.approx(expected)


def test_without_a_popularity_all_tasks_are_alike() -> None:
    assert share_at(None, 4, 9.0).tolist() == [0.25] * 4
    assert mean_share(None, 4, 0.0, 9.0).tolist() == [0.25] * 4
    assert greatest_share(None, 4).tolist() == [0.25] * 4


@given(
    st.integers(1, 12),
    st.integers(1, 15),
    st.floats(0, 1e6),
    st.floats(1e-3, 1e6),
    st.floats(0.1, 1e4),
)
def test_the_mean_over_time_is_that_of_many_moments(
    tasks: int, shift: int, start: float, length: float, every: float
) -> None:
    popularity = sliding(shift, f"{every} s")
    found = mean_share(popularity, tasks, start, start + length)
    moments = start + length * (np.arange(4000) + 0.5) / 4000
    plain = np.mean([share_at(popularity, tasks, time) for time in moments], axis=0)
    assert found.sum() == pytest.approx(1)
    # One switch more or less in a moment's length, where there are many; all, where a few.
    assert np.abs(found - plain).max() <= max(2 / 4000 * (2 + length / every), 1e-9)
    assert (found <= greatest_share(popularity, tasks) + 1e-9).all()


@given(st.integers(1, 12), st.integers(1, 15))
def test_the_greatest_share_is_reached(tasks: int, shift: int) -> None:
    popularity = sliding(shift, "1 s")
    every = [share_at(popularity, tasks, time + 0.5) for time in range(tasks)]
    assert greatest_share(popularity, tasks).tolist() == np.max(every, axis=0).tolist()
