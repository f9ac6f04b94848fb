"""Policies by name."""

from __future__ import annotations

import subprocess
import sys

import naive_placement as naive
import numpy as np
import pytest

from inferway.deployment.policies import HINDSIGHT, spec_of
from inferway.placement import POLICIES, Observation, build_policy, minimal, policy_class, serve


def test_a_deployment_file_may_name_every_policy() -> None:
    for name in POLICIES:
        assert spec_of("placement", name).policy == name
    assert set(POLICIES) >= HINDSIGHT


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_keeps_budgets_and_pinned_models(name: str) -> None:
    network = naive.random_network(7, nodes=5, tasks=2, types=6, copies=2, pins=True)
    batches = np.array([naive.batch(network, k) for k in range(5)])
    policy = build_policy(name, network, seed=3, batches=batches)
    for requests in batches:
        allocation = policy.allocation
        used = np.bincount(network.pairs.node, allocation * network.pairs.size, len(network.nodes))
        assert np.all(used <= network.budget + 1e-9)
        assert np.all(allocation >= minimal(network))
        assert allocation.dtype == np.uint8
        if policy.fractional is not None:
            assert 0 <= policy.fractional.min() <= policy.fractional.max() <= 1
        after = policy.step(Observation(requests, serve(network, requests, allocation)))
        assert np.array_equal(after, policy.allocation)


@pytest.mark.parametrize("name", sorted(HINDSIGHT))
def test_hindsight_needs_the_requests(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} decides in hindsight"):
        build_policy(name, naive.random_network(1))


def test_an_unknown_name_or_option_is_said() -> None:
    with pytest.raises(ValueError, match="unknown placement policy 'best': expected one of infida"):
        policy_class("best")
    with pytest.raises(ValueError, match=r"placement policy olag: .*'speed'"):
        build_policy("olag", naive.random_network(1), speed=3)


def test_policies_are_imported_when_asked_for() -> None:
    code = (
        "import sys, inferway.placement.contract as t; "
        "print([n for n in sys.modules if n.startswith('inferway.placement.') and "
        "n.rpartition('.')[2] in ('counters', 'agent', 'local')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
