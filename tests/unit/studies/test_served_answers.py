"""What a server says of its answers, held against their labels."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.loadgen import Record
from inferway.studies.queueing.served_answers import LEAST, by_bin


def record_of(variant: list[int], expected: list[float], right: list[bool]) -> Record:
    """One answer of each of so many originals."""
    count = len(variant)
    times = np.arange(count, dtype=float)
    return Record(
        task="digits",
        variants=("a", "b"),
        intended_s=times,
        sent_s=times,
        done_s=times,
        status=np.full(count, 200, np.int16),
        variant=np.array(variant, np.int16),
        predicted_class=np.where(right, 3, 4).astype(np.int32),
        predicted_s=np.full(count, np.nan),
        item=np.arange(count, dtype=np.int32),
        label=np.full(count, 3, np.int32),
        waited=np.zeros(count, np.bool_),
        cpu_s=0.0,
        generated=count,
        expected=np.array(expected),
    )


def test_bins_are_of_one_variant_and_one_promise() -> None:
    variant = [0] * 60 + [1] * 40 + [0] * (LEAST - 1)
    expected = [0.5] * 20 + [0.9] * 40 + [0.9] * 40 + [0.1] * (LEAST - 1)
    right = [True, False] * 10 + [True] * 36 + [False] * 4 + [True] * 40 + [False] * (LEAST - 1)
    record = record_of(variant, expected, right)
    found = by_bin(record, seed=1)
    assert found["promised"] == [0.5, 0.9, 0.9]
    assert found["observed"] == [0.5, 0.9, 1.0]
    assert found["weight"] == pytest.approx(np.array([20, 40, 40]) / len(record))
    assert found["left_out"] == pytest.approx((LEAST - 1) / len(record))
    assert found["low"][0] < 0.4  # type: ignore[index]
    assert found["high"][0] > 0.6  # type: ignore[index]


def test_answers_of_which_nothing_is_said_are_no_bin() -> None:
    found = by_bin(record_of([0] * 20, [np.nan] * 20, [True] * 20), seed=1)
    assert found["promised"] == []
