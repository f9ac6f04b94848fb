"""`priced`: the rule as its text says, and with two prices it keeps both means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from inferway.dispatch import Dispatcher, max_rate, solve
from inferway.site import Fleet
from inferway.site.devices import DeviceSlots
from inferway.site.view import copied

FLEET = Fleet(
    ("a", "b", "c", "d"),
    np.array([2.0, 1.0, 0.9, 0.1]),
    np.array([0.7, 0.75, 0.8, 1.0]),
    np.array([4, 4, 4, 4]),
    energy=np.array([1.0, 1.2, 4.0, 3.0]),
    buffer=50,
)
TARGET = 0.76


class ByTheText:
    """The rule of the module's docstring, written out on the site, one step after the other."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        policy = dispatcher.policy
        self.site, self.span, self.wait = dispatcher.site, policy.span, policy.wait
        self.least, self.base, self.price = policy.least, float(policy.price[0]), policy.price[0]
        self.bank, self.answers = 0.0, 0

    def choose(self) -> int:
        site, costs = self.site, {}
        for server, k in enumerate(site.server_class):
            q, n = int(site.queue[server]), int(site.first[k + 1] - site.first[k])
            at_class = int(site.queue[site.first[k] : site.first[k + 1]].sum())
            others = max(0, at_class - n + 1 - q)
            crowd = 0.5 * (n * q + others) / np.sqrt(n) if q else 0.0
            cost = (1 + self.wait * q + crowd) / site.rate[k] - self.price * site.accuracy[k]
            if site.open[server]:
                costs[server] = cost
        least = min(costs.values())
        cheapest = [server for server, cost in costs.items() if cost < least + 1e-12]
        idle = [server for server in cheapest if not site.queue[server]]
        if not idle:
            return cheapest[0]
        k = site.server_class[idle[0]]
        return int(site.idle_server[site.first[k] + site.idle[k] - 1])

    def learn(self, k: int, rows: int) -> None:
        gain = rows * (self.site.accuracy[k] - TARGET) / self.span
        self.answers += rows
        self.bank = min(2000.0, self.bank + gain)
        short = max(0.0, 20.0 - self.bank) / 5
        gate = max(1 / 150, 1 / (5 + self.answers / 20))
        push = min(np.log(1 + short), 1.0) / min(5000.0, 300 + self.answers / 2)
        self.base = max(self.least, self.base * np.exp(push - gate * gain))
        self.price = self.base * min(1 + short, 150.0)


def test_every_decision_and_every_price_is_the_texts() -> None:
    rate = 0.9 * max_rate(FLEET, TARGET)
    dispatcher = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=rate)
    generator, now, busy = np.random.default_rng(5), 0.0, 0
    text, k_of = ByTheText(dispatcher), dispatcher.site.server_class
    for step in range(4_000):
        now += generator.exponential(1 / rate)
        for server in np.flatnonzero(dispatcher.site.queue):
            if generator.random() < 0.9 * dispatcher.site.rate[k_of[server]] / rate:
                dispatcher.finish(int(server), now, 0.1)
        expected = text.choose()
        busy += bool(dispatcher.site.queue[expected])
        rows = 1 + step % 3
        assert dispatcher.arrive(now, 1, rows=rows) == expected
        text.learn(k_of[expected], rows)
        if step % 17 == 0:
            dispatcher.withdraw(expected, int(dispatcher.site.queue[expected]) - 1, now)
            text.learn(k_of[expected], -rows)
        assert dispatcher.policy.price.tolist() == pytest.approx([text.price, 0.0], rel=1e-9)
    assert busy > 100


def test_at_a_crowded_device_no_other_server_is_cheaper() -> None:
    cores = DeviceSlots(
        names=("cpu",),
        slots=np.array([2]),
        exclusive=np.zeros(1, bool),
        overhead_s=np.zeros(1),
        device=np.zeros(4, np.int64),
        taken=np.ones(4, np.int64),
    )
    rate = np.array([2.0, 1.0, 0.9, 0.7])
    fleet = replace(FLEET, rate=rate, count=np.array([1, 2, 2, 1]), devices=cores)
    dispatcher = Dispatcher(fleet, "priced", target=TARGET)
    generator, site, taken = np.random.default_rng(3), dispatcher.site, set()
    for now_s in np.cumsum(generator.exponential(0.55, 600)).tolist():
        for server in np.flatnonzero(site.devices.holds & (site.ends_s <= now_s)).tolist():
            dispatcher.end_run(server, now_s)
            dispatcher.finish(server, now_s, 1.0)
            if (following := dispatcher.next_turn(server, now_s)) >= 0:
                dispatcher.start_run(following, 1, now_s)
        was, price = copied(site), float(dispatcher.policy.price[0])
        server = dispatcher.arrive(now_s, int(generator.integers(2**62)))
        if was.devices.used[0] == 2:
            of = site.devices
            left_s = np.maximum(0, was.ends_s - now_s) + was.free_s - was.ends_s
            own_s = np.where(was.queue > 0, left_s, 0.0)
            own_s += np.where(was.devices.holds, 0.0, max(0.0, of.runs_end_s[0, 0] - now_s))
            wait_s = np.maximum(own_s, of.free_s[0, 0] - now_s)
            delayed = 1 + (dispatcher.policy.wait - 0.5) * np.maximum(
                was.queue.sum() / 2, was.queue
            )
            k = site.server_class
            cost_s = wait_s + delayed / site.rate[k] - price * site.accuracy[k]
            cost_s[~was.open] = np.inf
            assert cost_s[server] == pytest.approx(cost_s.min(), abs=1e-7)
            taken.add(int(k[server]))
        if dispatcher.ask_turn(server, now_s, now_s):
            dispatcher.start_run(server, 1, now_s)
    assert len(taken) > 2, taken


def test_the_span_is_of_the_classes_that_the_bound_mixes() -> None:
    fleet = Fleet(
        ("tiny", "medium", "large"),
        np.array([1000.0, 200.0, 100.0]),
        np.array([0.4, 0.90, 0.93]),
        np.array([1, 1, 1]),
        buffer=15,
    )
    policy = Dispatcher(fleet, "priced", target=0.92, rate_per_s=30.0).policy
    assert policy.span == pytest.approx(0.03)


def test_another_target_has_the_price_learned_anew() -> None:
    dispatcher = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=1.0)
    memory, site = dispatcher.policy.memory, dispatcher.site
    memory[2] = 50_000.0
    dispatcher.finish(dispatcher.arrive(0.0, 1), 0.0, 0.1)
    before = memory.copy()
    site.target[0] = 0.9
    k = site.server_class[dispatcher.arrive(0.1, 1)]
    assert memory[2:].tolist() == [1.0, 0.9]
    # The gate is a fifth again, and the gain one of all accuracies.
    gain = (site.accuracy[k] - 0.9) / float(np.ptp(FLEET.accuracy))
    push = 1.0 / 300.5
    assert memory[0] == pytest.approx(before[0] * np.exp(push - gain / 5.05), rel=1e-6)


def test_the_bank_never_holds_more_than_the_balance() -> None:
    """Whoever takes over a task that owes something owes it, too."""
    dispatcher = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=1.0)
    dispatcher.share_balance(np.array([-4.0]))
    dispatcher.arrive(0.0, 1)
    bank = dispatcher.policy.memory[1]
    assert bank == pytest.approx(dispatcher.balance / dispatcher.policy.span)
    assert bank < -4.0


def test_the_prices_start_above_the_bounds() -> None:
    rate = 0.5 * max_rate(FLEET, TARGET, 1.8)
    policy = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=rate, energy_budget=1.8).policy
    optimum = solve(FLEET, TARGET, rate, 1.8)
    assert optimum.price_s < policy.price[0] == policy.memory[0]
    assert 0 < optimum.energy_price_s < policy.price[1]


def test_a_withdrawn_request_gives_back_what_it_earned_and_used() -> None:
    rate = 0.5 * max_rate(FLEET, TARGET, 1.8)
    dispatcher = Dispatcher(FLEET, "priced", target=TARGET, rate_per_s=rate, energy_budget=1.8)
    policy, before = dispatcher.policy, dispatcher.policy.price[1]
    server = dispatcher.arrive(0.0, 1, rows=3)
    assert policy.price[1] != before
    assert policy.memory[1:3].all()
    dispatcher.withdraw(server, 0, 0.0)
    assert policy.price[1] == pytest.approx(before, rel=1e-12)
    assert policy.memory[1:3] == pytest.approx([0.0, 0.0], abs=1e-12)
