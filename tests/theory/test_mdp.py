"""The best policy of all: solved queues, an LP over occupations, policies in simulation."""

from __future__ import annotations

import itertools

import naive
import numpy as np
import pytest
from fleets import fleet, paper_fleet
from scipy.optimize import linprog

from inferway.dispatch import Dispatcher, max_rate, solve
from inferway.dispatch.mdp import mdp_bound
from inferway.site import Fleet


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_one_server_is_the_m_m_1_queue(load: float) -> None:
    found = mdp_bound(fleet([2.0], [0.9]), target=None, rate_per_s=2 * load, places=150)
    assert found.response_time_s == pytest.approx(0.5 / (1 - load), rel=1e-4)
    assert found.states == 151
    assert (found.price_s, found.accuracy) == pytest.approx((0.0, 0.9))


def test_two_like_servers_join_the_shorter_queue() -> None:
    # Winston (J. Appl. Prob. 14, 1977): that is the best; by its chain on a large square.
    rate, size = 1.2, 40
    states = list(itertools.product(range(size), repeat=2))
    number = {state: i for i, state in enumerate(states)}
    generator = np.zeros((len(states), len(states)))
    for (x, y), i in number.items():
        shorter = (x + 1, y) if x <= y else (x, y + 1)
        for to, speed in ((shorter, rate), ((x - 1, y), 1.0), ((x, y - 1), 1.0)):
            if to in number:
                generator[i, number[to]] += speed
                generator[i, i] -= speed
    equations = np.vstack([generator.T[:-1], np.ones(len(states))])
    share = np.linalg.solve(equations, np.eye(len(states))[-1])
    expected = share @ np.sum(states, axis=1) / rate
    found = mdp_bound(fleet([1.0], [0.9], [2]), target=None, rate_per_s=rate, places=40)
    assert found.response_time_s == pytest.approx(expected, rel=1e-4)


def by_occupations(of: Fleet, target: float, rate: float, places: int) -> float:
    """The constrained process as one LP over how often each decision is taken in each state."""
    states = list(itertools.product(range(places + 1), repeat=of.servers))
    number = {state: i for i, state in enumerate(states)}
    server_class = np.repeat(np.arange(len(of.rate)), of.count)
    moves = [(i, v) for i in range(len(states)) for v in range(of.servers) if states[i][v] < places]
    moves.append((number[(places,) * of.servers], -1))
    balance = np.zeros((len(states), len(moves)))
    cost, gain = np.zeros(len(moves)), np.zeros(len(moves))
    for column, (i, v) in enumerate(moves):
        state = np.array(states[i])
        cost[column] = state.sum() / rate
        if v >= 0:
            balance[i, column] -= rate
            balance[number[tuple(state + np.eye(of.servers, dtype=int)[v])], column] += rate
            gain[column] = of.accuracy[server_class[v]] - target
        for w in np.flatnonzero(state):
            mu = of.rate[server_class[w]]
            balance[i, column] -= mu
            balance[number[tuple(state - np.eye(of.servers, dtype=int)[w])], column] += mu
    solution = linprog(
        cost,
        A_ub=-gain[None, :],
        b_ub=[0.0],
        A_eq=np.vstack([balance[:-1], np.ones(len(moves))]),
        b_eq=[*np.zeros(len(states) - 1), 1.0],
        method="highs",
    )
    return float(solution.fun)


@pytest.mark.parametrize(
    ("of", "target", "load"),
    [
        (fleet([2.0, 1.0], [0.6, 0.9]), 0.8, 0.4),
        (fleet([2.0, 1.0], [0.6, 0.9]), 0.7, 0.5),
        (fleet([3.0, 1.0], [0.6, 0.9], [1, 2]), 0.8, 0.3),
    ],
)
def test_the_price_gives_what_the_constraint_gives(of: Fleet, target: float, load: float) -> None:
    rate = load * max_rate(of, target)
    found = mdp_bound(of, target=target, rate_per_s=rate, places=9)
    assert found.response_time_s == pytest.approx(by_occupations(of, target, rate, 9), rel=1e-3)
    assert found.accuracy == pytest.approx(target)
    assert 0 <= found.gap_s < 1e-4
    assert found.truncation_s < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.5])
def test_between_the_lp_and_what_policies_reach(load: float) -> None:
    of, target = paper_fleet(1), 0.76
    rate = load * max_rate(of, target)
    found = mdp_bound(of, target=target, rate_per_s=rate, places=10)
    assert found.response_time_s > solve(of, target, rate).response_time_s
    reached = {}
    for name in ("tad-op", "priced"):
        run = naive.simulate(
            Dispatcher(of, name, target=target, rate_per_s=rate), rate, 60_000, 3, naive.exponential
        )
        assert run.accuracy == pytest.approx(target, abs=1e-3)
        reached[name] = run.response_s[5_000:].mean()
        assert found.response_time_s < reached[name]
    # Four servers are too few for routing tuples; a price comes within two percent of the best.
    assert reached["priced"] < 1.02 * found.response_time_s < reached["tad-op"]


def test_fewer_places_bound_from_below() -> None:
    of = fleet([2.0, 1.0], [0.6, 0.9])
    rate = 0.7 * max_rate(of, 0.8)
    exact = mdp_bound(of, target=0.8, rate_per_s=rate, places=60)
    for places in (2, 4, 8):
        found = mdp_bound(of, target=0.8, rate_per_s=rate, places=places)
        assert found.response_time_s <= exact.response_time_s * (1 + 1e-9)


def test_what_is_too_much_is_refused() -> None:
    of = paper_fleet(1)
    with pytest.raises(ValueError, match="not between 0 and the greatest feasible"):
        mdp_bound(of, target=0.76, rate_per_s=1.01 * max_rate(of, 0.76))
    with pytest.raises(ValueError, match=r"64 servers of 12 places have \d+ states"):
        mdp_bound(paper_fleet(), target=0.76, rate_per_s=1.0)
