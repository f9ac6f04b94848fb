"""Policies by name."""

from __future__ import annotations

import subprocess
import sys

import naive_placement as naive
import numpy as np
import pytest

from inferway.deployment import load
from inferway.deployment.policies import HINDSIGHT, spec_of
from inferway.network import network_of
from inferway.placement import POLICIES, Observation, build_policy, minimal, policy_class, serve
from inferway.placement.static import Written


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


def test_what_a_file_lists_is_placed_for_each_of_several_tasks() -> None:
    """Their variants may have the same names."""
    deployment = load(
        {
            "tasks": {
                task: {
                    "variants": {
                        name: {"accuracy": accuracy, "size": "1 MB", "service": {"mean": mean}}
                        for name, accuracy, mean in (("small", 0.89, "1 ms"), ("big", 0.9, "9 ms"))
                    }
                }
                for task in ("a", "b")
            },
            "nodes": {
                "edge": {"budget": "4 MB", "instances": {"a/small": 1, "b/small": 1, "b/big": 1}},
                "cloud": {"repository": True},
            },
            "network": {"links": [{"between": ["edge", "cloud"], "rtt": "20 ms"}]},
            "workload": {
                task: {"arrivals": {"process": "poisson", "rate": "1/s"}} for task in ("a", "b")
            },
        }
    )
    network = network_of(deployment)
    written, pairs, models = Written(deployment, network).allocation, network.pairs, network.models
    edge = network.nodes.index("edge")
    placed = {
        (network.tasks[models.task[model]], network.variants[models.variant[model]])
        for model, node, runs in zip(pairs.model, pairs.node, written, strict=True)
        if runs and node == edge
    }
    assert placed == {("a", "small"), ("b", "small"), ("b", "big")}
