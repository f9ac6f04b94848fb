"""What is decided for many sites at once is what the schedulers decide for one."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.deployment.policies import spec_of
from inferway.learning.control import Control
from inferway.learning.site import SlottedSites
from inferway.scheduling import Conditions, Signal, controller_of
from inferway.scheduling.store import routings_of
from inferway.site.view import empty_site
from inferway.studies.scheduling.burst import control, scenario
from inferway.studies.scheduling.train import network
from inferway.studies.scheduling.trial import decider_of, learned, queues
from inferway.workload import phases_of


def seen_by(sites, slots=40):
    """Observations of sites under even routing, and the queues behind them."""
    rows = np.full((sites.count, 4), 0.25)
    for _ in range(slots):
        sites.step(rows)
        yield sites.observation.copy()


@pytest.mark.parametrize("policy", ["hand", "infaas", "sa", "lw", "hw"])
def test_as_for_one_site(policy):
    asked = scenario()
    on = Control(asked, sees_phase=policy == "sa")
    decide = decider_of(policy, on)
    spec = spec_of("scheduling", policy)
    phases = phases_of(asked.arrivals, asked.capacity_per_s)
    single = controller_of(spec, [Conditions(asked.fleet, asked.deadline_s, phases=phases)])
    site = empty_site(asked.fleet, None, 16)
    sites = SlottedSites(on, count=30, seed=4)
    routings = set()
    for observation in seen_by(sites):
        found, rules = decide(observation)
        assert rules is None
        for e, queue in enumerate(queues(on, observation)):
            site.queue[:] = queue
            site.open[:] = queue < 15
            (wanted,) = single.decide([site], [Signal(int(sites.phase[e]), 0.0)])
            np.testing.assert_allclose(found[e], wanted.probabilities)
            routings.add(tuple(found[e]))
    assert len(routings) >= {"hand": 2, "infaas": 2, "sa": 2}.get(policy, 1)


@pytest.mark.parametrize("name", ["rl-po", "rl-fo-b"])
def test_a_network_as_for_one_site(name):
    policy = network(name)
    decide = learned(network(name))
    for observation in seen_by(SlottedSites(control(name), count=8, seed=2), slots=5):
        found, rules = decide(observation)
        for e, row in enumerate(observation):
            (wanted,) = routings_of(policy, policy.forward(row))
            np.testing.assert_allclose(found[e], wanted.probabilities, rtol=1e-4)
            if rules is not None:
                assert rules[e, :, 0].tolist() == wanted.smallest.tolist()
                assert rules[e, :, 1].tolist() == wanted.largest.tolist()


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="not decided in slots"):
        decider_of("sq", Control(scenario()))
