from __future__ import annotations

import pytest

from inferway.live.instance import RetryBudget
from inferway.live.upstream.breaker import (
    FAILURES,
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    CircuitBreaker,
)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_failures_in_a_row_open_it_and_an_answer_in_between_does_not() -> None:
    breaker = CircuitBreaker(Clock())
    for _ in range(FAILURES - 1):
        assert not breaker.failed()
    assert not breaker.succeeded()
    for _ in range(FAILURES - 1):
        assert not breaker.failed()
    assert breaker.allows()
    assert breaker.closed
    assert breaker.failed()
    assert not breaker.closed
    assert not breaker.allows()


def test_one_certain_failure_opens_it() -> None:
    breaker = CircuitBreaker(Clock())
    assert breaker.failed(certain=True)
    assert not breaker.allows()


def test_half_open_lets_one_probe_through_at_a_time() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    breaker.failed(certain=True)
    clock.now_s += FIRST_WAIT_S
    assert breaker.allows()
    assert not breaker.allows()
    assert not breaker.closed
    assert breaker.succeeded()
    assert breaker.closed
    assert breaker.allows()
    assert breaker.allows()


def test_waits_between_probes_double_up_to_the_longest_and_begin_anew() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    breaker.failed(certain=True)
    waits = []
    for _ in range(8):
        waits.append(breaker.due_s - clock.now_s)
        clock.now_s = breaker.due_s
        assert breaker.allows()
        assert not breaker.failed()
    assert waits[:4] == pytest.approx([FIRST_WAIT_S * 2**i for i in range(4)])
    assert waits[-1] == pytest.approx(LONGEST_WAIT_S)
    breaker.succeeded()
    breaker.failed(certain=True)
    assert breaker.due_s - clock.now_s == pytest.approx(FIRST_WAIT_S)


def test_retries_are_a_share_of_requests() -> None:
    budget = RetryBudget(0.2, first=2.0)
    assert [budget.spend() for _ in range(4)] == [True, True, False, False]
    spent = 0
    for _ in range(1000):
        budget.earn()
        spent += budget.spend()
    assert spent == pytest.approx(200, abs=1)
    assert budget.spent == 2 + spent
    assert budget.refused == 1002 - spent


def test_what_is_saved_up_is_bounded() -> None:
    budget = RetryBudget(0.2, first=3.0)
    for _ in range(1000):
        budget.earn()
    assert sum(budget.spend() for _ in range(10)) == 3


def test_on_trial_a_success_closes_it_and_a_failure_opens_it_for_longer() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    breaker.failed(certain=True)
    for i in range(1, 4):
        clock.now_s = breaker.due_s
        assert breaker.allows()
        breaker.probed()
        assert (breaker.trial, breaker.closed) == (True, False)
        assert not breaker.failed()
        assert not breaker.trial
        assert breaker.due_s - clock.now_s == pytest.approx(FIRST_WAIT_S * 2**i)
    breaker.probed()
    assert breaker.succeeded()
    assert (breaker.trial, breaker.closed) == (False, True)
    breaker.failed(certain=True)
    assert breaker.due_s - clock.now_s == pytest.approx(FIRST_WAIT_S)
