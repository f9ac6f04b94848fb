"""Loads, costs and gains against the paper's formulas, and what the paper proves about them."""

from __future__ import annotations

import itertools

import naive_placement as naive
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.placement import cost, gain, minimal, potential, serve, subgradient

networks = st.builds(
    naive.random_network,
    st.integers(0, 10_000),
    nodes=st.integers(2, 6),
    tasks=st.integers(1, 3),
    types=st.integers(1, 6),
    copies=st.integers(1, 2),
    pins=st.booleans(),
)
seeds = st.integers(0, 10_000)
quick = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("seed", range(12))
def test_loads_are_those_of_many_small_steps(seed: int) -> None:
    network = naive.random_network(seed, types=6, copies=1 + seed % 2, pins=seed % 3 == 0)
    requests, x = naive.batch(network, seed), naive.some_allocation(network, seed)
    slow = naive.serve_by_small_steps(network, requests, x, 2000)
    assert serve(network, requests, x) == pytest.approx(slow, abs=0.01)


@quick
@given(networks, seeds)
def test_all_requests_are_served_within_the_capacities(network, seed) -> None:
    requests, x = naive.batch(network, seed), naive.some_allocation(network, seed)
    load = serve(network, requests, x)
    assert load.min() >= 0
    assert np.add.reduceat(load, network.options.first[:-1]) == pytest.approx(requests)
    taken = np.bincount(network.options.pair, load, len(x))
    instances = np.where(network.pairs.pinned > 0, network.pairs.pinned, x)
    assert np.all(taken <= network.pairs.capacity * instances + 1e-6)


@quick
@given(networks, seeds)
def test_capacities_costs_and_gains_are_the_papers(network, seed) -> None:
    requests, x = naive.batch(network, seed), naive.some_allocation(network, seed)
    load = serve(network, requests, x)
    capacity = potential(network, requests, load)
    assert capacity == pytest.approx(naive.available(network, requests, load))
    y = np.random.default_rng(seed).random(len(x)) * x
    for allocation in (x, minimal(network), np.maximum(y, minimal(network))):
        spent = cost(network, requests, capacity, allocation)
        assert spent == pytest.approx(naive.cost(network, requests, capacity, allocation))
        gained = gain(network, requests, capacity, allocation)
        assert gained == pytest.approx(naive.gain(network, requests, capacity, allocation))
        # Lemma III.1: eq. 13 and eq. 16 are the same.
        least = cost(network, requests, capacity, minimal(network))
        assert gained == pytest.approx(least - spent, abs=1e-6)


@quick
@given(networks, seeds)
def test_the_loads_cost_what_eq_12_says(network, seed) -> None:
    requests, x = naive.batch(network, seed), naive.some_allocation(network, seed)
    load = serve(network, requests, x)
    capacity = potential(network, requests, load)
    assert cost(network, requests, capacity, x) == pytest.approx(network.options.cost @ load)


def test_types_that_compete_share_an_instance_by_their_rates() -> None:
    network = naive.assemble(
        [naive.Node(np.inf), naive.Node(10.0)],
        [([1, 0], [0.0, 50.0])] * 2,
        [(0, 0, 30.0), (0, 1, 60.0)],
        [[naive.Variant(0.5, 1.0, (600.0,))]],
        slot_s=0.1,
    )
    load = serve(network, [30.0, 60.0], np.ones(2, np.uint8))
    assert load.tolist() == pytest.approx([20.0, 10.0, 40.0, 20.0])


@quick
@given(networks, seeds)
def test_gain_is_monotone_and_submodular(network, seed) -> None:
    requests = naive.batch(network, seed)
    rng = np.random.default_rng(seed)
    capacity = potential(network, requests, np.zeros(len(network.options.pair)))
    capacity *= np.where(network.options.repository, 1.0, rng.random(len(capacity)))
    large = naive.some_allocation(network, seed)
    small = np.maximum(large * (rng.random(len(large)) < 0.5), minimal(network))

    def value(allocation: np.ndarray) -> float:
        return gain(network, requests, capacity, allocation)

    scale = 1e-9 * (1 + float(network.options.cost.max()) * float(requests.sum()))
    assert value(minimal(network)) == 0
    assert value(large) >= value(small) - scale
    for p in np.flatnonzero(large == 0):
        more_large, more_small = large.copy(), small.copy()
        more_large[p] = more_small[p] = 1
        assert value(more_large) - value(large) <= value(more_small) - value(small) + scale


@quick
@given(networks, seeds)
def test_the_subgradient_bounds_the_gain_and_is_its_slope(network, seed) -> None:
    requests = naive.batch(network, seed)
    rng = np.random.default_rng(seed)
    load = serve(network, requests, naive.some_allocation(network, seed))
    capacity = potential(network, requests, load)
    y, other = (np.maximum(rng.random(len(network.pairs.node)), minimal(network)) for _ in "ab")
    g = subgradient(network, requests, capacity, y)
    here = gain(network, requests, capacity, y)
    # Concavity (Lemma F.1) and eq. 18: the tangent lies above.
    tangent = here + g @ (other - y)
    assert gain(network, requests, capacity, other) <= tangent + 1e-6 * (1 + abs(tangent))
    step = 1e-7
    for p in range(len(y)):
        ahead = np.minimum(y + step * (np.arange(len(y)) == p), 1.0)
        if ahead[p] > y[p]:
            slope = (gain(network, requests, capacity, ahead) - here) / (ahead[p] - y[p])
            assert slope == pytest.approx(g[p], rel=1e-3, abs=1e-3 * (1 + g.max()))


def test_a_random_order_of_arrival_costs_no_less_than_the_best_flow() -> None:
    from inferway.placement import relaxation

    for seed in range(10):
        network = naive.random_network(seed, types=5)
        requests = naive.batch(network, seed)
        for x in itertools.islice(naive.feasible(network), 40):
            load = serve(network, requests, x.astype(np.uint8))
            least = serve(network, requests, minimal(network))
            gained = float(network.options.cost @ (least - load))
            assert gained <= relaxation(network, requests[None]) + 1e-6


@pytest.mark.parametrize(
    ("requests", "allocation", "sentence"),
    [
        ([1.0], None, "requests have the shape"),
        ([-1.0, 0.0, 0.0, 0.0], None, "negative number or one that is not finite"),
        ([np.nan, 0.0, 0.0, 0.0], None, "negative number or one that is not finite"),
        (None, [1.0], "allocation have the shape"),
        (None, 0.5, "an integral allocation holds only 0 and 1"),
        (None, 2.0, "an allocation lies between 0 and 1"),
    ],
)
def test_what_is_wrong_with_arrays_is_said(requests, allocation, sentence) -> None:
    network = naive.random_network(3)
    batch = naive.batch(network, 0) if requests is None else requests
    x = minimal(network)
    if isinstance(allocation, float):
        x = np.full(len(x), allocation)
    elif allocation is not None:
        x = np.array(allocation)
    with pytest.raises(ValueError, match=sentence):
        serve(network, batch, x)
