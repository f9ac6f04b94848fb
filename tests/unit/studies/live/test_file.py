"""The demo's deployment file suits the zoo that ships: its target leaves something to show."""

from __future__ import annotations

import numpy as np
import pytest

import inferway
from inferway.catalog.zoo import profiles
from inferway.site.fleet import fleet_of
from inferway.studies.live.comparison import template
from inferway.studies.live.policies import choose
from inferway.studies.live.servers import as_measured

_SERVING_S = 2.5e-4
"""Roughly what HTTP adds to a request's service time."""


@pytest.fixture
def deployment(tmp_path):
    path = tmp_path / "digits.yaml"
    path.write_text(template("digits.yaml"))
    return inferway.load(path)


def test_it_serves_the_whole_zoo(deployment):
    assert set(deployment.tasks["digits"].variants) == set(profiles())
    assert deployment.unserved() == []


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("cores", [2, 8])
def test_on_slow_and_fast_machines_the_load_tells_and_is_feasible(deployment, slower, cores):
    fleet = fleet_of(deployment, "digits")
    service = {name: p.mean_s * slower + _SERVING_S for name, p in profiles().items()}
    target = deployment.tasks["digits"].accuracy_target
    load = choose(as_measured(fleet, service), target, cores)
    assert load.telling
    assert load.burst_per_s <= 0.75 * load.feasible_per_s * (1 + 1e-9)
    # Room enough that a policy that takes idle servers first finds the accurate one idle.
    assert load.feasible_per_s > 3.5 * load.most_accurate_per_s
    # Yet the slow variants are needed: without the two slowest the target is out of reach.
    quick = np.sort(fleet.accuracy)[:-2]
    assert quick.max() < target < fleet.accuracy.max()
