from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from inferway.dispatch.bounds import max_rate
from inferway.machine import cores
from inferway.site.fleet import Fleet
from inferway.studies.live.policies import TwoLevels, choose
from inferway.studies.live.servers import DemoError, as_measured, feasible_rate
from inferway.workload.arrivals import mean_rate, peak_rate


def _fleet(**changes: object) -> Fleet:
    columns: dict[str, object] = {
        "variants": ("quick", "middle", "slow"),
        "rate": np.array([2000.0, 500.0, 100.0]),
        "accuracy": np.array([0.6, 0.9, 0.96]),
        "count": np.array([1, 1, 1]),
    }
    return Fleet(**(columns | changes))


def test_with_a_core_for_each_instance_the_rate_is_the_papers():
    fleet = _fleet()
    for target in (0.7, 0.92, 0.95):
        assert feasible_rate(fleet, target, 3) == pytest.approx(max_rate(fleet, target))


def test_two_classes_by_hand():
    """Slow at 100/s pays for the quick one: 100 (a - t) / (t - b) more; cores cap the sum."""
    fleet = _fleet(
        variants=("quick", "slow"),
        rate=np.array([200.0, 100.0]),
        accuracy=np.array([0.8, 0.9]),
        count=np.array([1, 1]),
    )
    assert feasible_rate(fleet, 0.85, 2) == pytest.approx(200)
    # x of each: x/200 + x/100 = 1.
    assert feasible_rate(fleet, 0.85, 1) == pytest.approx(2 * 200 / 3)


def test_shared_cores_never_carry_more():
    fleet = _fleet(count=np.array([2, 2, 2]))
    rates = [feasible_rate(fleet, 0.92, c) for c in (1, 2, 3, 6)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] == pytest.approx(max_rate(fleet, 0.92))


def test_an_impossible_target_is_refused():
    with pytest.raises((DemoError, ValueError), match="target"):
        feasible_rate(_fleet(), 0.99, 2)


def test_measured_times_replace_the_rates():
    fleet = as_measured(_fleet(), {"quick": 0.001, "middle": 0.004, "slow": 0.02})
    assert fleet.rate.tolist() == pytest.approx([1000, 250, 50])
    assert cores() >= 1


@pytest.mark.parametrize("count", [1, 2])
def test_levels_are_feasible_and_beyond_the_most_accurate(count):
    fleet = _fleet(count=np.array([count] * 3))
    load = choose(fleet, 0.92, 2)
    assert load.telling
    assert load.most_accurate_per_s < load.mean_per_s
    assert load.quiet_per_s < load.burst_per_s < load.feasible_per_s
    process = load.process()
    assert mean_rate(process) == pytest.approx(load.mean_per_s)
    assert peak_rate(process) == pytest.approx(load.burst_per_s)


def test_a_target_at_the_top_leaves_nothing_to_show():
    load = choose(_fleet(), 0.96, 2)
    assert load.feasible_per_s == pytest.approx(100)
    assert not load.telling


def test_arrivals_have_the_mean_rate_and_are_seeded():
    load = TwoLevels(400.0, 100.0, 100.0, 300.0)
    times = load.arrivals(20.0, seed=3)
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0
    assert times[-1] < 20
    assert len(times) / 20 == pytest.approx(load.mean_per_s, rel=0.02)
    np.testing.assert_array_equal(times, load.arrivals(20.0, seed=3))
    assert not np.array_equal(times, load.arrivals(20.0, seed=4))


def test_arrivals_come_in_bursts():
    """A Poisson stream's counts have variance over mean of 1; two levels have far more."""
    times = TwoLevels(400.0, 100.0, 100.0, 300.0).arrivals(60.0, seed=1)
    counts, _ = np.histogram(times, bins=120, range=(0, 60))
    assert counts.var() / counts.mean() > 4


def test_the_program_agrees_with_duality():
    """The dual of the same program, solved apart, gives the same rate."""
    fleet, target, cores_ = _fleet(count=np.array([2, 2, 2])), 0.93, 2.0
    size = len(fleet.rate)
    rows = np.column_stack([target - fleet.accuracy, 1 / fleet.rate, np.eye(size)])
    dual = linprog(
        np.concatenate([[0.0, cores_], fleet.capacity]),
        A_ub=-rows,
        b_ub=-np.ones(size),
        method="highs",
    )
    assert feasible_rate(fleet, target, cores_) == pytest.approx(dual.fun, rel=1e-9)
