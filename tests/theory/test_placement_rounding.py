"""DepRound and coupled rounding: expectations, budgets, and what moves."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.placement import dep_round, gain, minimal, potential
from inferway.placement.infida import couple_all
from inferway.placement.layout import layout_of

seeds = st.integers(0, 10**6)


def fractions(seed: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.random(n)
    y[rng.random(n) < 0.2] = 0.0
    y[rng.random(n) < 0.2] = 1.0
    return y, rng.uniform(1, 9, n)


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(1, 12))
def test_dep_round_keeps_expectations(seed: int, n: int) -> None:
    y, size = fractions(seed, n)
    draws = np.array([dep_round(y, size, 1_000_003 * seed + k) for k in range(3000)])
    # Six standard errors of the worst proportion.
    assert draws.mean(axis=0) == pytest.approx(y, abs=6 * 0.5 / np.sqrt(3000))


@settings(max_examples=100, deadline=None)
@given(seeds, st.integers(1, 30), seeds)
def test_budgets_hold(seed: int, n: int, draw: int) -> None:
    y, size = fractions(seed, n)
    budget = float(size @ y)
    x = dep_round(y, size, draw)
    assert set(x) <= {0, 1}
    assert np.all(x[y == 1] == 1)
    assert np.all(x[y == 0] == 0)
    assert abs(size @ x - budget) < size.max() + 1e-6  # all but the residual model keep the sum
    strict = dep_round(y, size, draw, budget=budget)
    assert size @ strict <= budget + 1e-6
    value = np.random.default_rng(seed).random(n)
    filled = dep_round(y, size, draw, budget=budget, value=value)
    assert np.all(filled >= strict)
    assert size @ filled <= budget + 1e-6
    left = budget - size @ filled
    assert not np.any((filled == 0) & (size < left - 1e-6))  # nothing of value still fits


def test_a_strict_budget_is_filled_by_value() -> None:
    y, size = np.array([0.5, 0.0, 0.0]), np.array([4.0, 2.0, 2.0])
    assert dep_round(y, size, 7, budget=2.0, value=[0.0, 1.0, 2.0]).tolist() == [0, 0, 1]


@settings(max_examples=100, deadline=None)
@given(seeds, seeds)
def test_dep_round_is_negatively_correlated(seed: int, draw: int) -> None:
    # Eq. 149 on two models: their total size stays, so they are never both in or both out unless
    # the sum of their fractions demands it.
    rng = np.random.default_rng(seed)
    a = rng.uniform(0.01, 0.99)
    assert dep_round([a, 1 - a], [1.0, 1.0], draw).sum() == 1


@pytest.mark.parametrize("seed", range(6))
def test_rounding_keeps_its_share_of_the_fractional_gain(seed: int) -> None:
    # E[G(x)] >= (1 - 1/e) G(y), Lemmas F.9 to F.11.
    network = naive.random_network(seed, types=5, nodes=4)
    requests = naive.batch(network, seed)
    capacity = potential(network, requests, np.zeros(len(network.options.pair)))
    rng = np.random.default_rng(seed)
    y = np.maximum(rng.random(len(network.pairs.node)), minimal(network))
    pairs = network.pairs
    gains = []
    for draw in range(400):
        x = np.concatenate(
            [
                dep_round(y[a:b], pairs.size[a:b], 7919 * draw + v)
                for v, (a, b) in enumerate(zip(pairs.first[:-1], pairs.first[1:], strict=True))
            ]
        )
        gains.append(gain(network, requests, capacity, np.maximum(x, minimal(network))))
    error = np.std(gains) / np.sqrt(len(gains))
    whole = gain(network, requests, capacity, y)
    assert np.mean(gains) + 4 * error >= (1 - 1 / np.e) * whole


def coupled(network, y: np.ndarray, seed: int) -> np.ndarray:
    x = np.zeros(len(y), np.uint8)
    couple_all(layout_of(network), 0, y, seed, x)
    return x


def projected(network, seed: int) -> np.ndarray:
    """A random fractional allocation that spends every budget."""
    from inferway.placement import project

    layout = layout_of(network)
    rng = np.random.default_rng(seed)
    y = np.ones(len(network.pairs.node))
    for v in range(len(network.nodes)):
        own = np.arange(layout.first[v], layout.first[v + 1])[
            layout.free[layout.first[v] : layout.first[v + 1]]
        ]
        if len(own) and layout.budget[v] > 0:
            y[own] = project(
                np.exp(rng.normal(0, 1.5, len(own))), layout.size[own], layout.budget[v]
            )
    return y


@settings(max_examples=60, deadline=None)
@given(seeds, seeds)
def test_coupled_rounding_keeps_budgets_and_pinned_models(seed: int, draw: int) -> None:
    network = naive.random_network(
        seed % 1000, nodes=5, tasks=3, types=6, copies=2, pins=seed % 2 == 0
    )
    x = coupled(network, projected(network, seed), draw)
    used = np.bincount(network.pairs.node, x * network.pairs.size, len(network.nodes))
    assert np.all(used <= network.budget + 1e-9)
    assert np.all(x[network.pairs.pinned > 0] == 1)


def test_coupled_rounding_moves_nothing_while_the_state_stays() -> None:
    network = naive.topology_i()
    y = projected(network, 1)
    first = coupled(network, y, 3)
    assert np.array_equal(first, coupled(network, y, 3))
    assert not np.array_equal(first, coupled(network, y, 4))
    whole = (y > 0.5).astype(float)
    fits = np.bincount(network.pairs.node, whole * network.pairs.size) <= network.budget
    assert fits.any()
    at = fits[network.pairs.node]
    assert np.array_equal(coupled(network, whole, 3)[at], whole[at])


def test_coupled_rounding_moves_about_as_much_as_the_state() -> None:
    network = naive.topology_i()
    layout = layout_of(network)
    y = projected(network, 1)
    rng = np.random.default_rng(0)
    other = y.copy()
    free = layout.free
    other[free] = np.clip(y[free] * np.exp(rng.normal(0, 0.01, free.sum())), 0, 1)
    change = float(np.abs(other - y) @ network.pairs.size)
    moved = [
        float((coupled(network, y, s) != coupled(network, other, s)) @ network.pairs.size)
        for s in range(20)
    ]
    fresh = [
        float((coupled(network, y, s) != coupled(network, y, s + 100)) @ network.pairs.size)
        for s in range(20)
    ]
    assert np.mean(moved) < 20 * change
    assert np.mean(moved) < 0.25 * np.mean(fresh)


def test_coupled_rounding_nearly_keeps_expectations() -> None:
    network = naive.topology_i(alpha=4)
    y = projected(network, 2)
    mean = np.mean([coupled(network, y, s) for s in range(600)], axis=0)
    decided = layout_of(network).free
    assert np.abs(mean - y)[decided].mean() < 0.04
    sizes = network.pairs.size * decided
    assert sizes @ mean == pytest.approx(sizes @ y, rel=0.03)


def test_a_tasks_models_are_as_many_as_they_sum_to() -> None:
    network = naive.assemble(
        [naive.Node(np.inf), naive.Node(4.0)],
        [([1, 0], [0.0, 50.0])],
        [(0, 0, 30.0), (1, 0, 30.0)],
        [[naive.Variant(0.5, 1.0, (600.0,))]] * 2,
        copies=5,
    )
    decided = layout_of(network).free
    y = np.ones(len(network.pairs.node))
    y[decided] = [0.1, 0.5, 0.2, 0.9, 0.3] * 2
    task = network.models.task[network.pairs.model]
    for seed in range(100):
        x = coupled(network, y, seed) * decided
        assert np.bincount(task, x).tolist() == [2, 2]
