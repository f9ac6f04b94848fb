from __future__ import annotations

import math

import pytest

from inferway.live.upstream.breaker import (
    ASK_FIRST_WAIT_S,
    ASK_LONGEST_WAIT_S,
    SUSPECT_LEAST_S,
    SUSPECT_MOST_S,
    Suspicion,
    suspect_after_s,
)


@pytest.mark.parametrize(
    ("predicted_s", "after_s"),
    [
        (0.0, SUSPECT_LEAST_S),
        (0.01, SUSPECT_LEAST_S),
        (0.1, 0.4),
        (0.25, 1.0),
        (10.0, SUSPECT_MOST_S),
        (math.inf, SUSPECT_MOST_S),
    ],
)
def test_a_request_may_be_out_for_four_times_its_prediction(
    predicted_s: float, after_s: float
) -> None:
    assert suspect_after_s(predicted_s) == pytest.approx(after_s)


def test_a_slow_neighbor_is_asked_after_growing_waits_and_anew_when_nothing_was_late() -> None:
    suspicion = Suspicion()
    assert not suspicion.asks(10.0, math.inf)
    assert not suspicion.asks(10.0, 10.1)
    now_s, waits = 10.0, []
    for _ in range(6):
        assert suspicion.asks(now_s, 10.0)
        suspicion.cleared(now_s)
        begun_s = now_s
        while not suspicion.asks(now_s, 10.0):
            now_s += 1 / 64
        waits.append(now_s - begun_s)
    assert waits == [ASK_FIRST_WAIT_S, 2 * ASK_FIRST_WAIT_S, *[ASK_LONGEST_WAIT_S] * 4]
    assert not suspicion.asks(20.0, 20.1)
    assert suspicion.asks(20.2, 20.1)
    suspicion.cleared(20.2)
    assert suspicion.asks(20.2 + ASK_FIRST_WAIT_S, 20.1)


def test_one_that_was_not_cleared_is_asked_again_at_once() -> None:
    suspicion = Suspicion()
    assert suspicion.asks(1.0, 0.9)
    assert suspicion.asks(1.1, 0.9)
