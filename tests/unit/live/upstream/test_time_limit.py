from __future__ import annotations

import math
from itertools import pairwise

import pytest

from inferway.live.upstream.breaker import LEAST_SHARE, LIMIT_LEAST_S, SHARE, time_limit_s


@pytest.mark.parametrize(
    ("predicted_s", "limit_s"),
    [(0.0, math.inf), (1e-3, LIMIT_LEAST_S), (0.25, 2.0), (1.0, 8.0), (math.inf, math.inf)],
)
def test_a_neighbor_has_a_request_for_eight_times_its_prediction(
    predicted_s: float, limit_s: float
) -> None:
    assert time_limit_s(predicted_s, 0) == limit_s


def test_who_is_nearer_to_what_does_not_answer_takes_back_first() -> None:
    limits = [time_limit_s(0.1, 0, nodes) for nodes in range(8)]
    assert limits[1] == pytest.approx(SHARE * limits[0])
    assert all(next_s < before_s for before_s, next_s in pairwise(limits[:5]))
    assert limits[5:] == [pytest.approx(LEAST_SHARE * LIMIT_LEAST_S)] * 3


def test_a_long_request_has_the_time_that_a_slow_link_takes() -> None:
    assert time_limit_s(0.1, 1_000_000) == pytest.approx(LIMIT_LEAST_S + 4.0)
    assert time_limit_s(0.1, 1_000) == pytest.approx(LIMIT_LEAST_S, rel=0.01)
