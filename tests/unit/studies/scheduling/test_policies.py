"""The studies' own dispatch policies, decision by decision."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from inferway.dispatch.deadline import Deadline
from inferway.site import ALL_CLASSES, COMPLETED, HOLD, Event, Request
from inferway.site.view import empty_site
from inferway.studies.scheduling.burst import scenario
from inferway.studies.scheduling.rules import Believed, Tied

FLEET = scenario().fleet
BUILT = {"target": None, "rate_per_s": None}
WORDS = np.random.default_rng(1).integers(-(2**63), 2**63, 4000)


def site_with(queue):
    site = empty_site(FLEET, None, 16)
    site.queue[:] = queue
    site.open[:] = site.queue < 15
    return site


def request(site, deadline_s=0.3):
    return Request(0.0, deadline_s, 0.0, 0, 1, ALL_CLASSES, site.open, False)


@pytest.mark.parametrize(
    ("rule", "queue", "shares"),
    [
        ("light", (0, 0, 0, 0), (0.5, 0.5, 0, 0)),
        ("light", (1, 2, 0, 0), (0, 0, 0.5, 0.5)),
        ("coin", (0, 0, 1, 0), (0.25, 0.25, 0, 0.5)),
        ("coin", (0, 0, 1, 1), (0.5, 0.5, 0, 0)),
        ("pair", (1, 0, 0, 3), (0, 0, 1, 0)),
        ("pair", (0, 0, 0, 1), (1 / 3, 1 / 3, 1 / 3, 0)),
    ],
)
def test_ties(rule, queue, shares):
    policy, site = Tied.build(FLEET, rule=rule, **BUILT), site_with(queue)
    chosen = Counter(policy.choose(site, request(site), word) for word in WORDS)
    found = [chosen[server] / len(WORDS) for server in range(4)]
    assert found == pytest.approx(shares, abs=0.04)


def test_none_is_idle():
    site = site_with((1, 1, 2, 1))
    for rule in ("light", "coin", "pair"):
        assert Tied.build(FLEET, rule=rule, **BUILT).choose(site, request(site), 1) == HOLD
    with pytest.raises(ValueError, match="one of light, coin, pair"):
        Tied.build(FLEET, rule="heavy", **BUILT)


def test_beliefs_decide_as_deadline_does():
    """With the same times believed, whatever service takes."""
    random = np.random.default_rng(2)
    for factor in (1.0, 1.5):
        believed = Believed.build(FLEET, margin=factor, **BUILT)
        own = Deadline.build(FLEET, **BUILT)
        own.mean[:] = factor
        for _ in range(200):
            site = site_with(random.integers(0, 10, 4))
            busy = site.queue > 0
            site.clock_s[0] = 1.0
            site.started_s[busy] = 1.0 - random.uniform(0, 0.05, int(busy.sum()))
            asked = request(site, deadline_s=1.0 + random.uniform(0.01, 0.4))
            assert believed.choose(site, asked, 0) == own.choose(site, asked, 0)
            believed.learn(site, Event(COMPLETED, 0, 1, True, 0.0, 0.5, 1))
