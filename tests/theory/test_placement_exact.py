"""The mixed-integer program against brute force, and every policy against the program."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest

from inferway.placement import best_static, build_policy, gain, minimal, potential, relaxation
from inferway.placement.static import average_gain, horizon_of

PSI = 1 - 1 / np.e


def small(seed: int):
    network = naive.random_network(
        seed,
        nodes=3,
        tasks=1 + seed % 2,
        types=3,
        copies=1 + (seed // 2) % 2,
        variants=2,
        pins=seed % 3 == 0,
    )
    rng = np.random.default_rng(seed)
    return network, np.floor(rng.random((3, len(network.requests.peak))) * network.requests.peak)


@pytest.mark.parametrize("seed", range(12))
def test_it_finds_the_best_of_all_allocations(seed: int) -> None:
    network, batches = small(seed)
    horizon = horizon_of(network, batches)
    gains = [average_gain(network, horizon, x.astype(np.uint8)) for x in naive.feasible(network)]
    found = best_static(network, batches)
    assert found.proven
    assert found.gain <= found.bound + 1e-6
    # Flows may be better than what evenly mixed arrivals give, but not by much here.
    assert found.gain >= max(gains) - 1e-6
    assert average_gain(network, horizon, found.allocation) >= 0.98 * max(gains) - 1e-6
    assert relaxation(network, batches) >= found.gain - 1e-6
    used = np.bincount(
        network.pairs.node, found.allocation * network.pairs.size, len(network.nodes)
    )
    assert np.all(used <= network.budget + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_with_given_capacities_it_maximizes_eq_16(seed: int) -> None:
    network, batches = small(seed)
    requests = batches[0]
    rng = np.random.default_rng(seed)
    capacity = potential(network, requests, np.zeros(len(network.options.pair)))
    capacity *= np.where(network.options.repository, 1.0, rng.random(len(capacity)))
    best = max(gain(network, requests, capacity, x) for x in naive.feasible(network))
    found = best_static(network, batches[:1], capacity=capacity)
    assert found.gain == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert gain(network, requests, capacity, found.allocation) == pytest.approx(best)


def test_time_runs_out_with_a_proven_gap() -> None:
    network = naive.topology_i(alpha=5)
    found = best_static(network, naive.batches_i(network, 1, sliding=False), time_limit_s=1.0)
    assert not found.proven
    assert 0 < found.gap < 0.1
    assert found.gain < found.bound
    assert found.seconds < 10


def test_slots_that_differ_have_no_one_capacity() -> None:
    network, batches = small(1)
    with pytest.raises(ValueError, match="belong to one slot"):
        relaxation(network, batches, capacity=np.zeros(len(network.options.pair)))


@pytest.mark.parametrize("seed", range(8))
def test_infida_offline_keeps_its_promise_against_the_optimum(seed: int) -> None:
    # Prop. V.1.1, in the mean over roundings; the best of several roundings does far better.
    network, batches = small(seed)
    horizon = horizon_of(network, batches)
    best = best_static(network, batches).gain
    policy = build_policy("infida-offline", network, batches=batches)
    assert average_gain(network, horizon, policy.allocation) >= PSI * best - 1e-9


@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_hindsight_policies_come_close_on_the_papers_network(alpha: float) -> None:
    network = naive.topology_i(alpha=alpha)
    batches = naive.batches_i(network, 4, sliding=False)
    horizon = horizon_of(network, batches)
    bound = relaxation(network, batches)
    for name, least in (("infida-offline", 0.96), ("static-greedy", 0.96)):
        allocation = build_policy(name, network, batches=batches).allocation
        gained = average_gain(network, horizon, allocation)
        assert least * bound <= gained <= bound + 1e-6, name
        used = np.bincount(network.pairs.node, allocation * network.pairs.size)
        assert np.all(used <= network.budget + 1e-6)
        assert np.all(allocation >= minimal(network))
