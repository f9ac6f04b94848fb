"""Every policy on random states, against its rule written out in plain Python."""

from __future__ import annotations

import math
from typing import Any

import naive
import numpy as np
import pytest
from fleets import any_fleets, fleet, paper_fleet
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.dispatch import POLICIES, build_policy, max_rate, routing_tuples
from inferway.dispatch.contract import choose
from inferway.dispatch.tad_op import TadOp, scan
from inferway.site import ALL_CLASSES, HOLD, REJECT, Fleet, Request, Site, empty_site
from inferway.site.transitions import admit

PLACES = 6
RATED = {"r-jiq", "r-jsq", "r-jsq-d"}


def site_with(of: Fleet, target: float, queues: list[int], balance: float) -> Site:
    """A site with these queue lengths."""
    site = empty_site(of, target, PLACES)
    for server, length in enumerate(queues):
        for _ in range(length):
            admit(site, server, 1)
    site.balance[0] = balance
    return site


def request_for(site: Site, classes: int = ALL_CLASSES) -> Request:
    """An ordinary request, or one that is restricted to some classes."""
    narrowed = classes != ALL_CLASSES
    in_class = (classes >> site.server_class) & 1 == 1
    return Request(
        0.0, math.inf, 0.0, 0, 1, classes, site.open & in_class if narrowed else site.open, narrowed
    )


@st.composite
def states(draw: st.DrawFn) -> tuple[Fleet, float, Site]:
    of = draw(any_fleets(max_classes=4).filter(lambda f: f.servers <= 30))
    target = draw(st.floats(0.0, 1.0)) * float(of.accuracy.max())
    queues = draw(st.lists(st.integers(0, 4), min_size=of.servers, max_size=of.servers))
    return of, target, site_with(of, target, queues, draw(st.integers(-3000, 3000)) / 1000)


def policy_for(name: str, of: Fleet, target: float) -> object:
    return build_policy(name, of, target=target, rate_per_s=0.6 * max_rate(of, target))


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=60, deadline=None)
@given(states(), st.integers(1, 15), st.integers(-(2**63), 2**63 - 1))
def test_only_servers_that_may_take_it(
    name: str, state: tuple[Fleet, float, Site], classes: int, word: int
) -> None:
    of, target, site = state
    site.open[0] = False  # as if it were full
    policy = policy_for(name, of, target)
    for mask in (ALL_CLASSES, classes & ((1 << len(of.rate)) - 1)):
        request = request_for(site, mask)
        allowed = set(np.flatnonzero(request.allowed).tolist()) - {0}
        if site.queue[0] == 0:
            continue  # an idle server is never full
        server = choose(policy, site, request, word)
        assert server in allowed or server in (REJECT, HOLD)
        if not allowed:
            assert server == REJECT


@settings(max_examples=200, deadline=None)
@given(states(), st.integers(-(2**63), 2**63 - 1))
def test_fixed_orders(state: tuple[Fleet, float, Site], word: int) -> None:
    of, target, site = state
    request = request_for(site)
    by_accuracy = sorted(range(len(of.rate)), key=lambda k: -of.accuracy[k])
    for name, order in {
        "fastest-only": [0],
        "most-accurate-only": by_accuracy[:1],
        "jiq-fast": list(range(len(of.rate))),
        "jiq-accurate": by_accuracy,
    }.items():
        server = choose(policy_for(name, of, target), site, request, word)
        k = int(site.server_class[server])
        idle = [k for k in order if site.idle[k]]
        if idle:
            assert (k, site.queue[server]) == (idle[0], 0), name
        elif name.endswith("-only"):
            low, high = of.first[k : k + 2]
            assert k == order[0]
            assert site.queue[server] == site.queue[low:high].min()


@settings(max_examples=300, deadline=None)
@given(states(), st.integers(-(2**63), 2**63 - 1))
def test_tad(state: tuple[Fleet, float, Site], word: int) -> None:
    of, target, site = state
    k = int(site.server_class[choose(policy_for("tad", of, target), site, request_for(site), word)])
    keeps = [c for c, a in enumerate(of.accuracy) if site.balance[0] + a - target >= -1e-9]
    idle = [c for c in keeps if site.idle[c]]
    if idle:
        assert k == idle[0]
    elif keeps:
        assert k in keeps
    else:
        assert of.accuracy[k] == of.accuracy.max()


@settings(max_examples=500, deadline=None)
@given(states(), st.integers(-(2**63), 2**63 - 1))
def test_tad_op_is_algorithm_2(state: tuple[Fleet, float, Site], word: int) -> None:
    of, target, site = state
    costs = [found.cost_s for found in routing_tuples(of, target)]
    if len(costs) > 1 and np.diff(costs).min() < 1e-9:
        return  # equal costs: the paper leaves the order open
    k = site.server_class[choose(policy_for("tad-op", of, target), site, request_for(site), word)]
    idle = {k for k in range(len(of.rate)) if site.idle[k]}
    busy = {k for k in range(len(of.rate)) if site.busy[k]}
    if idle:
        assert k == naive.tad_op_class(of, target, idle, busy, float(site.balance[0]))


def test_tad_op_by_table_is_tad_op_by_scan() -> None:
    for classes in (1, 3, 5, 8):
        accuracy = np.linspace(0.5, 0.98, classes)
        of = fleet(list(2.0 ** -np.arange(classes)), list(accuracy))
        policy = build_policy("tad-op", of, target=float(accuracy.mean()), rate_per_s=None)
        assert isinstance(policy, TadOp)
        generator = np.random.default_rng(0)
        for word in generator.integers(0, 4**classes, 500):
            idle, busy = int(word) & (2**classes - 1), int(word) >> classes
            for ahead in (False, True):
                assert policy.table[2 * word + ahead] == scan(policy, idle, busy, ahead)


def test_tad_op_beyond_eight_classes_scans() -> None:
    of = fleet(list(2.0 ** -np.arange(10)), list(np.linspace(0.5, 0.95, 10)))
    site = site_with(of, 0.72, [0, 1] * 5, balance=-0.1)
    policy = build_policy("tad-op", of, target=0.72, rate_per_s=None)
    assert isinstance(policy, TadOp)
    assert policy.table.size == 0
    k = int(site.server_class[choose(policy, site, request_for(site), 1)])
    idle = {k for k in range(10) if site.idle[k]}
    assert k == naive.tad_op_class(of, 0.72, idle, set(range(10)) - idle, -0.1)


@settings(max_examples=300, deadline=None)
@given(states(), st.floats(0, 50))
def test_priced(state: tuple[Fleet, float, Site], price: float) -> None:
    of, target, site = state
    policy: Any = build_policy("priced", of, target=target, rate_per_s=None, price=price)
    k = site.server_class
    n = of.count[k]
    others = np.maximum(0, np.bincount(k, site.queue)[k] - n + 1 - site.queue)
    crowd = np.where(site.queue > 0, 0.5 * (n * site.queue + others) / np.sqrt(n), 0.0)
    cost = (1 + 2.3 * site.queue + crowd) / of.rate[k] - policy.price[0] * of.accuracy[k]
    server = choose(policy, site, request_for(site), 0)
    assert cost[server] == pytest.approx(cost.min(), rel=1e-12, abs=1e-12)


def test_random_routing_keeps_an_energy_budget() -> None:
    of = paper_fleet()
    of = Fleet(of.variants, of.rate, of.accuracy, of.count, energy=np.array([1.0, 1.2, 4.0, 3.0]))
    rate = 0.6 * max_rate(of, 0.76, 1.8)
    for name in RATED:
        policy = build_policy(name, of, target=0.76, rate_per_s=rate, energy_budget=1.8)
        for _ in range(2):
            p = policy.probabilities  # type: ignore[attr-defined]
            assert p.sum() == pytest.approx(1)
            assert p @ of.accuracy >= 0.76 - 1e-9
            assert p @ of.energy <= 1.8 + 1e-9
            policy.retune(of, target=0.76, rate_per_s=1.2 * rate)  # type: ignore[attr-defined]
        free = build_policy(name, of, target=0.76, rate_per_s=rate)
        assert free.probabilities @ of.energy > 1.8 + 0.1  # type: ignore[attr-defined]


def test_random_routing_follows_its_probabilities() -> None:
    of = paper_fleet(2)
    site = site_with(of, 0.76, [0] * of.servers, 0)
    for name in RATED:
        policy = policy_for(name, of, 0.76)
        words = np.random.default_rng(3).integers(-(2**63), 2**63, 20_000)
        classes = [
            int(site.server_class[choose(policy, site, request_for(site), int(word))])
            for word in words
        ]
        shares = np.bincount(classes, minlength=4) / len(classes)
        p = policy.probabilities  # type: ignore[attr-defined]
        # Five standard deviations of a multinomial share.
        assert (np.abs(shares - p) <= 5 * np.sqrt(p * (1 - p) / len(words)) + 1e-12).all(), name
        assert p @ of.accuracy >= 0.76 - 1e-9


def test_r_jiq_mixes_in_the_shares_of_the_greatest_rate() -> None:
    # n = 64, load = 1/2: beta = ln 2 / ln 64 = 1/6, gamma = 1/6, weight = 64**(-1/6) = 1/2.
    of = paper_fleet()
    greatest = max_rate(of, 0.76)
    policy = build_policy("r-jiq", of, target=0.76, rate_per_s=greatest / 2)
    at_half = np.array([0.4, 0, 0.6, 0])
    at_full = np.array([32 / 3, 16, 14.4, 1.6])
    surplus = 14.4 * 0.04 + 1.6 * 0.24 - 16 * 0.01
    at_full[0] = surplus / 0.06
    expected = 0.5 * at_half + 0.5 * at_full / at_full.sum()
    assert policy.probabilities == pytest.approx(expected, abs=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["tad", "tad-op", "priced"])
def test_what_tracks_a_target_needs_one(name: str) -> None:
    with pytest.raises(ValueError, match="give the task accuracy_target"):
        build_policy(name, paper_fleet(), target=None, rate_per_s=1.0)


@pytest.mark.parametrize("name", sorted(RATED))
def test_what_needs_the_rate_says_so(name: str) -> None:
    with pytest.raises(ValueError, match="needs the arrival rate"):
        build_policy(name, paper_fleet(), target=0.76, rate_per_s=None)


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown policy 'tadop'"):
        build_policy("tadop", paper_fleet(), target=0.76, rate_per_s=None)
    with pytest.raises(ValueError, match=r"policy tad: .*'speed'"):
        build_policy("tad", paper_fleet(), target=0.76, rate_per_s=None, speed=3)
    with pytest.raises(ValueError, match="d >= 1"):
        build_policy("r-jsq-d", paper_fleet(), target=0.76, rate_per_s=1.0, d=0)
