"""Measured service times: quantiles of what was seen, in the profile's place."""

from __future__ import annotations

import numpy as np
import pytest
from fleets import fleet

from inferway.dispatch import Dispatcher
from inferway.dispatch.batching import row_times, run_s_of
from inferway.site.selection import run_time, size_class
from inferway.site.transitions import measure
from inferway.site.view import empty_site

FLEET = fleet([100.0, 10.0], [0.7, 0.9], [2, 1])


def test_sizes() -> None:
    sizes = [size_class(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 65, 128, 129, 10_000)]
    assert sizes == [0, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 7, 7, 7]


def test_a_run_between_two_sizes_takes_a_time_between_theirs() -> None:
    row_s = np.array([[1.0, 0.75, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]])
    times_s = [run_s_of(row_s[0], rows) for rows in (1, 2, 3, 4, 6, 8, 12, 16, 256)]
    assert times_s == [1.0, 1.5, 1.75, 2.0, 3.0, 4.0, 4.0, 4.0, 64.0]
    for rows in range(1, 2000):
        assert run_time(row_s, 0, rows) == run_s_of(row_s[0], rows)


@pytest.mark.parametrize(
    "run_s",
    [
        {1: 0.14, 2: 0.14, 4: 0.14, 8: 0.14},
        dict.fromkeys(range(1, 9), 0.14),
        {1: 0.010, 3: 0.016, 5: 0.022},
        {1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 64: 0.2},
        {1: 0.010, 32: 0.05},
    ],
)
def test_the_times_of_the_sizes_that_a_file_gives_are_met(run_s: dict[int, float]) -> None:
    row_s = row_times(run_s)
    assert [run_s_of(row_s, size) for size in run_s] == pytest.approx(list(run_s.values()))
    assert (row_s > 0).all()
    # Beyond the largest, rows take as long as in the largest, but for what lies between two sizes.
    assert run_s_of(row_s, 256) == pytest.approx(256 * row_s[-1])


def test_a_measured_run_between_two_sizes_counts_by_its_own_prediction() -> None:
    site = empty_site(FLEET, None, 4)
    for _ in range(400):
        measure(site, 0, 1, 0.14)
        measure(site, 0, 4, 0.14)
        measure(site, 0, 5, 0.14)
    assert run_time(site.row_s, 0, 5) == pytest.approx(0.14, rel=0.05)
    assert run_time(site.row_s, 0, 8) == pytest.approx(0.14, rel=0.2)


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.0])
def test_quantiles_of_what_was_measured(spread: float) -> None:
    site = empty_site(FLEET, None, 4)
    times = 0.03 * np.random.default_rng(8).lognormal(0.0, spread, 4_000)
    for time_s in times:
        measure(site, 0, 1, time_s)
    # The steps of a fiftieth leave the quantiles some per cent of noise.
    assert site.row_s[0, 0] == pytest.approx(np.median(times), rel=0.15)
    assert site.slow_s[0, 0] == pytest.approx(np.quantile(times, 0.95), rel=0.25 + spread / 4)
    assert site.measured[0, 0] == len(times)


def test_a_change_is_followed() -> None:
    site = empty_site(FLEET, None, 4)
    for time_s in [0.01] * 1_000 + [0.04] * 200:
        measure(site, 0, 1, time_s)
    assert site.row_s[0, 0] == pytest.approx(0.04, rel=0.1)


def test_the_rate_of_a_class_is_that_of_its_servers() -> None:
    site = empty_site(FLEET, None, 4)
    measure(site, 0, 1, 0.02)
    measure(site, 1, 1, 0.04)
    assert site.rate.tolist() == pytest.approx([1 / 0.03, 10.0])


def test_sizes_are_kept_apart_and_unseen_ones_are_like_the_nearest_smaller() -> None:
    site = empty_site(FLEET, None, 4)
    measure(site, 2, 1, 0.1)
    measure(site, 2, 8, 0.4)
    assert site.row_s[2].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05])


def test_a_queue_admitted_before_a_measurement_is_predicted_right_after_it() -> None:
    dispatcher = Dispatcher(fleet([10.0], [0.9]), "fastest-only", target=None, measure=True)
    for _ in range(3):
        dispatcher.arrive(0.0, 0)
    dispatcher.finish(0, 1.0, 1.0)  # ten times longer than the profile says
    dispatcher.finish(0, 2.0, 1.0)
    dispatcher.arrive(2.0, 0)
    assert dispatcher.predicted_wait_s == pytest.approx(1.0)


def test_predictions_follow_measurements_only_where_asked() -> None:
    for measures, expected_s in ((True, 0.05), (False, 0.01)):
        dispatcher = Dispatcher(FLEET, "fastest-only", target=None, measure=measures)
        for step in range(30):
            server = dispatcher.arrive(float(step), 0)
            dispatcher.finish(server, step + 0.05, 0.05)
        dispatcher.arrive(100.0, 0)
        assert dispatcher.predicted_service_s == pytest.approx(expected_s, rel=0.05)
