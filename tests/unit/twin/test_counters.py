"""Histograms of response times."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.twin.kernel.state import BUCKETS, bucket, quantiles

count = getattr(bucket, "py_func", bucket)


def histogram(values: list[float]) -> np.ndarray:
    found = np.zeros(BUCKETS, np.int64)
    for value in values:
        found[count(value)] += 1
    return found


@given(st.floats(1e-11, 1e11))
def test_a_bucket_is_narrow(value: float) -> None:
    found = histogram([value])
    low, high = quantiles(found, [1e-9, 1.0])
    assert low <= value * (1 + 1e-8)
    assert value <= high <= value * (1 + 2**-6)


@given(st.lists(st.floats(0, 1e13), min_size=2, max_size=50))
def test_buckets_keep_the_order(values: list[float]) -> None:
    places = [count(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] < BUCKETS


def test_quantiles_are_those_of_the_values() -> None:
    values = np.random.default_rng(1).lognormal(0.0, 1.5, 20_000)
    found = quantiles(histogram(values.tolist()), [0.01, 0.5, 0.95, 0.99, 0.999])
    assert found == pytest.approx(np.quantile(values, [0.01, 0.5, 0.95, 0.99, 0.999]), rel=0.01)


def test_nothing_has_no_quantiles() -> None:
    assert all(math.isnan(one) for one in quantiles(histogram([]), [0.5, 0.99]))


def test_times_of_zero_and_beyond_all_buckets() -> None:
    assert count(0.0) == 0
    assert count(1e300) == BUCKETS - 1
    assert quantiles(histogram([0.0, 0.0]), [0.5])[0] < 1e-11
