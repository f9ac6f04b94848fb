"""INFIDA learns what it is proven to learn, with useful pairs only and without tuning."""

from __future__ import annotations

import itertools

import naive_placement as naive
import numpy as np
import pytest

from inferway.placement import (
    Observation,
    best_static,
    build_policy,
    minimal,
    project_sorted,
    serve,
    subgradient,
)
from inferway.placement.infida import FLOOR, RATE, Infida
from inferway.placement.objective import potential


def run(network, batches, policy) -> np.ndarray:
    """(T,) gain per slot."""
    least = minimal(network).astype(np.uint8)
    gains = []
    for requests in batches:
        load = serve(network, requests, policy.allocation)
        gains.append(network.options.cost @ (serve(network, requests, least) - load))
        policy.step(Observation(requests, load))
    return np.array(gains)


def by_the_book(network, requests, load, y, energy, rate):
    """One mirror step of Algorithm 1 at every node, written out; `y` has every pair."""
    pairs = network.pairs
    g = subgradient(network, requests, potential(network, requests, load), y)
    stepped = y.copy()
    for v in range(len(network.nodes)):
        own = np.flatnonzero((pairs.node == v) & (pairs.pinned == 0))
        budget = network.budget[v] - pairs.size[(pairs.node == v) & (pairs.pinned > 0)].sum()
        if network.repository[v] or not len(own) or not g[own].any():
            continue
        steep = (g[own] / pairs.size[own]).max()
        energy[v] += steep**2
        eta = rate or RATE / np.sqrt(energy[v])
        mapped = pairs.size[own] * (np.log(y[own]) + 1)  # the gradient of the mirror map
        back = np.exp((mapped + eta * g[own]) / pairs.size[own] - 1)
        stepped[own] = np.maximum(FLOOR, project_sorted(back, pairs.size[own], budget))
    return stepped


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rate", [None, 0.01])
def test_useless_models_share_one_number_exactly(seed: int, rate: float | None) -> None:
    options = {"nodes": 5, "tasks": 3, "types": 5, "copies": 2, "pins": seed % 2 == 0}
    network = naive.random_network(seed, **options)
    whole = naive.random_network(seed, **options, every_pair=True)
    where = {
        (v, m): p for p, (v, m) in enumerate(zip(whole.pairs.node, whole.pairs.model, strict=True))
    }
    at = [where[v, m] for v, m in zip(network.pairs.node, network.pairs.model, strict=True)]
    policy = Infida(network, learning_rate=rate)
    y = np.ones(len(whole.pairs.node))
    for v in range(len(whole.nodes)):
        own = (whole.pairs.node == v) & (whole.pairs.pinned == 0)
        fixed = whole.pairs.size[(whole.pairs.node == v) & (whole.pairs.pinned > 0)].sum()
        if own.any():
            y[own] = min(1.0, (whole.budget[v] - fixed) / whole.pairs.size[own].sum())
    energy = np.zeros(len(whole.nodes))
    for slot in range(12):
        assert policy.fractional == pytest.approx(y[at], rel=1e-9)
        useless = np.setdiff1d(np.flatnonzero(~whole.repository[whole.pairs.node]), at)
        spread = policy.state.spread[whole.pairs.node[useless]]
        assert spread == pytest.approx(y[useless], rel=1e-9)
        requests = naive.batch(network, slot)
        load = serve(network, requests, policy.allocation)
        y = by_the_book(whole, requests, load, y, energy, rate)
        policy.step(Observation(requests, load))


def test_budgets_are_spent_at_every_step() -> None:
    network = naive.topology_i(alpha=4)
    policy = Infida(network)
    for requests in naive.batches_i(network, 20, sliding=False):
        policy.step(Observation(requests, serve(network, requests, policy.allocation)))
        sizes = np.where(network.pairs.pinned > 0, 0.0, network.pairs.size)
        spent = np.bincount(network.pairs.node, policy.fractional * sizes)
        spent += network.rest * policy.state.spread
        limited = ~network.repository
        # The floor adds a millionth of the catalog at most.
        assert spent[limited] == pytest.approx(network.budget[limited], rel=1e-4)
        assert policy.fractional.min() >= FLOOR


def test_it_comes_within_a_few_percent_of_the_best_static_allocation() -> None:
    for alpha, share in ((1.0, 0.99), (4.0, 0.96)):
        network = naive.topology_i(alpha=alpha)
        batches = naive.batches_i(network, 120, sliding=False)
        gains = run(network, batches, Infida(network))
        bound = best_static(network, batches[:1], time_limit_s=3.0).bound
        assert gains[-30:].mean() >= share * bound
        assert gains[-30:].mean() > gains[:3].mean()


def test_regret_grows_slower_than_time() -> None:
    network = naive.topology_i(alpha=3)
    batches = naive.batches_i(network, 200, sliding=False)
    gains = run(network, batches, Infida(network, rounding="fresh"))
    best = best_static(network, batches[:1], time_limit_s=3.0).gain
    lost = np.cumsum(best - gains)
    assert lost[-1] / 200 < 0.7 * lost[24] / 25
    assert (1 - 1 / np.e) * best * 200 - gains.sum() < 0


def test_the_rate_has_no_unit() -> None:
    # Sizes in other units and requests of another scale leave every allocation as it was.
    network = naive.random_network(5, types=6, copies=2)
    from dataclasses import replace

    scaled = replace(
        network,
        budget=network.budget * 1024,
        rest=network.rest * 1024,
        pairs=network.pairs._replace(
            size=network.pairs.size * 1024, capacity=network.pairs.capacity * 16
        ),
        options=network.options._replace(cost=network.options.cost * 8),
    )
    one, other = Infida(network), Infida(scaled)
    for slot in range(10):
        requests = naive.batch(network, slot)
        one.step(Observation(requests, serve(network, requests, one.allocation)))
        other.step(Observation(16 * requests, serve(scaled, 16 * requests, other.allocation)))
        assert one.fractional == pytest.approx(other.fractional)


@pytest.mark.slow
def test_the_rate_that_tunes_itself_is_near_the_best_by_hand() -> None:
    shares, wrong = [], []
    for seed, alpha, sliding in itertools.product((1, 2), (1.0, 2.0, 3.0, 4.0, 5.0), (False, True)):
        network = naive.topology_i(alpha=alpha, seed=seed)
        batches = naive.batches_i(network, 240, sliding=sliding)
        own = run(network, batches, Infida(network)).mean()
        tuned = [
            run(network, batches, Infida(network, learning_rate=rate)).mean()
            for rate in np.logspace(-2, 6, 17)
        ]
        shares.append(own / max(tuned))
        wrong.append(min(tuned) / max(tuned))
    assert min(shares) > 0.98
    assert np.mean(shares) > 0.995
    assert min(wrong) < 0.7


def test_a_state_that_was_saved_goes_on_as_if_nothing_had_happened() -> None:
    network = naive.topology_i(alpha=4)
    batches = naive.batches_i(network, 12, sliding=False)
    whole, first, second = (Infida(network, rounding="fresh", refresh=3) for _ in "abc")
    for k, requests in enumerate(batches):
        load = serve(network, requests, whole.allocation)
        whole.step(Observation(requests, load))
        if k < 6:
            first.step(Observation(requests, load))
        else:
            if k == 6:
                for saved, restored in zip(first.state, second.state, strict=True):
                    restored[:] = saved
            second.step(Observation(requests, load))
    assert np.array_equal(whole.allocation, second.allocation)
    assert np.array_equal(whole.fractional, second.fractional)


def test_the_allocation_moves_only_when_a_refresh_is_due() -> None:
    network = naive.topology_i(alpha=5)
    batches = naive.batches_i(network, 24, sliding=False)
    for refresh, due in ((1, set(range(1, 25))), (4, {4, 8, 12, 16, 20, 24})):
        policy = build_policy("infida", network, refresh=refresh, rounding="fresh")
        before, changed = policy.allocation.copy(), set()
        for slot, requests in enumerate(batches, start=1):
            after = policy.step(Observation(requests, serve(network, requests, policy.allocation)))
            if not np.array_equal(before, after):
                changed.add(slot)
            before = after.copy()
        assert changed == due


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rounding": "loose"}, "rounding is coupled or fresh, not 'loose'"),
        ({"residual": "none"}, "elastic or strict, not 'none'"),
        ({"learning_rate": 0.0}, "the learning rate must be positive, not 0.0"),
        ({"refresh": 0}, "a refresh period is one slot or more, not 0"),
    ],
)
def test_wrong_options_are_refused(options, sentence) -> None:
    with pytest.raises(ValueError, match=sentence):
        build_policy("infida", naive.random_network(1), **options)
