"""Totals over tasks: each counts by its requests and answers, and what is not known is not told."""

from __future__ import annotations

import math

import pytest

from inferway.dispatch.totals import TaskCounts, totals_of

BUSY = TaskCounts(requests=300, answers=240, accuracy_sum=192, in_time=180, in_time_sum=150)
QUIET = TaskCounts(requests=100, answers=60, accuracy_sum=54, in_time=60, in_time_sum=54)


def test_tasks_count_by_their_requests_and_answers() -> None:
    found = totals_of({"busy": BUSY, "quiet": QUIET}, span_s=10.0)
    assert found is not None
    assert found.accuracy == pytest.approx(246 / 300)
    assert found.goodput == pytest.approx(204 / 400)
    assert found.goodput_per_s == pytest.approx(20.4)
    assert found.in_time_per_s == pytest.approx(24.0)
    assert found.violation_ratio == pytest.approx(160 / 400)
    assert found.shares == {"busy": pytest.approx(0.8), "quiet": pytest.approx(0.2)}


def test_a_single_task_has_no_totals() -> None:
    assert totals_of({"busy": BUSY}) is None


def test_what_is_not_known_is_none_in_json() -> None:
    unknown = QUIET._replace(accuracy_sum=math.nan, in_time_sum=math.nan)
    found = totals_of({"busy": BUSY, "quiet": unknown})
    assert found is not None
    assert found.to_json() == {
        "accuracy": None,
        "goodput": None,
        "goodput_per_s": None,
        "in_time_per_s": None,
        "violation_ratio": 0.4,
        "shares": {"busy": 0.8, "quiet": 0.2},
    }
    nothing = totals_of(dict.fromkeys("ab", TaskCounts(0, 0, 0.0, 0, 0.0)))
    assert nothing is not None
    assert nothing.to_json()["shares"] == {"a": None, "b": None}
