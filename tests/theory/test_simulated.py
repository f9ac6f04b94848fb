"""Policies in a small simulation: queues as in theory, targets held, latency near the bound."""

from __future__ import annotations

import naive
import numpy as np
import pytest
from fleets import fleet, paper_fleet

from inferway.dispatch import Dispatcher, max_rate, solve
from inferway.site import Fleet


def test_one_server_is_the_m_m_1_queue() -> None:
    of = fleet([1.0], [0.9])
    run = naive.simulate(
        Dispatcher(of, "fastest-only", target=None), 0.5, 60_000, 1, naive.exponential
    )
    assert run.response_s[5_000:].mean() == pytest.approx(1 / (1 - 0.5), rel=0.05)


def test_one_server_is_the_m_d_1_queue() -> None:
    of = fleet([1.0], [0.9])
    run = naive.simulate(
        Dispatcher(of, "jiq-fast", target=None), 0.5, 60_000, 1, naive.deterministic
    )
    assert run.response_s[5_000:].mean() == pytest.approx(1 + 0.5 / (2 * (1 - 0.5)), rel=0.05)


@pytest.mark.parametrize(
    ("name", "within"),
    [("r-jiq", 1.6), ("r-jsq", 1.5), ("r-jsq-d", 1.7), ("tad-op", 1.15), ("priced", 1.05)],
)
def test_targets_are_held_near_the_bound(name: str, within: float) -> None:
    of, target = paper_fleet(), 0.76
    rate = 0.5 * max_rate(of, target)
    dispatcher = Dispatcher(of, name, target=target, rate_per_s=rate)
    run = naive.simulate(dispatcher, rate, 30_000, 7, naive.exponential)
    least = solve(of, target, rate).response_time_s
    assert run.rejected == 0
    # Random routing meets the target in the mean: four standard errors of its running mean.
    slack = 4 * 0.1 / np.sqrt(30_000) if name.startswith("r-") else 0.001
    assert run.accuracy >= target - slack
    assert 0.97 * least <= run.response_s[3_000:].mean() <= within * least


def test_priced_holds_the_target_on_a_small_fleet_where_idle_first_cannot() -> None:
    # One server of each class: the accurate one is rarely idle when it is wanted.
    of, target = fleet([5000, 500, 80], [0.6, 0.86, 0.95]), 0.9
    rate = 0.7 * max_rate(of, target)
    accuracy = {}
    for name in ("tad-op", "priced"):
        dispatcher = Dispatcher(of, name, target=target, rate_per_s=rate)
        accuracy[name] = naive.simulate(dispatcher, rate, 20_000, 5, naive.deterministic).accuracy
    assert accuracy["priced"] >= target - 0.001
    assert accuracy["tad-op"] < target - 0.01


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_priced_has_no_scale(unit: float) -> None:
    # The same fleet in other units of time makes the same decisions.
    of = fleet([2 / unit, 1 / unit, 0.9 / unit, 0.1 / unit], [0.7, 0.75, 0.8, 1.0], [4] * 4)
    rate = 0.7 * max_rate(of, 0.76)
    dispatcher = Dispatcher(of, "priced", target=0.76, rate_per_s=rate)
    run = naive.simulate(dispatcher, rate, 3_000, 2, naive.deterministic)
    reference = fleet([2, 1, 0.9, 0.1], [0.7, 0.75, 0.8, 1.0], [4] * 4)
    same = Dispatcher(reference, "priced", target=0.76, rate_per_s=rate * unit)
    expected = naive.simulate(same, rate * unit, 3_000, 2, naive.deterministic)
    assert run.shares == pytest.approx(expected.shares, abs=0.01)
    assert run.response_s.mean() / unit == pytest.approx(expected.response_s.mean(), rel=0.02)


@pytest.mark.parametrize("budget", [2.2, 1.8])
def test_priced_keeps_accuracy_and_energy_near_the_bound(budget: float) -> None:
    of, target = paper_fleet(), 0.76
    of = Fleet(of.variants, of.rate, of.accuracy, of.count, energy=np.array([1.0, 1.2, 4.0, 3.0]))
    rate = 0.5 * max_rate(of, target, budget)
    dispatcher = Dispatcher(of, "priced", target=target, rate_per_s=rate, energy_budget=budget)
    run = naive.simulate(dispatcher, rate, 20_000, 7, naive.exponential)
    least = solve(of, target, rate, budget).response_time_s
    assert run.accuracy >= target - 0.001
    assert run.shares @ of.energy <= budget * 1.002
    assert 0.97 * least <= run.response_s[2_000:].mean() <= 1.05 * least
    # Without the budget the same load would take more.
    free = Dispatcher(of, "priced", target=target, rate_per_s=rate)
    assert (
        naive.simulate(free, rate, 20_000, 7, naive.exponential).shares @ of.energy > budget + 0.2
    )
