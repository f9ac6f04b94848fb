"""The verdict on a promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from inferway.dispatch.promise import Promise, overloads, promise_of
from inferway.site import Fleet


def of(answers: int, mean: float, **stated: float | bool) -> Promise:
    promise = promise_of(0.9, answers, answers * mean, **stated)  # type: ignore[arg-type]
    assert promise is not None
    return promise


def test_without_a_target_nothing_is_promised() -> None:
    assert promise_of(None, 5_000, 4_000.0) is None


@pytest.mark.parametrize(
    ("answers", "mean", "stated", "state"),
    [
        (0, 0.0, {}, "unknown"),
        (1_999, 0.5, {}, "unknown"),
        (2_000, 0.8994, {}, "missed"),
        (2_000, 0.8994, {"overloaded": True}, "missed"),
        (2_000, 0.8996, {}, "at-risk"),
        (2_000, 0.91, {"balance": -0.1}, "at-risk"),
        (2_000, 0.91, {"overloaded": True}, "at-risk"),
        (2_000, 0.91, {}, "kept"),
        (2_000, 0.8996, {"balance": 0.0}, "kept"),
    ],
)
def test_the_verdict(answers: int, mean: float, stated: dict[str, float], state: str) -> None:
    assert of(answers, mean, **stated).state == state


def test_what_is_said() -> None:
    promise = of(4_000, 0.92)
    assert promise.to_json() == {
        "target": 0.9,
        "mean": pytest.approx(0.92),
        "by": "profile",
        "state": "kept",
        "balance": pytest.approx(80.0),
        "answers": 4_000,
        "labels": None,
    }
    assert promise.margin == pytest.approx(0.02)
    assert of(0, 0.0).mean is None
    assert of(0, 0.0).margin is None


def test_a_rate_is_held_against_the_greatest_at_the_target() -> None:
    fleet = Fleet(("a", "b"), np.array([10.0, 1.0]), np.array([0.5, 1.0]), np.array([1, 1]))
    assert not overloads(1.9, fleet, 0.75)
    assert overloads(2.1, fleet, 0.75)
    assert not overloads(2.1, fleet, 0.6)
    assert not overloads(math.nan, fleet, 0.75)
    assert overloads(0.1, fleet, 1.1)
