"""The bound against brute force, duality, closed forms and the paper's own examples."""

from __future__ import annotations

import naive
import numpy as np
import pytest
from fleets import any_fleets, fleet, loads, ordered_fleets, paper_fleet, targets
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferway.dispatch import bound, max_rate, relaxed, routing_tuples, solve, waterfill
from inferway.site import Fleet


def reachable(where: float, of: Fleet) -> float:
    """A target between nothing and the best accuracy."""
    return where * float(of.accuracy.max())


def test_the_papers_fleet() -> None:
    fleet_ = paper_fleet()
    found = bound(fleet_, target=0.76, rate_per_s=0.5 * max_rate(fleet_, 0.76))
    assert found.max_rate_normalized == pytest.approx(0.7083333333, abs=1e-9)
    assert found.least_response_time_s == pytest.approx(0.8666666667, abs=1e-9)
    assert found.shares == pytest.approx({"v0": 0.4, "v1": 0.0, "v2": 0.6, "v3": 0.0}, abs=1e-9)


@settings(max_examples=1000, deadline=None)
@given(ordered_fleets(), targets, loads)
def test_waterfilling_is_the_lp_on_ordered_fleets(of: Fleet, where: float, load: float) -> None:
    target = reachable(where, of)
    rate = load * max_rate(of, target)
    assert waterfill(of, target, rate).response_time_s == pytest.approx(
        solve(of, target, rate).response_time_s, rel=1e-9, abs=1e-9
    )


@settings(max_examples=150, deadline=None)
@given(any_fleets(max_classes=4), targets, loads)
def test_the_lp_is_the_best_vertex(of: Fleet, where: float, load: float) -> None:
    target = reachable(where, of)
    rate = load * max_rate(of, target)
    assert solve(of, target, rate).response_time_s == pytest.approx(
        naive.least_response_time(of, target, rate), rel=1e-7
    )


@settings(max_examples=300, deadline=None)
@given(any_fleets(), targets, loads)
def test_duality(of: Fleet, where: float, load: float) -> None:
    target = reachable(where, of)
    optimum = solve(of, target, load * max_rate(of, target))
    scale = float((1 / of.rate).max())
    # Primal feasible, ...
    assert optimum.shares.sum() == pytest.approx(1)
    assert (optimum.shares <= optimum.room * (1 + 1e-9)).all()
    assert optimum.shares @ of.accuracy >= target - 1e-9
    # dual feasible, ...
    assert optimum.price_s >= 0
    assert (optimum.capacity_price <= 1e-9 * scale).all()
    reduced = (
        1 / of.rate
        - optimum.level_s
        - optimum.price_s * (of.accuracy - target)
        - optimum.capacity_price
    )
    assert (reduced >= -1e-7 * scale).all()
    # and the two are equal.
    assert optimum.level_s + optimum.room @ optimum.capacity_price == pytest.approx(
        optimum.response_time_s, rel=1e-7
    )


@settings(max_examples=300, deadline=None)
@given(any_fleets(), targets)
def test_the_greatest_rate_is_where_the_lp_ends(of: Fleet, where: float) -> None:
    target = reachable(where, of)
    greatest = max_rate(of, target)
    assert np.isfinite(solve(of, target, greatest).response_time_s)
    if len(of.rate) <= 3:
        assert naive.least_response_time(of, target, greatest * 1.001) == np.inf


@settings(max_examples=300, deadline=None)
@given(any_fleets(), targets)
@example(fleet([1, 0.5, 0.25], [0.4, 0.5, 1.0]), 0.45)
def test_without_capacities_the_closed_form_is_the_lp(of: Fleet, where: float) -> None:
    target = reachable(where, of)
    nearly_nothing = 1e-9 * max_rate(of, target)
    assert relaxed(of, target).response_time_s == pytest.approx(
        solve(of, target, nearly_nothing).response_time_s, rel=1e-9
    )


@given(any_fleets(), targets)
def test_tuples_sum_to_one_and_meet_the_target(of: Fleet, where: float) -> None:
    target = reachable(where, of)
    costs = [found.cost_s for found in routing_tuples(of, target)]
    assert costs == sorted(costs)
    for found in routing_tuples(of, target):
        assert found.routing.sum() == pytest.approx(1, abs=1e-6)
        assert found.routing @ of.accuracy >= target - 1e-6
        assert found.cost_s == pytest.approx(found.routing @ (1 / of.rate))


def test_example_2_of_the_paper() -> None:
    best = relaxed(fleet([1, 0.5, 0.25], [0.4, 0.5, 1.0]), 0.45)
    assert best.response_time_s == pytest.approx(1.25)
    assert best.shares == pytest.approx([11 / 12, 0, 1 / 12])


def test_a_shuffle_pair_takes_back_what_an_earlier_pair_did() -> None:
    # Classes as in Example 3 of the paper: the cheap pair (0, 2) uses up class 2, and only moving
    # its traffic from class 0 to class 1 makes room for more. The paper says class 0 ends empty.
    of = fleet([1, 0.5, 0.25], [0.4, 0.5, 1.0], [25, 950, 25])
    greatest = max_rate(of, 0.52)
    filling = waterfill(of, 0.52, 0.999 * greatest)
    assert any(
        weight > 0 and not found.proper
        for weight, found in zip(filling.weights, filling.tuples, strict=True)
    )
    assert filling.response_time_s == pytest.approx(
        solve(of, 0.52, 0.999 * greatest).response_time_s, rel=1e-9
    )


def test_with_a_dominated_class_the_bound_is_the_lp_where_waterfilling_is_wrong() -> None:
    generator = np.random.default_rng(1)
    wrong = 0
    for _ in range(300):
        classes = int(generator.integers(3, 6))
        of = fleet(
            list(generator.uniform(0.1, 5, classes)),
            list(generator.uniform(0.3, 1, classes)),
            list(generator.integers(1, 9, classes)),
        )
        target = float(generator.uniform(0.3, of.accuracy.max()))
        rate = float(generator.uniform(0.1, 0.99)) * max_rate(of, target)
        exact = bound(of, target=target, rate_per_s=rate).least_response_time_s
        try:
            filled = waterfill(of, target, rate).response_time_s
        except ValueError:
            filled = np.inf
        assert exact is not None
        assert exact <= filled * (1 + 1e-9)
        wrong += filled > exact * (1 + 1e-6)
        assert not (of.ordered and filled > exact * (1 + 1e-6))
    assert wrong > 0


def test_beyond_the_greatest_rate_there_is_no_bound() -> None:
    of = paper_fleet()
    found = bound(of, target=0.76, rate_per_s=1.01 * max_rate(of, 0.76))
    assert found.least_response_time_s is None
    assert found.feasible is False
    assert found.shares is None


def test_no_rate_gives_only_the_greatest() -> None:
    found = bound(paper_fleet(), target=None, rate_per_s=None)
    assert found.max_rate_per_s == pytest.approx(16 * 4.0)
    assert found.feasible is None


def test_a_target_out_of_reach_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target 0\.9 is above the best variant's accuracy 0\.8"):
        max_rate(fleet([1, 2], [0.8, 0.7]), 0.9)


@settings(max_examples=300, deadline=None)
@given(any_fleets(), targets, st.booleans())
def test_the_low_load_price_is_a_dual(of: Fleet, where: float, exact: bool) -> None:
    k = int(where * (len(of.rate) - 1))
    target = float(of.accuracy[k]) if exact else reachable(where, of)
    best = relaxed(of, target)
    scale = float((1 / of.rate).max())
    reduced = 1 / of.rate - best.level_s - best.price_s * (of.accuracy - target)
    assert best.price_s >= 0
    assert (reduced >= -1e-9 * scale).all()


def with_energy(of: Fleet, seed: int) -> Fleet:
    energy = np.random.default_rng(seed).uniform(0.1, 10, len(of.rate))
    return Fleet(of.variants, of.rate, of.accuracy, of.count, energy=energy)


budgets = st.floats(0.02, 1.5)
"""Where the budget stands between the least energy of a mix at the target and the greatest."""


def budget_at(where: float, of: Fleet, target: float) -> float:
    """A budget that some mix keeps together with the target, by brute force over pairs."""
    least = np.inf
    for i, a in enumerate(of.accuracy):
        for j, b in enumerate(of.accuracy):
            if a >= target:
                least = min(least, of.energy[i])
            elif b >= target:
                part = (target - a) / (b - a)
                least = min(least, of.energy[i] + part * (of.energy[j] - of.energy[i]))
    return float(least + where * (of.energy.max() - least) + 1e-3 * least)


@settings(max_examples=300, deadline=None)
@given(any_fleets(), targets, budgets, loads, st.integers(0, 9))
def test_duality_with_an_energy_budget(
    of: Fleet, where: float, spare: float, load: float, seed: int
) -> None:
    of, target = with_energy(of, seed), reachable(where, of)
    budget = budget_at(spare, of, target)
    optimum = solve(of, target, load * max_rate(of, target, budget), budget)
    scale = float((1 / of.rate).max())
    assert optimum.shares.sum() == pytest.approx(1)
    assert (optimum.shares <= optimum.room * (1 + 1e-9)).all()
    assert optimum.shares @ of.accuracy >= target - 1e-9
    assert optimum.shares @ of.energy <= budget * (1 + 1e-8)
    assert optimum.price_s >= 0
    assert optimum.energy_price_s >= 0
    assert (optimum.capacity_price <= 1e-9 * scale).all()
    reduced = (
        1 / of.rate
        - optimum.level_s
        - optimum.price_s * (of.accuracy - target)
        + optimum.energy_price_s * (of.energy - budget)
        - optimum.capacity_price
    )
    terms = 1 + optimum.energy_price_s * budget / scale + optimum.price_s / scale
    assert (reduced >= -1e-7 * scale * terms).all()
    assert optimum.level_s + optimum.room @ optimum.capacity_price == pytest.approx(
        optimum.response_time_s, rel=1e-6
    )


@settings(max_examples=200, deadline=None)
@given(any_fleets(), targets, budgets, st.integers(0, 9))
def test_the_greatest_rate_within_an_energy_budget(
    of: Fleet, where: float, spare: float, seed: int
) -> None:
    of, target = with_energy(of, seed), reachable(where, of)
    budget = budget_at(spare, of, target)
    greatest = max_rate(of, target, budget)
    assert np.isfinite(solve(of, target, greatest, budget).response_time_s)
    with pytest.raises(ValueError, match="not between 0 and the greatest"):
        solve(of, target, greatest * 1.001, budget)
    # Where energy is plenty, the knapsack and the LP are the same.
    assert greatest <= max_rate(of, target) * (1 + 1e-9)
    assert max_rate(of, target, 1e3 * of.energy.max()) == pytest.approx(max_rate(of, target))


def test_two_prices_by_hand() -> None:
    # Slower is more accurate and takes more: the target asks for half of b, the budget for a tenth
    # of c at most, which then stands in for b where it is cheaper in accuracy.
    of = Fleet(
        ("a", "b", "c"),
        np.array([1.0, 0.5, 0.25]),
        np.array([0.6, 0.8, 1.0]),
        np.array([100] * 3),
        energy=np.array([1.0, 4.0, 3.0]),
    )
    # Without a budget b alone fills up to 0.7: time 1 + 0.5, energy 2.5. Within 2.3 J some of it
    # goes by c: b + 2c = 1/2 and 3b + 2c = 1.3, so b = 0.4, c = 0.05.
    free, held = solve(of, 0.7, 1.0), solve(of, 0.7, 1.0, 2.3)
    assert free.shares == pytest.approx([0.5, 0.5, 0.0])
    assert held.shares == pytest.approx([0.55, 0.4, 0.05])
    assert held.response_time_s == pytest.approx(0.55 + 0.8 + 0.2)
    # A little more budget moves b by 1/2 and c by -1/4 per J, a by -1/4.
    assert held.energy_price_s == pytest.approx(-(-0.25 * 1 + 0.5 * 2 - 0.25 * 4))
    assert relaxed(of, 0.7, 2.3).response_time_s == pytest.approx(held.response_time_s)
    found = bound(of, target=0.7, rate_per_s=1.0, energy_budget=2.3).to_json()
    assert found["energy_budget"] == 2.3
    assert found["energy_price_s"] == pytest.approx(0.25)


def test_a_budget_that_no_mix_keeps_is_refused() -> None:
    of = with_energy(paper_fleet(), 1)
    for call in (max_rate, relaxed):
        with pytest.raises(ValueError, match=r"no mix of the variants keeps .* of 0\.76 within"):
            call(of, 0.76, 0.5 * float(of.energy.min()))
