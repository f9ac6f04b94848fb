"""INFIDA on real marginals: what each copy gains of a slot's requests, as they are served."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.placement import Observation, minimal, serve
from inferway.placement.serving import spent
from inferway.studies.placement.marginal import Marginal, marginals, task_parts
from inferway.studies.placement.trial import POLICIES, scenario


def built(system: str = "II"):
    return scenario(system, alpha=3.0, rate_per_s=7500.0, sliding=False, seed=1)


def gained(network, requests, allocation) -> float:
    """Serve the whole network's slot, and return what the allocation gains."""
    alone = minimal(network).astype(np.uint8)
    costs = [spent(network, serve(network, requests, x)).sum() for x in (alone, allocation)]
    return float(costs[0] - costs[1])


def test_each_is_the_difference_that_one_copy_makes() -> None:
    network, demand, _ = built()
    policy = POLICIES["exchange"].build(built(), 1, seed=1)
    requests, x = demand.expected(0), policy.allocation.copy()
    g = marginals(network, task_parts(network), requests, x)
    now = gained(network, requests, x)
    free = np.flatnonzero(network.pairs.pinned == 0)
    some = np.random.default_rng(1).choice(free, 60, replace=False)
    some = np.union1d(some, free[x[free] > 0][:30])
    assert {0, 1} == set(x[some].tolist())
    for p in some:
        other = x.copy()
        other[p] = 1 - x[p]
        change = gained(network, requests, other) - now
        assert g[p] == pytest.approx(max(-change if x[p] else change, 0.0), abs=1e-3)
    assert (g[network.pairs.pinned > 0] == 0).all()
    assert (g[x > 0] > 0).any()
    assert (g[(x == 0) & (network.pairs.pinned == 0)] > 0).any()


def test_it_keeps_budgets_and_leaves_what_it_was_given_as_it_was() -> None:
    here = built()
    network, demand, _ = here
    policy = POLICIES["infida-marginal"].build(here, 20, seed=1)
    assert isinstance(policy, Marginal)
    for slot in range(20):
        requests = demand.counts(slot).astype(float)
        load = serve(network, requests, policy.allocation)
        given = requests.copy(), load.copy()
        x = policy.step(Observation(requests, load))
        assert np.array_equal(requests, given[0])
        assert np.array_equal(load, given[1])
        node, size = network.pairs.node, network.pairs.size
        used = np.bincount(node, (x > 0) * size, len(network.nodes))
        # Coupled rounding keeps every budget.
        assert (used <= network.budget + 1e-6)[~network.repository].all()
    assert gained(network, demand.expected(0), policy.allocation) > 1.5 * gained(
        network, demand.expected(0), Marginal(network, seed=1).allocation
    )
