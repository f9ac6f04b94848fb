"""The deadline policy: accuracy first among those in time, predictions on the safe side."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from inferway.deployment.workloads import PoissonArrivals
from inferway.dispatch.batching import row_times
from inferway.dispatch.deadline import LEVEL, Deadline
from inferway.site import ALL_CLASSES, COMPLETED, DISPATCHED, REJECT, Event, Fleet, Request, Site
from inferway.site.chances import PAUSE, REST
from inferway.site.transitions import admit, begin_batch
from inferway.site.view import empty_site
from inferway.studies.scheduling import burst
from inferway.studies.scheduling.batch_sizes import phase_bound
from inferway.twin import run

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


@pytest.mark.parametrize(
    ("mean", "clock_s", "least_s"),
    [
        (1.25, 0.030, 0.070),  # the run of 50 ms has 20 left, the next takes 50
        (1.25, 0.045, 0.055),  # beyond its prediction of 40 ms
        (1.25, 0.060, 0.050),  # and beyond this
        (0.75, 0.010, 0.050),  # 20 of 30 ms left
    ],
)
def test_a_run_in_service_is_as_slow_as_others(mean: float, clock_s: float, least_s: float) -> None:
    site = loaded(9, 1, 1)
    site.clock_s[0] = clock_s
    policy = policy_of()
    policy.mean[1] = policy.high[1] = mean
    assert asked(site, clock_s + least_s + 1e-4, policy) == HEAVY
    assert asked(site, clock_s + least_s - 1e-4, policy) != HEAVY


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


BATCHES = {1: 0.043, 3: 0.103, 5: 0.163}  # s, of runs of so many rows


def crowded(waiting: int, run_s: float = 0.043, apart_s: float = 0.0) -> Site:
    """A light server, and a heavy one that has just begun a run and where so many wait.

    The last of them has come now, each other one so much before the next.
    """
    site = empty_site(two(), None, 15)
    site.sizes[HEAVY, :3] = list(BATCHES)
    site.row_s[HEAVY] = site.slow_s[HEAVY] = row_times(BATCHES)
    admit(site, HEAVY, 1)
    begin_batch(site, HEAVY, 1)
    site.ends_s[HEAVY] = run_s
    for number in range(waiting):
        site.clock_s[0] = (number + 1 - waiting) * apart_s
        admit(site, HEAVY, 1)
    site.clock_s[0] = 0.0
    return site


def two() -> Fleet:
    return Fleet(
        ("light", "heavy"), np.array([100.0, 1 / 0.043]), np.array([0.78, 0.83]), np.array([1, 1])
    )


def at_rate(per_s: float) -> Deadline:
    """The policy when so many requests a second have been dispatched."""
    policy = Deadline.build(two(), target=None, rate_per_s=None)
    policy.gap_s[:] = 1 / per_s, 0.0
    return policy


def test_nobody_who_waits_becomes_late_by_one_who_joins() -> None:
    calm = at_rate(1e-3)
    # The fifth makes a run of 163 ms of one of 103 and one of 43: 40 + 163 ms are 203.
    assert asked(crowded(4, 0.040), 0.204, calm) == HEAVY
    assert asked(crowded(4, 0.040), 0.202, calm) == LIGHT  # as it would be late itself
    # Of those who have waited for 30 ms, the first would come to 233.
    assert asked(crowded(4, 0.040, apart_s=0.010), 0.234, calm) == HEAVY
    assert asked(crowded(4, 0.040, apart_s=0.010), 0.232, calm) == LIGHT
    # Whoever is late in any case keeps nobody away.
    late = crowded(4, 0.040)
    late.arrived_s[HEAVY, 1:5] = -1.0
    assert asked(late, 0.204, calm) == HEAVY


@pytest.mark.parametrize(
    ("run_s", "waiting", "rate_per_s", "server"),
    [
        # A full run is 163 ms of 300: it is there for those who come 137 ms before it begins.
        (0.136, 0, 180.0, HEAVY),
        (0.138, 0, 180.0, LIGHT),
        (0.138, 0, 37.0, LIGHT),
        (0.138, 0, 36.0, HEAVY),  # fewer than five are expected in that time
        (0.138, 2, 37.0, LIGHT),
        (0.138, 2, 36.0, HEAVY),
        (0.043, 0, 1e4, HEAVY),
    ],
)
def test_who_would_make_the_next_run_small_leaves_it_to_those_who_come(
    run_s: float, waiting: int, rate_per_s: float, server: int
) -> None:
    assert asked(crowded(waiting, run_s), 0.3, at_rate(rate_per_s)) == server


def test_the_full_run_is_one_that_comes_together_in_time() -> None:
    # Of 200 ms a run of five leaves 37 for five to come in, one of three 97.
    assert asked(crowded(0, 0.098), 0.2, at_rate(120.0)) == LIGHT
    assert asked(crowded(0, 0.096), 0.2, at_rate(120.0)) == HEAVY
    assert asked(crowded(0, 0.038), 0.2, at_rate(150.0)) == LIGHT  # five do
    assert asked(crowded(0, 0.036), 0.2, at_rate(150.0)) == HEAVY


def test_without_a_less_accurate_server_in_time_nobody_is_turned_away() -> None:
    site = crowded(0, 0.138)
    site.open[LIGHT] = False
    assert asked(site, 0.3, at_rate(180.0)) == HEAVY


def test_the_gap_between_dispatches_is_learned() -> None:
    policy = Deadline.build(FLEET, target=None, rate_per_s=None)
    site = loaded(0, 0, 0)
    seen = []
    for number in range(400):
        site.clock_s[0] += 0.1 if number < 200 else 0.01
        policy.learn(site, Event(DISPATCHED, HEAVY, 1, True, 0.0, 0.04))
        seen.append(float(policy.gap_s[0]))
    assert seen[0] == math.inf
    assert (seen[1], seen[199]) == pytest.approx((0.1, 0.1))
    assert seen[-1] == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("late", ["drop", "serve"])
def test_in_a_burst_batches_are_full_and_nobody_is_late(late: str) -> None:
    phis = burst.LIGHT_PHI, burst.HEAVY_PHI
    rate = f"{burst.RATE_PER_S[burst.BURSTY]}/s"
    arrivals = PoissonArrivals.read({"process": "poisson", "rate": rate})
    site = replace(burst.scenario(phis=phis), arrivals=arrivals, late=late)
    found = run(site, queries=20_000, seed=1, warmup=1_000, workers=1)
    assert found.violation_ratio == 0.0
    assert found.goodput == pytest.approx(phase_bound(phis), abs=0.001)


def test_hardly_any_are_late_in_bursts_where_service_times_vary() -> None:
    site = burst.scenario("map", distribution="lognormal", cv=0.2)
    found = run(site, queries=60_000, seed=1, warmup=2_000, workers=1)
    assert found.phases[burst.PHASES["bursty"]].violation_ratio < 0.002  # with a margin of 1, 0.01


def test_a_chance_believes_a_class_to_be_quick_and_its_spread_in_proportion() -> None:
    site, policy = loaded(9, 0, 9), policy_of()
    policy.mean[1], policy.high[1], policy.seen[1], policy.again[1] = 4.0, 6.0, 100, 0
    site.asked[0] = PAUSE - 1
    assert asked(site, 0.1, policy) == LIGHT
    site.asked[0] = PAUSE
    assert asked(site, 0.1, policy) == HEAVY
    assert asked(site, 0.039, policy) == REJECT  # by the site's prediction, too
    policy.learn(site, Event(DISPATCHED, HEAVY, 1, True, 0.0, 0.04, deadline_s=0.1))
    assert asked(site, 0.1, policy) == LIGHT  # one at a time
    policy.learn(site, Event(COMPLETED, HEAVY, 1, True, 0.0, 0.04, 1))
    assert (policy.mean[1], policy.seen[1], policy.chances[1]) == (1.0, 1, 1)
    assert policy.high[1] == pytest.approx(1.5, rel=0.03)
    assert policy.again[1] == PAUSE + 2 * REST
