"""`priced`: with one price as it always was, with two it keeps both means."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.dispatch import Dispatcher, max_rate, solve
from inferway.site import Fleet

FLEET = Fleet(
    ("a", "b", "c", "d"),
    np.array([2.0, 1.0, 0.9, 0.1]),
    np.array([0.7, 0.75, 0.8, 1.0]),
    np.array([4, 4, 4, 4]),
    energy=np.array([1.0, 1.2, 4.0, 3.0]),
    buffer=50,
)
TARGET = 0.76


def by_one_price(dispatcher: Dispatcher, price: float, wait: float) -> int:
    """The rule as it was before there was a second price, written out on the site."""
    site, best, least = dispatcher.site, -1, np.inf
    for k, accuracy in enumerate(site.accuracy):
        cost = 1.0 / site.rate[k] - price * accuracy
        if cost < least and site.idle[k] > 0:
            best, least = int(site.idle_server[site.first[k] + site.idle[k] - 1]), cost
    for k, accuracy in enumerate(site.accuracy):
        for server in range(site.first[k], site.first[k + 1]):
            cost = (1.0 + wait * site.queue[server]) / site.rate[k] - price * accuracy
            if site.queue[server] and cost < least and site.open[server]:
                best, least = server, cost
    return best


def test_without_a_budget_every_decision_and_every_price_is_as_with_one_price() -> None:
    rate = 0.9 * max_rate(FLEET, TARGET)
    dispatcher = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=rate)
    policy, generator = dispatcher.policy, np.random.default_rng(5)
    assert policy.price.shape == (2,)
    price, wait, now, busy = float(policy.price[0]), policy.wait, 0.0, 0
    for _ in range(4_000):
        now += generator.exponential(1 / rate)
        for server in np.flatnonzero(dispatcher.site.queue):
            k = dispatcher.site.server_class[server]
            if generator.random() < 0.9 * dispatcher.site.rate[k] / rate:
                dispatcher.finish(int(server), now, 0.1)
        expected = by_one_price(dispatcher, price, wait)
        busy += bool(dispatcher.site.queue[expected])
        assert dispatcher.arrive(now, 1) == expected
        k = dispatcher.site.server_class[expected]
        price = max(0.0, price + policy.step * (TARGET - dispatcher.site.accuracy[k]))
        assert policy.price.tolist() == [price, 0.0]
    assert busy > 100


def test_the_prices_start_above_the_bounds() -> None:
    rate = 0.5 * max_rate(FLEET, TARGET, 1.8)
    policy = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=rate, energy_budget=1.8).policy
    optimum = solve(FLEET, TARGET, rate, 1.8)
    assert optimum.price_s < policy.price[0]
    assert 0 < optimum.energy_price_s < policy.price[1]


def test_a_withdrawn_request_gives_its_energy_back() -> None:
    rate = 0.5 * max_rate(FLEET, TARGET, 1.8)
    dispatcher = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=rate, energy_budget=1.8)
    before = dispatcher.policy.price.copy()
    server = dispatcher.arrive(0.0, 1, rows=3)
    assert (dispatcher.policy.price != before).all()
    dispatcher.withdraw(server, 0, 0.0)
    assert dispatcher.policy.price == pytest.approx(before, rel=1e-12)
