"""What the queueing paper proves about the LP as the rate grows ([Anonymous], Lemmas 4 to 10)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fleets import any_fleets, fleet, loads, ordered_fleets, targets
from hypothesis import given, settings
from scipy.optimize import linprog

from inferway.dispatch import max_rate, routing_tuples, solve, waterfill
from inferway.dispatch.triplets import fill
from inferway.site import Fleet


def number(of: Fleet, target: float, rate: float) -> float:
    """N_LP-LB, the least mean number in service: rate times the least response time."""
    return rate * solve(of, target, rate).response_time_s


def traffic(of: Fleet, target: float, rate: float) -> np.ndarray:
    """A_LP-LB of eq. 13, what each class carries."""
    return rate * solve(of, target, rate).shares


@settings(max_examples=150, deadline=None)
@given(ordered_fleets(), targets, loads, loads)
def test_lemma_4_the_number_in_service_is_convex_and_does_not_fall(
    of: Fleet, where: float, one: float, other: float
) -> None:
    target = where * float(of.accuracy.max())
    greatest = max_rate(of, target)
    assert 0 < greatest <= of.capacity.sum() * (1 + 1e-12)
    low, high = sorted((one * greatest, other * greatest))
    middle = (low + high) / 2
    n_low, n_middle, n_high = (number(of, target, rate) for rate in (low, middle, high))
    assert n_low <= n_middle * (1 + 1e-9)
    assert n_middle <= n_high * (1 + 1e-9)
    assert n_middle <= (n_low + n_high) / 2 * (1 + 1e-9)
    # Continuous up to the greatest rate, and from nothing on.
    end = number(of, target, greatest)
    assert number(of, target, greatest * (1 - 1e-7)) == pytest.approx(end, rel=1e-4)
    assert number(of, target, 1e-9 * greatest) <= 1e-6 * end


def generic(seed: int) -> tuple[Fleet, float]:
    """An ordered fleet of random numbers, of which no two tuples cost the same, and a target."""
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(3, 6))
    rates = np.sort(rng.uniform(0.2, 3, classes))[::-1]
    accuracy = np.sort(rng.uniform(0.3, 1, classes))
    of = fleet(rates.tolist(), accuracy.tolist(), rng.integers(1, 20, classes).tolist())
    return of, float(rng.uniform(accuracy[0], accuracy[-1]))


def parts(of: Fleet, target: float) -> list[tuple[float, float, Any]]:
    """Rates between which one routing tuple is filled, by waterfilling, and the tuple."""
    filling = waterfill(of, target, max_rate(of, target) * (1 - 1e-9))
    edges = np.concatenate([[0.0], np.cumsum(filling.weights)])
    found = zip(pairwise(edges), filling.tuples, strict=True)
    return [(low, high, one) for (low, high), one in found if high - low > 1e-6 * edges[-1]]


@pytest.mark.parametrize("seed", range(25))
def test_lemma_5_the_right_derivative_is_a_routing_tuple(seed: int) -> None:
    of, target = generic(seed)
    total, last = max_rate(of, target), 0.0
    for low, high, one in parts(of, target):
        low = max(low, 1e-9 * total)
        near, far = low + 0.1 * (high - low), low + 0.9 * (high - low)
        slope = (traffic(of, target, far) - traffic(of, target, near)) / (far - near)
        assert slope == pytest.approx(one.routing, abs=1e-5)
        assert (number(of, target, far) - number(of, target, near)) / (far - near) == (
            pytest.approx(one.cost_s, rel=1e-6)
        )  # eq. 14
        # Lemma 9: it is a routing that keeps the target; Lemma 3 is the first of them.
        assert slope.sum() == pytest.approx(1)
        assert slope @ of.accuracy >= target - 1e-6
        assert one.cost_s >= last
        last = one.cost_s
    first = next(one for one in routing_tuples(of, target) if one.proper)
    assert parts(of, target)[0][2].classes == first.classes


@pytest.mark.parametrize("seed", range(25))
def test_lemma_10_no_other_routing_of_these_signs_costs_as_little(seed: int) -> None:
    of, target = generic(seed)
    for _, _, one in parts(of, target):
        signs = [(0, None) if q > 0 else (None, 0) if q < 0 else (0, 0) for q in one.routing]
        keeps: dict[str, Any] = {
            "A_ub": [-of.accuracy, 1 / of.rate],
            "b_ub": [-target, one.cost_s * (1 + 1e-12)],
            "A_eq": np.ones((1, len(signs))),
            "b_eq": [1.0],
            "bounds": signs,
        }
        for direction in np.vstack([np.eye(len(signs)), -np.eye(len(signs))]):
            far = linprog(direction, **keeps)
            assert far.x == pytest.approx(one.routing, abs=1e-5)


@settings(max_examples=200, deadline=None)
@given(any_fleets(max_classes=5), targets, loads)
def test_tuples_that_hold_one_mean_fill_the_lp_on_any_fleet(
    of: Fleet, where: float, load: float
) -> None:
    target = where * float(of.accuracy.max())
    rate = load * max_rate(of, target)
    filled = fill(of, target, rate)
    assert filled.response_time_s == pytest.approx(solve(of, target, rate).response_time_s)
    assert max(len(one.classes) for one, _ in filled.steps) <= 2


@pytest.mark.parametrize("seed", range(40))
def test_triplets_fill_the_lp_with_two_means(seed: int) -> None:
    # [Anonymous], Sec. 8.1: pairs generalized for an accuracy target and an energy budget.
    rng = np.random.default_rng(seed)
    classes = int(rng.integers(3, 6))
    rates, accuracy, energy = rng.uniform([[0.2], [0.3], [1]], [[3], [1], [9]], (3, classes))
    of = fleet(rates.tolist(), accuracy.tolist(), rng.integers(1, 20, classes).tolist())
    of = replace(of, energy=energy)
    target = float(np.quantile(of.accuracy, rng.uniform(0.2, 0.8)))
    budget = float(np.quantile(of.energy, rng.uniform(0.3, 0.9)))
    while True:  # more energy, until some mix keeps both
        try:
            greatest = max_rate(of, target, budget)
            break
        except ValueError:
            budget *= 1.2
    used = set()
    for load in (0.05, 0.5, 0.9, 0.999):
        optimum = solve(of, target, load * greatest, budget)
        filled = fill(of, target, load * greatest, budget)
        assert filled.response_time_s == pytest.approx(optimum.response_time_s, rel=1e-6)
        assert filled.shares @ of.accuracy >= target - 1e-7
        assert filled.shares @ of.energy <= budget + 1e-7
        costs = [one.cost_s for one, _ in filled.steps]
        assert costs == sorted(costs)  # the number in service is convex
        used |= {len(one.classes) for one, _ in filled.steps}
    assert max(used) <= 3


def test_a_triplet_by_hand() -> None:
    # The example of two prices: half of b alone keeps 0.7, and 2.3 J need some of c.
    of = replace(fleet([1.0, 0.5, 0.25], [0.6, 0.8, 1.0], [100] * 3), energy=np.array([1, 4, 3.0]))
    filled = fill(of, 0.7, 1.0, 2.3)
    ((one, weight),) = filled.steps
    assert (one.classes, one.held, weight) == ((0, 1, 2), (0, 1), 1.0)
    assert one.routing == pytest.approx([0.55, 0.4, 0.05])
    assert filled.response_time_s == pytest.approx(1.55)


def test_what_no_tuple_carries_is_said() -> None:
    of, target = generic(1)
    with pytest.raises(ValueError, match="no routing tuple carries the last"):
        fill(of, target, 1.01 * max_rate(of, target))
