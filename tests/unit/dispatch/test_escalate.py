"""`escalate` and `settle`: who is asked again, what counts, and what the price does."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferway.deployment import ServiceTime
from inferway.deployment.workloads import Phase, PhasedArrivals, PoissonArrivals
from inferway.dispatch import Dispatcher, PolicyError
from inferway.site import ACCEPT, ALL_CLASSES, ConfidenceTables, Fleet
from inferway.site.confidence import difficulty_tables
from inferway.twin import Scenario, run
from inferway.twin.engine import engine_of

# Two bins each, of the same mass; c has no confidence.
_UNSURE, _SURE = [[0.2, 0.7, 0.8], [0.4, 0.6, 0.85]], [[1.0, 0.9, 1.0], [0.8, 1.0, 0.95]]
_PLAIN = [0.6, 0.8, 0.9]
FLEET = Fleet(
    ("a", "b", "c"),
    np.array([10.0, 5.0, 1.0]),
    np.array(_PLAIN),
    np.array([1, 1, 1]),
    buffer=3,
    confidence=ConfidenceTables(
        np.array([[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]),
        np.array([[_UNSURE[0], _SURE[0]], [_UNSURE[1], _SURE[1]], [_PLAIN, _PLAIN]]),
        np.array([[0.5], [0.5], [np.inf]]),
    ),
)
A, B, C = range(3)
LOW, HIGH = np.array([0.1]), np.array([0.9])  # Confidences of the first and of the second bin
# Prices at which an unsure answer of a goes to b, since c is too slow, and to c.
CHEAP, DEAR = 1.0, 10.0


def dispatcher_of(policy: str = "escalate", fleet: Fleet = FLEET, **options: Any) -> Dispatcher:
    return Dispatcher(fleet, policy, target=0.8, **options)


def answered(
    dispatcher: Dispatcher, server: int = A, *, rows: int = 1, counted: bool = True
) -> float:
    """A request has gone to a server, and its answer has come; what is credited for it."""
    dispatcher.follow(0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, rows, counted, server)
    dispatcher.finish(server, 0.0, 0.1)
    return dispatcher.credit


def settled(
    price: float, confidence: Any, server: int = A, *, fleet: Fleet = FLEET, **asked: Any
) -> int:
    """What becomes of an answer at a price, s per unit of accuracy."""
    dispatcher = dispatcher_of(fleet=fleet)
    credit = answered(dispatcher, server)
    dispatcher.policy.price[0] = price
    return dispatcher.settle(server, 0.0, 1, confidence, credit, **asked)


@pytest.mark.parametrize(
    ("price", "confidence", "server", "expected"),
    [
        (0.3, LOW, A, ACCEPT),  # -.06 against .2 - .21 and 1 - .24
        (CHEAP, LOW, A, B),  # -.2 against .2 - .7 and 1 - .8
        (DEAR, LOW, A, C),  # -2 against .2 - 7 and 1 - 8
        (DEAR, HIGH, A, ACCEPT),
        (CHEAP, LOW, B, ACCEPT),  # -.6 against 1 - .85
        (DEAR, LOW, B, C),  # -6 against 1 - 8.5
        (DEAR, np.array([0.5]), A, ACCEPT),  # the second bin begins there
        (1e9, LOW, C, ACCEPT),  # nothing is known of its answers
    ],
)
def test_another_is_asked_where_it_costs_less_than_it_gains(
    price: float, confidence: Any, server: int, expected: int
) -> None:
    assert settled(price, confidence, server) == expected


@pytest.mark.parametrize(
    ("asked", "price", "expected"),
    [
        ({"deadline_s": 1.0}, DEAR, C),
        ({"deadline_s": 0.99}, DEAR, B),
        ({"deadline_s": 0.19}, DEAR, ACCEPT),
        ({"classes": 0b011}, DEAR, B),
        ({"classes": 0b101}, CHEAP, ACCEPT),
        ({"classes": 0b001}, DEAR, ACCEPT),
        ({"floor": 0.85}, DEAR, C),
        ({"floor": 0.85}, CHEAP, ACCEPT),  # b is below it
        ({"floor": 0.95}, DEAR, ACCEPT),
    ],
)
def test_who_may_not_answer_is_not_asked(asked: Any, price: float, expected: int) -> None:
    assert settled(price, LOW, **asked) == expected


@pytest.mark.parametrize(
    ("floor", "asked", "expected"),
    [
        (0.75, {}, C),  # a's .2 is below it, and c's .8 is not; b's .7 would be
        (0.65, {}, B),  # b's costs less
        (0.65, {"deadline_s": 0.19}, ACCEPT),  # nobody is in time
        (0.65, {"classes": 0b001}, ACCEPT),
        (0.85, {}, ACCEPT),  # c's variant would reach it, and its answer to this one does not
        (0.15, {}, ACCEPT),
    ],
)
def test_an_answer_below_the_request_s_floor_is_asked_again(
    floor: float, asked: Any, expected: int
) -> None:
    """Whatever that costs, here at a price at which nothing pays."""
    assert settled(1e-6, LOW, floor=floor, **asked) == expected
    assert settled(1e-6, HIGH, floor=floor, **asked) == ACCEPT


def test_who_is_full_or_sick_is_not_asked() -> None:
    dispatcher = dispatcher_of()
    credit = answered(dispatcher)
    for _ in range(3):
        dispatcher.follow(0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, True, C)
    dispatcher.policy.price[0] = 1e3  # at which no queue is too long
    assert dispatcher.settle(A, 0.0, 1, LOW, credit) == B
    dispatcher.mark(B, False, 0.0)
    credit = answered(dispatcher)
    dispatcher.policy.price[0] = 1e3
    assert dispatcher.settle(A, 0.0, 1, LOW, credit) == ACCEPT


def test_a_queue_is_part_of_the_cost() -> None:
    dispatcher = dispatcher_of()
    credit = answered(dispatcher)
    dispatcher.follow(0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, True, C)
    dispatcher.policy.price[0] = DEAR
    assert dispatcher.settle(A, 0.0, 1, LOW, credit) == B


def test_of_the_class_that_has_answered_no_other_server_is_asked() -> None:
    """Even where it stands in the bins as better than itself."""
    twins = replace(FLEET, count=np.array([3, 1, 1]))
    dispatcher = dispatcher_of(fleet=twins)
    for server in (3, 4):
        dispatcher.mark(server, False, 0.0)
    credit = answered(dispatcher, 1)
    dispatcher.policy.price[0] = 1e6
    assert dispatcher.settle(1, 0.0, 1, LOW, credit) == ACCEPT


def test_the_balance_counts_what_is_expected_of_what_is_sent() -> None:
    dispatcher = dispatcher_of()
    credit = answered(dispatcher)
    assert (credit, dispatcher.balance) == pytest.approx((0.6, -0.2))
    dispatcher.policy.price[0] = CHEAP
    assert dispatcher.settle(A, 0.0, 1, LOW, credit) == B
    assert (dispatcher.credit, dispatcher.balance) == pytest.approx((0.7, -0.1))
    assert dispatcher.site.queue.tolist() == [0, 1, 0]
    assert dispatcher.predicted_service_s == pytest.approx(0.2)
    dispatcher.finish(B, 0.2, 0.2)
    # Whatever its own confidence, a second answer is sent.
    assert dispatcher.settle(B, 0.2, 1, LOW, dispatcher.credit, count=2) == ACCEPT
    assert (dispatcher.credit, dispatcher.balance) == pytest.approx((0.7, -0.1))
    credit = answered(dispatcher)
    assert dispatcher.settle(A, 0.0, 1, HIGH, credit) == ACCEPT
    assert (dispatcher.credit, dispatcher.balance) == pytest.approx((1.0, 0.1))


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(("in_hand", "balance"), [(0.2, -0.6), (math.nan, 0.0)])
def test_who_leaves_the_second_server_falls_back(
    ahead: int, in_hand: float, balance: float
) -> None:
    dispatcher = dispatcher_of()
    for _ in range(ahead):  # a pinned one, which the balance leaves alone
        dispatcher.follow(0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, False, B)
    credit = answered(dispatcher)
    dispatcher.settle(A, 0.0, 1, LOW, credit, taken=B)
    dispatcher.fall_back(B, ahead, 0.1, first=A, in_hand=in_hand, credit=dispatcher.credit)
    assert dispatcher.site.queue.tolist() == [0, ahead, 0]
    assert dispatcher.balance == pytest.approx(balance)


def test_what_falls_back_is_settled_and_what_is_broken_off_is_not() -> None:
    dispatcher = dispatcher_of()
    for in_hand in (0.2, math.nan):
        before = dispatcher.policy.record.copy()
        credit = answered(dispatcher)
        dispatcher.settle(A, 0.0, 1, LOW, credit, taken=B)
        dispatcher.fall_back(B, 0, 0.1, first=A, in_hand=in_hand, credit=dispatcher.credit)
        told = dispatcher.policy.record[2] != before[2]
        assert told == (not math.isnan(in_hand))


def test_a_pinned_request_is_not_asked_again() -> None:
    dispatcher = dispatcher_of()
    credit = answered(dispatcher, counted=False)
    dispatcher.policy.price[0] = DEAR
    price, record = dispatcher.policy.price.copy(), dispatcher.policy.record.copy()
    assert dispatcher.settle(A, 0.0, 1, LOW, credit, counted=False) == ACCEPT
    assert dispatcher.balance == 0.0
    assert (dispatcher.policy.price == price).all()
    assert (dispatcher.policy.record == record).all()


@pytest.mark.parametrize(
    ("confidence", "credit", "expected"),
    [([0.1, 0.9], 0.8, B), ([0.9, 0.9], 1.0, ACCEPT), ([0.1, 0.1], 0.7, B)],
)
def test_rows_count_by_their_mean(confidence: list[float], credit: float, expected: int) -> None:
    dispatcher = dispatcher_of()
    first = answered(dispatcher, rows=2)
    assert dispatcher.balance == pytest.approx(-0.4)
    dispatcher.policy.price[0] = 1.5  # of the mixed one: -.9 against .2 - 1.2 and 1 - 1.35
    assert dispatcher.settle(A, 0.0, 1, np.array(confidence), first, rows=2) == expected
    assert dispatcher.credit == pytest.approx(credit)
    assert dispatcher.balance == pytest.approx(2 * (credit - 0.8))


@pytest.mark.parametrize(("server", "confidence"), [(A, np.zeros(0)), (C, LOW)])
def test_an_answer_of_which_nothing_is_known_counts_as_its_class(
    server: int, confidence: Any
) -> None:
    dispatcher = dispatcher_of()
    credit = answered(dispatcher, server)
    dispatcher.policy.price[0] = DEAR
    assert dispatcher.settle(server, 0.0, 1, confidence, credit) == ACCEPT
    assert dispatcher.credit == credit == _PLAIN[server]
    assert dispatcher.balance == pytest.approx(_PLAIN[server] - 0.8)


@pytest.mark.parametrize(
    ("price", "deadline_s", "expected"),
    [
        # By way of a .1 - .6 p - max(.25 p - .1, .3 p - .5), of b .2 - .8 p - max(0, .125 p - .5).
        (CHEAP, np.inf, A),  # -.65 against -.6, and -.5 without a second
        (DEAR, np.inf, B),  # -8.4 against -8.55
        (CHEAP, 0.31, A),
        (CHEAP, 0.29, B),  # no time for a second
        (0.05, np.inf, A),
    ],
)
def test_the_first_choice_looks_ahead(price: float, deadline_s: float, expected: int) -> None:
    dispatcher = dispatcher_of(price=price)
    assert dispatcher.policy.price[0] == price
    assert dispatcher.arrive(0.0, 1, deadline_s) == expected


def test_the_first_choice_sees_the_queue_of_the_second() -> None:
    """With b busy, a second answer there is worth nothing, and a first one neither."""
    dispatcher = dispatcher_of(price=CHEAP)
    dispatcher.follow(0.0, 1, np.inf, 0.0, 0, ALL_CLASSES, 1, False, B)
    assert dispatcher.arrive(0.0, 1) == A
    assert dispatcher.policy.plans[A] == pytest.approx(0.6)
    dispatcher.withdraw(B, 0, 0.0, counted=False)
    dispatcher.finish(A, 0.0, 0.1)
    dispatcher.policy.price[0] = CHEAP
    assert dispatcher.arrive(0.0, 1) == A
    assert dispatcher.policy.plans[A] == pytest.approx(0.6 + 0.5 * 0.5)


def test_no_class_is_left_out_that_would_be_the_best() -> None:
    """At any price, with any queues, and where services become quicker or slower than they were."""
    random = np.random.default_rng(5)
    accuracy = np.array([0.6, 0.7, 0.8, 0.85, 0.9])
    tables = difficulty_tables(accuracy, 0.8, 0.8)
    fleet = Fleet(
        tuple("abcde"),
        np.array([100.0, 50.0, 20.0, 8.0, 1.0]),
        accuracy,
        np.array([1, 2, 1, 1, 1]),
        confidence=tables,
    )
    dispatcher = dispatcher_of(fleet=fleet)
    site, policy = dispatcher.site, dispatcher.policy
    classes, chosen = range(5), set[int]()
    gain = tables.expected - np.diagonal(tables.expected, axis1=0, axis2=2).T[:, :, None]
    for _ in range(400):
        policy.price[0] *= random.choice([0.3, 0.97, 0.99, 1.01, 1.03, 3.0])
        policy.price[0] = min(max(policy.price[0], 1e-3), 1e3)
        drift = random.choice([1.0, 1.0, 0.995, 1.01, 0.8, 1.3], 5)
        site.rate[:] = np.clip(site.rate * drift, 0.5 * fleet.rate, 2.0 * fleet.rate)
        price, cost_s = float(policy.price[0]), np.zeros(5)
        for k in classes:
            servers = range(int(site.first[k]), int(site.first[k + 1]))
            queue = min(int(site.queue[server]) for server in servers)
            crowd = max(0, int(site.in_system[k]) - len(servers) + 1 - queue)
            crowd = 0.5 / len(servers) ** 0.5 * (len(servers) * queue + crowd) if queue else 0.0
            cost_s[k] = (1.0 + policy.wait * queue + crowd) / site.rate[k]
        # (K, K) of a second class in all bins in which it pays, less what is paid without it.
        pays = np.minimum(0.0, cost_s - price * gain).transpose(0, 2, 1)
        then_s = (tables.mass[:, None, :] * pays).sum(axis=2)
        total_s = cost_s - price * tables.expected_accuracy() + then_s.min(axis=1)
        server = dispatcher.arrive(0.0, 1, counted=False)
        best = int(site.server_class[server])
        assert total_s[best] == pytest.approx(total_s.min(), rel=1e-9)
        chosen.add(best)
        while random.random() < 0.6:
            (busy,) = np.nonzero(site.queue)
            if len(busy):
                dispatcher.finish(int(random.choice(busy)), 0.0, 0.0)
    assert len(chosen) > 3  # the last is worth more after another


def test_build_says_what_is_missing() -> None:
    with pytest.raises(ValueError, match="give the task accuracy_target"):
        Dispatcher(FLEET, "escalate", target=None)
    with pytest.raises(ValueError, match="inferway profile FILE --data TEST --write"):
        dispatcher_of(fleet=replace(FLEET, confidence=None))


# --- a policy of the user's own


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy that asks a server of any number where class a is not sure."""
    file = tmp_path_factory.mktemp("own") / "mine.py"
    file.write_text(
        "from typing import NamedTuple\n"
        "from inferway.site import ACCEPT\n"
        "class Mine(NamedTuple):\n"
        "    number: int\n"
        "    @classmethod\n"
        "    def build(cls, fleet, *, target, rate_per_s, number):\n"
        "        return cls(number)\n"
        "    def choose(self, site, request, draw):\n"
        "        return 0\n"
        "    def settle(self, site, request, answer, draw):\n"
        "        return self.number if answer.expected[0] < 0.5 else ACCEPT\n"
    )
    return f"{file}:Mine"


@pytest.mark.parametrize(
    ("number", "confidence", "expected"),
    [(C, LOW, C), (C, HIGH, ACCEPT), (A, LOW, ACCEPT), (ACCEPT, LOW, ACCEPT)],
)
def test_a_policy_of_ones_own_settles(
    mine: str, number: int, confidence: Any, expected: int
) -> None:
    dispatcher = dispatcher_of(mine, number=number)
    assert dispatcher.settles
    credit = answered(dispatcher)
    assert dispatcher.settle(A, 0.0, 1, confidence, credit) == expected


def test_a_settle_that_always_says_the_same_compiles(mine: str, tmp_path: Path) -> None:
    """The compiler then leaves out what looks at servers."""
    text = Path(mine.partition(":")[0]).read_text()
    decision = "self.number if answer.expected[0] < 0.5 else ACCEPT"
    assert decision in text
    (tmp_path / "always.py").write_text(text.replace(decision, "ACCEPT"))
    dispatcher = dispatcher_of(f"{tmp_path / 'always.py'}:Mine", number=0)
    credit = answered(dispatcher)
    assert dispatcher.settle(A, 0.0, 1, LOW, credit) == ACCEPT


@pytest.mark.parametrize("number", [3, -1, -2, -9])
def test_a_decision_on_an_answer_that_is_none_is_said(mine: str, number: int) -> None:
    dispatcher = dispatcher_of(mine, number=number)
    credit = answered(dispatcher)
    said = "mine.py:Mine returned a number that is neither a server of 0..2 nor ACCEPT"
    with pytest.raises(PolicyError, match=said):
        dispatcher.settle(A, 0.0, 1, LOW, credit)
    assert dispatcher.balance == pytest.approx(-0.2)


def test_a_simulated_decision_on_an_answer_that_is_none_is_said(mine: str) -> None:
    said = "neither a server of 0..8 nor REJECT nor HOLD, nor of an answer ACCEPT"
    with pytest.raises(PolicyError, match=said):
        run(scenario_of(mine, options={"number": 9}), queries=10, warmup=0)


# --- what the price does


def scenario_of(policy: str = "escalate", **given: Any) -> Scenario:
    usual: dict[str, Any] = {
        "fleet": replace(FLEET, count=np.array([3, 3, 3]), buffer=None),
        "arrivals": PoissonArrivals.read({"process": "poisson", "rate": "5/s"}),
        "target": 0.85,
    }
    service = tuple(ServiceTime("exponential", 1 / rate) for rate in FLEET.rate.tolist())
    return Scenario(service=service, policy=policy, **{**usual, **given})


def test_a_price_that_plans_too_little_rises() -> None:
    engine = engine_of(scenario_of(options={"price": 0.05}), seed=1)
    start = float(engine.policy.price[0])
    assert start < 0.2
    engine.advance(1500)
    assert engine.policy.price[0] > 2 * start
    high = engine_of(scenario_of(options={"price": 100.0}), seed=1)
    high.advance(1500)
    assert high.policy.price[0] < 50.0


@pytest.mark.parametrize("balance", [-300.0, 0.0, 300.0])
def test_the_balance_is_brought_back(balance: float) -> None:
    """A debt is paid, and a surplus spent."""
    scenario = scenario_of(balance=balance)
    result = run(scenario, queries=20_000, warmup=0, seed=3, workers=1)
    assert abs(result.balance) < 100.0
    assert (result.accuracy.mean - 0.85) * 20_000 == pytest.approx(result.balance - balance, abs=20)


@pytest.mark.parametrize("policy", ["escalate", "priced"])
def test_a_price_of_what_was_out_of_reach_for_long_still_counts(policy: str) -> None:
    """Afterwards what is owed is paid back; a price without end would not tell classes apart."""
    hard = Phase.read({"for": "20000 s", "rate": "80/s"})
    light = Phase.read({"for": "40000 s", "rate": "0.3/s"})
    scenario = scenario_of(
        policy,
        arrivals=PhasedArrivals(process="phases", phases=(hard, light)),
        fleet=replace(FLEET, count=np.array([3, 3, 3])),
    )
    engine = engine_of(scenario, seed=1)
    engine.advance(10**9, until_s=20_000.0)
    assert engine.site.balance[0] < -1000.0
    assert np.isfinite(engine.policy.price[0])
    owed = float(engine.site.balance[0])
    engine.advance(3000)
    assert engine.site.balance[0] > owed + 0.04 * 3000
