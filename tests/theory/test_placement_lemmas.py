"""The lemmas behind the regret bound ([SiSalem23], App. F and G), as inequalities."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.placement import dep_round, gain, minimal, project_sorted, subgradient
from inferway.placement.infida import first_state
from inferway.placement.layout import layout_of
from inferway.placement.objective import room
from inferway.placement.regret import PSI, regret_bound

seeds = st.integers(0, 10_000)
networks = st.builds(
    naive.random_network,
    seeds,
    nodes=st.integers(2, 5),
    tasks=st.integers(1, 3),
    types=st.integers(1, 5),
    copies=st.integers(1, 2),
    every_pair=st.booleans(),
)
quick = settings(max_examples=60, deadline=None)


def adversary(network, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Requests and capacities of eq. 10: any for what is placed, enough at the repositories."""
    rng = np.random.default_rng(seed)
    requests = naive.batch(network, seed)
    wanted = np.repeat(requests, np.diff(network.options.first))
    most = np.minimum(room(network)[network.options.pair], wanted)
    kind = rng.integers(3)
    part = [rng.random(len(most)), np.ones(len(most)), rng.random(len(most)) < 0.5][kind]
    return requests, np.where(network.options.repository, wanted, np.floor(most * part))


def feasible(network, seed: int) -> np.ndarray:
    """A fractional allocation within every budget that its nodes' useful pairs can spend."""
    layout, rng = layout_of(network), np.random.default_rng(seed)
    y = np.ones(len(layout.size))
    for v in range(len(layout.budget)):
        own = np.arange(layout.first[v], layout.first[v + 1])
        own = own[layout.free[own]]
        if len(own) and layout.budget[v] > 0:
            raw = np.exp(rng.normal(0, 3, len(own)))
            y[own] = project_sorted(raw, layout.size[own], layout.budget[v])
    return y


def placeable(network) -> np.ndarray:
    return np.flatnonzero(layout_of(network).free)


@quick
@given(networks, seeds, st.sampled_from([1.0, 0.1, 1e-3]))
def test_f_2_the_mirror_map_is_strongly_convex(network, seed: int, step: float) -> None:
    own = placeable(network)
    size, rng = network.pairs.size[own], np.random.default_rng(seed)
    one = rng.uniform(1e-6, 1.0, len(own)) ** rng.choice([0.01, 1.0, 4.0])
    other = np.clip(one - step * rng.uniform(0, 1, len(own)), 1e-9, 1.0)
    slope = size * (np.log(other) - np.log(one))
    norm = size @ np.abs(other - one)
    theta = regret_bound(network).convexity
    assert slope @ (other - one) >= theta * norm**2 * (1 - 1e-9)


def alone(sizes: tuple[float, ...], budget: float, requests: float = 80.0):
    """One node with a budget below a repository, one type, and variants of 50 requests a slot."""
    return naive.assemble(
        [naive.Node(np.inf), naive.Node(budget)],
        [([1, 0], [0.0, 50.0])],
        [(0, 0, requests)],
        [[naive.Variant(0.6, size, (50.0,)) for size in sizes]],
        slot_s=1.0,
    )


def test_f_2_is_tight_where_all_models_are_alike() -> None:
    network = alone((4.0, 4.0), 3.0)
    # Of both nodes' models only the free node's move, so half of the constant's count does.
    slope, norm = 2 * 4.0 * -np.log(0.999) * 0.001, 2 * 4.0 * 0.001
    assert slope == pytest.approx(2 * regret_bound(network).convexity * norm**2, rel=1e-3)


@quick
@given(networks, seeds)
def test_f_3_subgradients_are_bounded(network, seed: int) -> None:
    requests, capacity = adversary(network, seed)
    own = placeable(network)
    g = subgradient(network, requests, capacity, feasible(network, seed))
    norm = np.max(np.abs(g[own]) / network.pairs.size[own], initial=0.0)
    assert norm <= regret_bound(network).steepness * (1 + 1e-12)


def test_f_3_is_tight_for_one_type_and_one_model() -> None:
    network = alone((2.0,), 1.0)
    capacity = np.array([50.0, 80.0])
    g = subgradient(network, np.array([80.0]), capacity, feasible(network, 0))
    own = placeable(network)
    assert g[own] / 2.0 == pytest.approx(regret_bound(network).steepness)


@quick
@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(-5, 5)), min_size=1, max_size=8), seeds)
def test_f_4_the_norms_are_dual(pairs, seed: int) -> None:
    size, z = np.array(pairs).T
    dual = np.max(np.abs(z) / size)
    y = np.random.default_rng(seed).normal(size=len(z))
    assert z @ y <= (size @ np.abs(y)) * dual + 1e-9
    best = int(np.argmax(np.abs(z) / size))  # and this is reached at norm 1
    at = np.zeros(len(z))
    at[best] = np.sign(z[best]) / size[best]
    assert z @ at == pytest.approx(dual)


def divergence(size: np.ndarray, y: np.ndarray, first: np.ndarray) -> float:
    """Bregman divergence of the mirror map, eq. 63."""
    part = np.where(y > 0, y, 1.0)
    return float(size @ (y * np.log(part / first) - y + first))


@quick
@given(
    st.builds(
        naive.random_network, seeds, nodes=st.integers(2, 5), copies=st.integers(1, 2),
        every_pair=st.just(True),
    ),
    seeds,
)  # fmt: skip
def test_f_5_the_divergence_from_the_first_state_is_bounded(network, seed: int) -> None:
    own, first = placeable(network), first_state(layout_of(network)).y
    far = divergence(network.pairs.size[own], feasible(network, seed)[own], first[own])
    assert far <= regret_bound(network).divergence * (1 + 1e-9) + 1e-9


def test_f_5_is_tight_at_a_whole_model() -> None:
    network = alone((2.0, 2.0), 2.0)
    far = divergence(np.array([2.0, 2.0]), np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    assert far == pytest.approx(regret_bound(network).divergence)


def savings(network, requests, capacity, y, form) -> float:
    """Savings times a form of what is served so far (eq. 116 and 118), before a repository."""
    options, total = network.options, 0.0
    for rho, r in enumerate(requests):
        start, end = options.first[rho], options.first[rho + 1]
        for o in range(start, end - 1):
            assert not options.repository[o]  # the last option is the first that serves all
            z = capacity[start : o + 1] * y[options.pair[start : o + 1]]
            total += (options.cost[o + 1] - options.cost[o]) * form(r, z) if r > 0 else 0.0
    return float(total)


def capped(c: float, z: np.ndarray) -> float:
    return float(min(c, z.sum()))


def product(c: float, z: np.ndarray) -> float:
    return float(c - c * np.prod(1 - z / c))


@quick
@given(networks, seeds)
def test_f_6_and_f_9_the_gain_lies_between_its_bounding_functions(network, seed: int) -> None:
    requests, capacity = adversary(network, seed)
    y = np.maximum(feasible(network, seed), minimal(network))
    for allocation in (y, np.maximum(np.round(y), minimal(network))):
        found = gain(network, requests, capacity, allocation)
        assert savings(network, requests, capacity, allocation, capped) == pytest.approx(found)
        below = savings(network, requests, capacity, allocation, product)
        assert below <= found * (1 + 1e-9) + 1e-6
        assert PSI * found <= below * (1 + 1e-9) + 1e-6


@quick
@given(st.integers(1, 50), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), min_size=1))
def test_f_7_and_f_8_a_capped_sum_and_its_product(c: int, parts) -> None:
    z = np.array([y * min(q, c) for y, q in parts])
    assert product(c, z) <= capped(c, z) + 1e-9
    assert product(c, z) >= PSI * capped(c, z) - 1e-9
    # 1 - 1/e cannot be more: many small parts come near it.
    assert product(1, np.full(10_000, 1e-4)) < (PSI + 1e-4) * 1.0


@settings(max_examples=15, deadline=None)
@given(seeds, st.integers(2, 7))
def test_f_10_rounding_is_negatively_correlated_in_any_number(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    y, size, c = rng.random(n), rng.uniform(1, 9, n), rng.random(n)
    draws = np.array([dep_round(y, size, 1_000_003 * seed + k) for k in range(2000)])
    left = np.prod(1 - draws * c, axis=1)
    assert left.mean() <= np.prod(1 - y * c) + 5 * left.std() / np.sqrt(len(left))


@pytest.mark.parametrize("seed", range(4))
def test_f_11_rounding_loses_nothing_of_the_lower_function(seed: int) -> None:
    network = naive.random_network(seed, types=5, nodes=4)
    requests, capacity = adversary(network, seed)
    y, pairs = feasible(network, seed + 1), network.pairs
    values = []
    for draw in range(300):
        parts = [
            dep_round(y[a:b], pairs.size[a:b], 7919 * draw + v)
            for v, (a, b) in enumerate(zip(pairs.first[:-1], pairs.first[1:], strict=True))
        ]
        x = np.maximum(np.concatenate(parts), minimal(network))
        values.append(savings(network, requests, capacity, x, product))
    error = np.std(values) / np.sqrt(len(values))
    assert np.mean(values) + 5 * error >= savings(network, requests, capacity, y, product)


def ascended(network, slots: int, eta: float, seed: int, noise: float = 0.0) -> float:
    """Greatest regret of mirror ascent by the book against 20 fixed fractional allocations.

    With noise of mean 0 every part of the subgradient is off by up to so many times the greatest.
    """
    rng = np.random.default_rng(seed)
    layout = layout_of(network)
    state = first_state(layout).y.copy()
    against = [feasible(network, 1000 * seed + k) for k in range(20)]
    own, lost = 0.0, np.zeros(len(against))
    for t in range(slots):
        requests, capacity = adversary(network, 7 * seed + t % 3)  # three slots in turn
        own += gain(network, requests, capacity, state)
        lost += [gain(network, requests, capacity, y) for y in against]
        g = subgradient(network, requests, capacity, state)
        g += noise * g.max(initial=0.0) * rng.uniform(-1, 1, len(g))
        for v in range(len(layout.budget)):
            at = np.arange(layout.first[v], layout.first[v + 1])
            at = at[layout.free[at]]
            if len(at) and 0 < layout.budget[v] < layout.total[v]:
                raw = state[at] * np.exp(eta * g[at] / layout.size[at])
                state[at] = project_sorted(raw, layout.size[at], layout.budget[v])
    return float(np.max(lost - own))


def test_unbiased_noise_in_the_subgradients_costs_little() -> None:
    # Sec. IV-B, at ten times the rate of App. G, which learns in so few slots. Regrets are in parts
    # of what is lost where nothing is learned.
    exact, noisy = [], []
    for seed in range(8):
        network, slots = naive.random_network(seed, nodes=3, types=3, every_pair=True), 200
        eta, still = 10 * regret_bound(network).rate(slots), ascended(network, slots, 0.0, seed)
        exact.append(ascended(network, slots, eta, seed) / still)
        noisy.append(ascended(network, slots, eta, seed, noise=1.0) / still)
    assert max(exact) < 0.5
    assert np.mean(noisy) < np.mean(exact) + 0.06


@pytest.mark.parametrize("seed", range(6))
def test_g_the_learning_rate_keeps_the_regret_below_its_bound(seed: int) -> None:
    network = naive.random_network(seed, nodes=3, types=3, every_pair=True)
    bound, slots = regret_bound(network), 60
    eta = bound.rate(slots)
    assert ascended(network, slots, eta, seed) <= bound.fractional(slots)
    # It is the rate at which eq. 161 is least, and its least is eq. 162.
    at = [
        bound.divergence / e + e * bound.steepness**2 * slots / (2 * bound.convexity)
        for e in (eta, 0.9 * eta, 1.1 * eta)
    ]
    assert at[0] == pytest.approx(bound.fractional(slots))
    assert at[0] < min(at[1:])
    assert bound.constant * np.sqrt(slots) == pytest.approx(PSI * bound.fractional(slots))
