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


def policy_of(spread: float = 0.0, margin: float = 1.5) -> Deadline:
    """The policy when quantiles of runs have been learned that are longer than the mean by this."""
    policy = Deadline.build(FLEET, target=None, rate_per_s=None, margin=margin)
    policy.high[:] = 1.0 + spread
    return policy


def asked(site: Site, deadline_s: float, policy: Deadline | None = None) -> int:
    request = Request(0.0, deadline_s, 0.0, 0, 1, ALL_CLASSES, site.open, False)
    return (policy or policy_of()).choose(site, request, 1)


def loaded(*queues: int, sizes: tuple[int, ...] = (1,), fleet: Fleet = FLEET) -> Site:
    site = empty_site(fleet, None, 15)
    site.sizes[:, : len(sizes)] = sizes
    for server, length in enumerate(queues):
        for _ in range(length):
            admit(site, server, 1)
    return site


@pytest.mark.parametrize(
    ("queues", "deadline_s", "server"),
    [
        ((0, 0, 0), 0.041, HEAVY),
        ((0, 0, 0), 0.039, LIGHT),
        ((0, 0, 0), 0.009, REJECT),
        ((0, 1, 0), 0.041, OTHER),
        ((0, 2, 1), 0.200, OTHER),  # the shorter of two queues that are both in time
        ((0, 2, 2), 0.119, LIGHT),
        ((9, 2, 2), 0.099, REJECT),
        ((9, 2, 2), 0.101, LIGHT),
        ((0, 9, 8), math.inf, OTHER),  # without a deadline the most accurate, however long
    ],
)
def test_the_most_accurate_in_time(queues: tuple[int, ...], deadline_s: float, server: int) -> None:
    assert asked(loaded(*queues), deadline_s) == server


def test_the_margin_multiplies_the_spread_of_the_service_time() -> None:
    for spread, margin, one_s, nine_s in ((0.5, 1.5, 0.070, 0.360 + 0.090), (0.5, 0.0, 0.04, 0.36)):
        policy = policy_of(spread, margin)
        assert asked(loaded(9, 0, 0), one_s + 1e-4, policy) == HEAVY
        assert asked(loaded(9, 0, 0), one_s - 1e-4, policy) == REJECT
        # Of nine runs in a row the spread is three times that of one.
        assert asked(loaded(15, 8, 8), nine_s + 1e-4, policy) == HEAVY
        assert asked(loaded(15, 8, 8), nine_s - 1e-4, policy) in (LIGHT, REJECT)


def test_a_request_is_in_time_with_the_batch_that_it_would_join() -> None:
    fleet = Fleet(("heavy",), np.array([1 / 0.140]), np.array([0.9]), np.array([1]))
    site = loaded(0, sizes=tuple(range(1, 9)), fleet=fleet)
    site.row_s[:] = site.slow_s[:] = 0.140 / 2.0 ** np.arange(8)  # as long for 8 as for 1
    policy = Deadline.build(fleet, target=None, rate_per_s=None)
    for waiting in range(9):
        # One is in service, and those who wait run together behind it.
        assert asked(site, 0.279 if waiting else 0.139, policy) == REJECT, waiting
        assert asked(site, 0.281 if waiting else 0.141, policy) == 0, waiting
        admit(site, 0, 1)
    assert asked(site, 0.281, policy) == REJECT  # eight wait: the next run is full
    assert asked(site, 0.421, policy) == 0


@pytest.mark.parametrize("mean", [1.0, 1.01, 1 / 1.2])
def test_a_server_overdue_is_no_better_than_an_idle_one(mean: float) -> None:
    site = loaded(9, 1, 0)
    site.clock_s[0] = 1.0
    policy = policy_of()
    policy.mean[1] = mean
    request = Request(1.0, 2.0, 0.0, 0, 1, ALL_CLASSES, site.open, False)
    assert policy.choose(site, request, 1) == OTHER


def test_what_has_been_served_counts() -> None:
    site = loaded(9, 1, 1)
    site.clock_s[0] = 0.030
    # 80 ms for two, of which 30 have passed.
    assert asked(site, 0.030 + 0.051) == HEAVY
    assert asked(site, 0.030 + 0.049) == REJECT
    # A service that outlasts its prediction is taken to end now.
    site.clock_s[0] = 5.0
    assert asked(site, 5.041) == HEAVY


def test_servers_that_may_not_take_it_are_left_out() -> None:
    site = loaded(0, 0, 0)
    allowed = np.array([True, False, False])
    policy = Deadline.build(FLEET, target=None, rate_per_s=None)
    request = Request(0.0, 1.0, 0.0, 0, 1, ALL_CLASSES, allowed, True)
    assert policy.choose(site, request, 1) == LIGHT


def test_the_quantile_goes_no_further_than_what_was_seen() -> None:
    policy = Deadline.build(FLEET, target=None, rate_per_s=None)
    site = loaded(1, 1, 1)
    for ratio in np.random.default_rng(1).uniform(0.99, 1.01, 100):
        policy.learn(site, Event(COMPLETED, HEAVY, 1, True, 0.0, 0.04 * ratio, 1))
        assert policy.high[1] <= 1.01


def test_mean_and_quantile_of_runs_are_learned() -> None:
    policy = Deadline.build(FLEET, target=None, rate_per_s=None)
    site = loaded(1, 1, 1)
    random = np.random.default_rng(1)
    for ratio in random.exponential(1.25, 20_000):
        policy.learn(site, Event(COMPLETED, HEAVY, 1, True, 0.0, 0.04 * ratio, 1))
    assert policy.high[1] == pytest.approx(-1.25 * math.log(1 - LEVEL), rel=0.15)
    assert policy.mean[1] == pytest.approx(1.25, rel=0.3)
    assert (policy.high[0], policy.mean[0]) == (1.0, 1.0)
    before = policy.high.copy()
    policy.learn(site, Event(DISPATCHED, HEAVY, 1, True, 0.0, 9.0))
    # Of a run for several requests one tells.
    policy.learn(site, Event(COMPLETED, HEAVY, 1, True, 0.0, 9.0, 0))
    assert (policy.high == before).all()
