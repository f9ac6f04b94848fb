"""Exchange: what its trades save is what is served, budgets hold, and letters are few."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest
from naive_placement import Node, Variant

from inferway.placement import Observation, minimal, serve
from inferway.placement.exchange import ExchangePolicy
from inferway.placement.forecast import Forecast
from inferway.placement.infida import InfidaState
from inferway.placement.layout import data_of
from inferway.placement.scene import SceneWriter, levels_at, tasks_at
from inferway.placement.search import cost_of
from inferway.placement.turns import Turns
from inferway.placement.waiting import MANY, PRICES, queued


def cost(network, requests, allocation) -> float:
    return float(network.options.cost @ serve(network, requests, allocation))


def observe(policy, requests):
    """End a slot in which these requests came; returns the next one's allocation."""
    network = policy.network
    return policy.step(Observation(requests, serve(network, requests, policy.allocation)))


def emptied(policy: ExchangePolicy) -> ExchangePolicy:
    """Let nothing run but what is pinned, so that nothing is spare."""
    for agent in policy.agents:
        state = agent.state
        x = (agent.data.layout.pinned > 0).astype(np.uint8)
        agent.restore(InfidaState(state.y, state.spread, state.steep, x, state.slot))
    policy.allocation = minimal(policy.network).astype(np.uint8)
    return policy


def chain(seed: int):
    """Three nodes before a repository; all requests enter at the first."""
    rng = np.random.default_rng(seed)
    catalog = [
        [
            Variant(
                round(float(rng.uniform(0.3, 0.9)), 3),
                float(rng.integers(1, 6)),
                tuple(np.round(rng.uniform(5, 40, 2), 1)),
            )
            for _ in range(3)
        ]
        for _ in range(3)
    ]
    nodes = [Node(np.inf, 0), *(Node(float(rng.uniform(8, 20)), 1) for _ in range(3))]
    route = ([3, 2, 1, 0], [0.0, 6.0, 14.0, 40.0])
    types = [(task, 0, float(rng.integers(5, 40))) for task in range(3)]
    return naive.assemble(nodes, [route], types, catalog, copies=2, alpha=1.5, slot_s=0.1)


@pytest.mark.parametrize("seed", range(8))
def test_a_trade_saves_what_is_served(seed: int) -> None:
    network = chain(seed)
    requests = naive.batch(network, seed)
    policy = emptied(ExchangePolicy(network, seed=seed, kicks=0))
    total = 0.0
    for _ in range(3):
        before = cost(network, requests, policy.allocation)
        after = cost(network, requests, observe(policy, requests))
        saved = sum(agent.saved for agent in policy.agents)
        assert before - after == pytest.approx(saved, abs=1e-6)
        total += saved
    assert total > 0


@pytest.mark.parametrize("seed", range(6))
def test_budgets_hold_and_a_seed_gives_the_same_again(seed: int) -> None:
    network = naive.random_network(seed, nodes=6, tasks=3, types=8, copies=2, pins=seed % 2 == 0)
    policies = [ExchangePolicy(network, seed=seed, lost=0.1) for _ in range(2)]
    for slot in range(12):
        requests = naive.batch(network, slot)
        one, other = (observe(policy, requests) for policy in policies)
        assert np.array_equal(one, other)
        used = np.bincount(network.pairs.node, one * network.pairs.size, len(network.nodes))
        assert np.all(used <= network.budget + 1e-9)
        assert np.all(one >= minimal(network))


def test_on_small_networks_it_ends_near_the_best_allocation() -> None:
    shares = []
    for seed in range(12):
        network = naive.random_network(seed, nodes=3, tasks=2, types=4, variants=2)
        requests = naive.batch(network, seed)
        alone = cost(network, requests, minimal(network).astype(np.uint8))
        best = max(
            alone - cost(network, requests, np.asarray(x, np.uint8))
            for x in naive.feasible(network)
        )
        policy = emptied(ExchangePolicy(network, seed=seed))
        for _ in range(10):
            observe(policy, requests)
        if best > 0:
            shares.append((alone - cost(network, requests, policy.allocation)) / best)
    assert len(shares) > 8
    assert np.mean(shares) > 0.98
    assert min(shares) > 0.85


@pytest.fixture(scope="module")
def scarce():
    return naive.topology_i(alpha=4)


def test_a_letter_of_each_kind_goes_over_every_hop_where_something_is_decided(scarce) -> None:
    policy = ExchangePolicy(scarce)
    for requests in naive.batches_i(scarce, 3, sliding=False):
        observe(policy, requests)
    # 40 request types over four hops; at the end of a path nothing is decided.
    assert policy.letters == {"Above": 160, "Below": 120}


def test_where_nothing_is_to_gain_nothing_is_said() -> None:
    network = naive.topology_i(alpha=1)
    policy = ExchangePolicy(network)
    counts = []
    for requests in naive.batches_i(network, 8, sliding=False):
        observe(policy, requests)
        counts.append(sum(policy.letters.values()))
    assert counts[0] > 200
    assert counts[-1] < 30
    # Other tasks become popular: those who need somebody say so.
    observe(policy, naive.batches_i(network, 61, sliding=True)[-1] * 4.0)
    assert policy.letters["Quiet"] > 0
    assert policy.letters["Above"] > 30


def test_without_letters_nothing_moves(scarce) -> None:
    policy = ExchangePolicy(scarce, lost=1.0)
    first = policy.allocation.copy()
    for requests in naive.batches_i(scarce, 3, sliding=False):
        observe(policy, requests)
    assert np.array_equal(policy.allocation, first)


def test_a_lost_letter_costs_little(scarce) -> None:
    batches, gains = naive.batches_i(scarce, 15, sliding=False), []
    for lost in (0.0, 0.05):
        policy, gained = ExchangePolicy(scarce, lost=lost), 0.0
        for requests in batches:
            gained -= cost(scarce, requests, policy.allocation)
            gained += cost(scarce, requests, minimal(scarce).astype(np.uint8))
            observe(policy, requests)
        gains.append(gained)
    assert gains[1] > 0.98 * gains[0]


def busy_edge(rate: float, copies: int) -> naive.DeliveryNetwork:
    """An edge with room for so many copies that serve 100 requests a slot, and a far cloud."""
    nodes = [Node(np.inf, 0), Node(float(copies), 1)]
    path = ([1, 0], [0.0, 2000.0])
    catalog = [[Variant(0.9, 1.0, (100.0, 100.0))]]
    return naive.assemble(nodes, [path], [(0, 0, rate)], catalog, copies=copies, slot_s=1.0)


@pytest.mark.parametrize(("rate", "bought"), [(5.0, 1), (60.0, 2), (95.0, 3)])
def test_with_waiting_a_copy_is_bought_where_one_alone_would_have_room(
    rate: float, bought: int
) -> None:
    network, requests = busy_edge(rate, 3), np.array([rate])
    for waiting in (False, True):
        # A second copy spares 60 requests .45 service times each, and a third .09 of them, .5 ms.
        policy = emptied(ExchangePolicy(network, waiting=waiting, least_ms=1.0))
        for _ in range(3):
            observe(policy, requests)
        assert policy.allocation.sum() - minimal(network).sum() == (bought if waiting else 1)


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_the_cost_of_a_scene_with_levels_is_that_of_their_tangents(copies: int) -> None:
    network, rate = busy_edge(60.0, 3), 60.0
    data = data_of(network)[1]
    levels, (task,) = levels_at(data, 1000.0), tasks_at(data)
    writer = SceneWriter(levels)
    x = (np.arange(3) < copies).astype(np.uint8)
    writer.add(task, x, {0: (rate, (), [(0, 0, 1e6, np.inf, 0.0)])})
    parts = levels.share[copies - 1]
    used = np.clip(rate / (100.0 * copies) - (np.cumsum(parts) - parts), 0.0, parts)
    waiting = copies * float(used @ PRICES)  # As many wait in the mean, in slots of 1000 ms
    expected = rate * (10.0 + 10.0) + 1000.0 * waiting
    assert cost_of(writer.scene()) == pytest.approx(expected)
    assert 0.0 <= waiting <= queued(rate / (100.0 * copies), copies)


def test_more_copies_than_there_are_rows_of_levels_wait_as_the_most_do() -> None:
    network = busy_edge(60.0, 100)
    data = data_of(network)[1]
    levels, (task,) = levels_at(data, 1000.0), tasks_at(data)
    assert len(levels.share) == MANY
    writer = SceneWriter(levels)
    writer.add(task, np.ones(100, np.uint8), {0: (60.0, (), [(0, 0, 1e6, np.inf, 0.0)])})
    assert cost_of(writer.scene()) == pytest.approx(60.0 * (10.0 + 10.0))


def test_with_waiting_budgets_hold_and_lost_letters_abstain(scarce) -> None:
    policy = ExchangePolicy(scarce, waiting=True, lost=0.1)
    for requests in naive.batches_i(scarce, 4, sliding=True):
        x = observe(policy, requests)
        used = np.bincount(scarce.pairs.node, x * scarce.pairs.size, len(scarce.nodes))
        assert np.all(used <= scarce.budget + 1e-9)
    silent = ExchangePolicy(scarce, waiting=True, lost=1.0)
    first = silent.allocation.copy()
    observe(silent, naive.batches_i(scarce, 1, sliding=False)[0])
    assert np.array_equal(silent.allocation, first)


def test_nodes_of_a_circle_take_turns() -> None:
    # Two tasks whose requests pass the same nodes in opposite directions.
    nodes = [Node(np.inf, 0), Node(6.0, 1), Node(6.0, 1), Node(np.inf, 0)]
    catalog = [[Variant(0.5, 2.0, (20.0, 20.0)), Variant(0.8, 4.0, (20.0, 20.0))]] * 2
    paths = [([1, 2, 3], [0.0, 5.0, 30.0]), ([2, 1, 0], [0.0, 5.0, 30.0])]
    network = naive.assemble(
        nodes, paths, [(0, 0, 9.0), (1, 1, 9.0)], catalog, alpha=1.0, slot_s=0.1
    )
    turns = Turns(network)
    firsts = [[sorted(turns.unordered(node, slot)) for node in (1, 2)] for slot in range(8)]
    # Whose turn comes first leaves alone what comes to it through the other.
    assert all(first in ([[], [0]], [[1], []]) for first in firsts)
    assert [[], [0]] in firsts
    assert [[1], []] in firsts
    assert turns.unordered(0, 1) == turns.unordered(3, 1) == frozenset()
    policy = emptied(ExchangePolicy(network))
    requests = np.array([9.0, 9.0])
    before = cost(network, requests, policy.allocation)
    for _ in range(8):
        observe(policy, requests)
    assert cost(network, requests, policy.allocation) < before


def test_a_forecast_follows_a_change_and_not_noise() -> None:
    forecast, rng = Forecast(2), np.random.default_rng(1)
    rows = rng.poisson([400.0, 900.0], (200, 2)).astype(float)
    found = np.array([forecast.next(counts) for counts in rows])
    error, last = (np.abs(one[:-1] - rows[1:]).mean() for one in (found, rows))
    assert error < 0.85 * last
    forecast.next(np.array([5000.0, 10.0]))
    assert forecast.next(np.array([5000.0, 10.0])) == pytest.approx([5000.0, 10.0])


def test_impossible_options_are_refused() -> None:
    network = naive.random_network(1)
    for options in ({"least_ms": 0.0}, {"kicks": -1}, {"lost": 1.5}):
        with pytest.raises(ValueError, match="not"):
            ExchangePolicy(network, **options)
