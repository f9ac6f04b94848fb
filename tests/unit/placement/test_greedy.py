"""Static greedy, and the two that count: rules followed by hand."""

from __future__ import annotations

import naive_placement as naive
import numpy as np
import pytest

from inferway.placement import Observation, build_policy, minimal, serve
from inferway.placement.static import average_gain, horizon_of


def one_node(budget: float, variants: list[naive.Variant], requests: float, copies: int = 1):
    return naive.assemble(
        [naive.Node(np.inf), naive.Node(budget)],
        [([1, 0], [0.0, 50.0])],
        [(0, 0, requests)],
        [variants],
        copies=copies,
        alpha=1.0,
        slot_s=1.0,
    )


@pytest.mark.parametrize("seed", range(8))
def test_static_greedy_adds_the_best_gain_per_size(seed: int) -> None:
    network = naive.random_network(seed, nodes=4, tasks=2, types=5, copies=1 + seed % 2)
    batches = np.array([naive.batch(network, k) for k in range(3)])
    horizon = horizon_of(network, batches)
    x = minimal(network).astype(np.uint8)
    left = np.where(network.repository, 0.0, network.budget)
    while True:
        best, most = -1, 1e-6
        now = average_gain(network, horizon, x)
        for p in np.flatnonzero(x == 0):
            if network.pairs.size[p] <= left[network.pairs.node[p]]:
                x[p] = 1
                density = (average_gain(network, horizon, x) - now) / network.pairs.size[p]
                x[p] = 0
                if density > most * (1 + 1e-9):
                    best, most = p, density
        if best < 0:
            break
        x[best] = 1
        left[network.pairs.node[best]] -= network.pairs.size[best]
    found = build_policy("static-greedy", network, batches=batches).allocation
    assert average_gain(network, horizon, found) == pytest.approx(
        average_gain(network, horizon, x), rel=1e-6
    )
    assert np.array_equal(found, x)


def test_static_greedy_may_stop_once_all_is_served() -> None:
    quick = naive.Variant(0.5, 1.0, (200.0,))
    good = naive.Variant(0.9, 8.0, (100.0,))
    network = one_node(20.0, [quick, good], 100.0)
    batches = np.array([[100.0]])
    until_no_gain = build_policy("static-greedy", network, batches=batches).allocation
    until_served = build_policy(
        "static-greedy", network, batches=batches, stop="all-served"
    ).allocation
    assert until_no_gain.sum() == 3  # both, and the repository's own
    assert until_served.sum() == 2  # the quick one alone serves all
    with pytest.raises(ValueError, match="stops at no-gain or all-served, not at 'soon'"):
        build_policy("static-greedy", network, batches=batches, stop="soon")


def told(policy, network, requests: float) -> list[int]:
    batch = np.array([requests])
    policy.step(Observation(batch, serve(network, batch, policy.allocation)))
    own = network.pairs.node == 1
    return sorted(network.models.variant[network.pairs.model[own & (policy.allocation > 0)]])


def test_olag_takes_the_heaviest_and_uses_its_counters_up() -> None:
    # Gains over the repository: its best variant costs 50 + delay + inaccuracy.
    small = naive.Variant(0.6, 1.0, (50.0,))  # gains less, weighs more per byte
    large = naive.Variant(0.7, 4.0, (40.0,))
    network = one_node(5.0, [small, large], 30.0)
    gain_of = {
        int(network.models.variant[network.options.model[o]]): float(
            network.options.cost[-1] - network.options.cost[o]
        )
        for o in range(len(network.options.cost) - 1)
    }
    assert gain_of[0] < gain_of[1]
    policy = build_policy("olag", network)
    # Small weighs gain * 30 / 1, large gain * 30 / 4: small first; large gains more, so its counter
    # stays, and it still fits.
    assert told(policy, network, 30.0) == [0, 1]
    # The other way around, the subtraction reaches the lower gain.
    tight = one_node(4.5, [small._replace(size=0.5), large._replace(size=0.4)], 30.0)
    policy = build_policy("olag", tight)
    assert told(policy, tight, 30.0) == [1]


def test_a_model_that_serves_all_is_bought_once_and_by_the_letter_as_often_as_it_fits() -> None:
    network = one_node(3.0, [naive.Variant(0.6, 1.0, (50.0,))], 30.0, copies=3)
    assert told(build_policy("olag", network), network, 30.0) == [0]
    assert told(build_policy("olag-literal", network), network, 30.0) == [0, 0, 0]


def test_what_is_left_over_goes_on_to_a_replica() -> None:
    # One copy serves 20 of 30 requests in a slot of 1 s.
    network = one_node(3.0, [naive.Variant(0.6, 1.0, (20.0,))], 30.0, copies=3)
    assert told(build_policy("olag", network), network, 30.0) == [0, 0]


def test_olag_forgets_the_slot_before_and_by_the_letter_it_does_not() -> None:
    network = one_node(1.0, [naive.Variant(0.6, 1.0, (20.0,))], 30.0)
    olag, literal = build_policy("olag", network), build_policy("olag-literal", network)
    assert told(olag, network, 30.0) == told(literal, network, 30.0) == [0]
    assert told(olag, network, 0.0) == []
    assert told(literal, network, 0.0) == [0]


def test_counters_of_what_reaches_a_node_keep_a_model_that_serves_all() -> None:
    network = one_node(1.0, [naive.Variant(0.6, 1.0, (50.0,))], 30.0)
    reaching = build_policy("olag", network)
    forwarded = build_policy("greedy", network)
    assert [told(reaching, network, 30.0) for _ in range(4)] == [[0]] * 4
    assert [told(forwarded, network, 30.0) for _ in range(4)] == [[0], [], [0], []]


def test_requests_served_below_do_not_count_above() -> None:
    near = naive.Variant(0.6, 1.0, (50.0,))
    network = naive.assemble(
        [naive.Node(np.inf), naive.Node(1.0), naive.Node(1.0)],
        [([2, 1, 0], [0.0, 5.0, 50.0])],
        [(0, 0, 30.0)],
        [[near]],
        slot_s=1.0,
    )
    policy = build_policy("olag", network)
    batch = np.array([30.0])
    for _ in range(3):
        policy.step(Observation(batch, serve(network, batch, policy.allocation)))
    allocated = policy.allocation > 0
    assert network.pairs.node[allocated].tolist() == [0, 2]
