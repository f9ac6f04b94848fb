"""Predicted times of a range of servers, all moved by the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.dispatch import Dispatcher
from inferway.dispatch.recording import Recording
from inferway.dispatch.replay import replay
from inferway.site import Fleet, Site, predicted_service, predicted_wait
from inferway.site.transitions import admit, begin_batch, measure, release, shift_services
from inferway.site.view import SIZES, empty_site

FLEET = Fleet(
    ("own", "near", "far"),
    np.array([100.0, 50.0, 20.0]),
    np.array([0.7, 0.8, 0.9]),
    np.array([1, 3, 2]),
)
LEAST_S = 1e-3
times = st.floats(1e-4, 10.0)
shifts = st.floats(-2.0, 2.0)


def site_of(row_s: list[float]) -> Site:
    """A site whose servers have these times at every size, and twice as much for slow ones."""
    site = empty_site(FLEET, None, 4)
    site.row_s[:] = np.array(row_s)[:, None]
    site.slow_s[:] = 2.0 * site.row_s
    return site


def test_all_of_a_range_move_and_no_others() -> None:
    site = site_of([0.01, 0.02, 0.03, 0.04, 0.05, 0.06])
    shift_services(site, 1, 4, 0.3, LEAST_S)
    assert site.row_s[:, 0].tolist() == pytest.approx([0.01, 0.32, 0.33, 0.34, 0.05, 0.06])
    assert site.slow_s[:, 0].tolist() == pytest.approx([0.02, 0.34, 0.36, 0.38, 0.10, 0.12])
    assert site.rate.tolist() == pytest.approx([100.0, 3 / 0.99, 20.0])
    assert not site.measured.any()


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 64])
def test_a_way_is_as_long_for_many_rows_as_for_one(rows: int) -> None:
    site = site_of([0.01] * 6)
    before_s = predicted_service(site, 1, rows)
    shift_services(site, 1, 4, 0.3, LEAST_S)
    assert predicted_service(site, 1, rows) == pytest.approx(before_s + 0.3)


@settings(max_examples=200, deadline=None)
@given(st.lists(times, min_size=6, max_size=6), st.lists(shifts, max_size=5))
def test_no_time_falls_below_the_least_or_where_it_was_before(
    row_s: list[float], moves: list[float]
) -> None:
    site = site_of(row_s)
    for by_s in moves:
        before = site.row_s.copy(), site.slow_s.copy()
        shift_services(site, 0, 6, by_s, LEAST_S)
        for times_s, was_s in zip((site.row_s, site.slow_s), before, strict=True):
            whole_s, whole_was_s = (one * 2.0 ** np.arange(SIZES) for one in (times_s, was_s))
            assert (whole_s >= np.minimum(whole_was_s, LEAST_S)).all()
            free = whole_was_s + by_s >= LEAST_S
            np.testing.assert_allclose(whole_s[free], (whole_was_s + by_s)[free], rtol=1e-9)
    assert (site.row_s > 0.0).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(LEAST_S, 10.0), min_size=6, max_size=6), st.floats(0.0, 2.0))
def test_there_and_back_is_as_before(row_s: list[float], by_s: float) -> None:
    site = site_of(row_s)
    rate = 1.0 / np.array([np.mean(row_s[:1]), np.mean(row_s[1:4]), np.mean(row_s[4:])])
    shift_services(site, 0, 6, by_s, LEAST_S)
    shift_services(site, 0, 6, -by_s, LEAST_S)
    assert site.row_s[:, 0] == pytest.approx(row_s)
    assert site.rate == pytest.approx(rate)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), shifts, st.floats(0.0, 0.01), st.sampled_from([1, 2, 4]))
def test_queues_are_predicted_anew(queue: int, by_s: float, at_s: float, rows: int) -> None:
    """As if all had been admitted under the new times, but for what has passed since."""
    moved, anew = site_of([0.02] * 6), site_of([0.02] * 6)
    for _ in range(queue):
        admit(moved, 1, rows)
    moved.clock_s[0] = at_s
    shift_services(moved, 1, 2, by_s, LEAST_S)
    shift_services(anew, 1, 2, by_s, LEAST_S)
    for _ in range(queue):
        admit(anew, 1, rows)
    assert moved.free_s[1] == pytest.approx(anew.free_s[1])
    assert moved.ends_s[1] == pytest.approx(anew.ends_s[1])
    for step in range(queue):
        moved.clock_s[0] = at_s + 1.0 + step
        release(moved, 1)
        left = queue - step - 1
        expected_s = left * predicted_service(moved, 1, rows)
        assert predicted_wait(moved, 1) == pytest.approx(expected_s)


def test_a_batch_moves_once_and_one_that_waits_too() -> None:
    for taken, started in ((2, True), (0, False)):
        site = site_of([0.02] * 6)
        for _ in range(3):
            admit(site, 1, 1)
        begin_batch(site, 1, taken)
        before_s = predicted_wait(site, 1)
        shift_services(site, 1, 2, 0.3, LEAST_S)
        assert np.isnan(site.started_s[1]) == (not started)
        # A batch of two and one behind it; or three, one after the other.
        assert predicted_wait(site, 1) == pytest.approx(before_s + 0.3 * (2 if started else 3))


def test_what_is_measured_later_goes_on_from_there() -> None:
    site = site_of([0.02] * 6)
    chance = np.random.default_rng(3)
    for time_s in 0.02 + 0.002 * chance.standard_normal(500):
        measure(site, 1, 1, time_s)
    shift_services(site, 1, 2, 0.3, LEAST_S)
    seen = []
    for time_s in 0.32 + 0.002 * chance.standard_normal(500):
        measure(site, 1, 1, time_s)
        seen.append(site.row_s[1, 0])
    assert max(seen) < 0.33
    assert min(seen) > 0.31
    assert site.measured[1, 0] == 1000


def test_a_shift_is_recorded_and_replayed(tmp_path: Path) -> None:
    dispatcher = Dispatcher(FLEET, "least-cost", target=None, measure=True, alpha=20)
    recording = Recording(dispatcher, tmp_path / "task")
    taken = [recording.arrive(0.0, 1)]
    recording.shift(4, 6, 0.3, LEAST_S, 0.1)
    taken += [recording.arrive(0.1 + 0.01 * step, step) for step in range(4)]
    recording.shift(4, 6, -0.3, LEAST_S, 0.2)
    taken.append(recording.arrive(0.2, 7))
    recording.close()
    assert taken[0] >= 4
    assert all(server < 4 for server in taken[1:5])
    assert taken[5] >= 4
    found = replay(tmp_path / "task")
    assert (found.requests, found.differences) == (6, ())
