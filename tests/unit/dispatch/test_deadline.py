"""The deadline policy: accuracy first among those in time, predictions on the safe side."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferway.dispatch.deadline import LEVEL, Deadline
from inferway.site import ALL_CLASSES, COMPLETED, DISPATCHED, REJECT, Event, Fleet, Request, Site
from inferway.site.transitions import admit
from inferway.site.view import empty_site

FLEET = Fleet(
    ("light", "heavy"),
    np.array([1 / 0.010, 1 / 0.040]),
    np.array([0.78, 0.83]),
    np.array([1, 2]),
)
LIGHT, HEAVY, OTHER = 0, 1, 2


def asked(site: Site, deadline_s: float) -> int:
    policy = Deadline.build(FLEET, target=None, rate_per_s=None, margin=1.5)
    return policy.choose(
        site, Request(0.0, deadline_s, 0.0, 0, 1, ALL_CLASSES, site.open, False), 1
    )


def loaded(*queues: int) -> Site:
    site = empty_site(FLEET, None, 15)
    for server, length in enumerate(queues):
        for _ in range(length):
            admit(site, server, 1)
    return site


@pytest.mark.parametrize(
    ("queues", "deadline_s", "server"),
    [
        ((0, 0, 0), 0.061, HEAVY),  # 60 ms by the margin
        ((0, 0, 0), 0.059, LIGHT),
        ((0, 0, 0), 0.014, REJECT),
        ((0, 1, 0), 0.061, OTHER),
        ((0, 2, 1), 0.200, OTHER),  # the shorter of two queues that are both in time
        ((0, 2, 2), 0.170, LIGHT),
        ((9, 2, 2), 0.149, REJECT),
        ((9, 2, 2), 0.151, LIGHT),
        ((0, 9, 8), math.inf, OTHER),  # without a deadline the most accurate, however long
    ],
)
def test_the_most_accurate_in_time(queues: tuple[int, ...], deadline_s: float, server: int) -> None:
    assert asked(loaded(*queues), deadline_s) == server


@pytest.mark.parametrize("each_s", [0.040, 0.0403, 0.1 / 3])
def test_a_server_overdue_is_no_better_than_an_idle_one(each_s: float) -> None:
    site = loaded(9, 1, 0)
    site.clock_s[0] = 1.0
    policy = Deadline.build(FLEET, target=None, rate_per_s=None, margin=1.5)
    policy.slow_s[1] = each_s
    request = Request(1.0, 2.0, 0.0, 0, 1, ALL_CLASSES, site.open, False)
    assert policy.choose(site, request, 1) == OTHER


def test_what_has_been_served_counts() -> None:
    site = loaded(9, 1, 1)
    site.clock_s[0] = 0.030
    # 120 ms for two, of which 30 have passed.
    assert asked(site, 0.030 + 0.091) == HEAVY
    assert asked(site, 0.030 + 0.089) == REJECT
    # A service that outlasts its prediction is taken to end now.
    site.clock_s[0] = 5.0
    assert asked(site, 5.061) == HEAVY


def test_servers_that_may_not_take_it_are_left_out() -> None:
    site = loaded(0, 0, 0)
    allowed = np.array([True, False, False])
    policy = Deadline.build(FLEET, target=None, rate_per_s=None)
    request = Request(0.0, 1.0, 0.0, 0, 1, ALL_CLASSES, allowed, True)
    assert policy.choose(site, request, 1) == LIGHT


def test_the_quantile_is_learned() -> None:
    policy = Deadline.build(FLEET, target=None, rate_per_s=None)
    site = loaded(1, 1, 1)
    random = np.random.default_rng(1)
    for service_s in random.exponential(0.2, 20_000):
        policy.learn(site, Event(COMPLETED, HEAVY, 1, True, 0.0, service_s))
    assert policy.slow_s[1] == pytest.approx(-0.2 * math.log(1 - LEVEL), rel=0.15)
    assert policy.slow_s[0] == 0.010
    before = policy.slow_s.copy()
    policy.learn(site, Event(DISPATCHED, HEAVY, 1, True, 0.0, 9.0))
    assert (policy.slow_s == before).all()
