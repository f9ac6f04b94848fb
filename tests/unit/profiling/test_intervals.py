"""Intervals hold the truth as often as they say, whatever is alike in the data."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from inferway.profiling.intervals import macro_f1, mean_score, wilson


@pytest.mark.parametrize(("right", "rows"), [(0, 10), (7, 10), (10, 10), (995, 1000), (1, 3)])
def test_wilson_is_the_textbooks(right: int, rows: int) -> None:
    expected = stats.binomtest(right, rows).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(right / rows, rows), expected, atol=1e-12)


def covered(truth: float, intervals: list[tuple[float, float]]) -> float:
    return float(np.mean([low <= truth <= high for low, high in intervals]))


@pytest.mark.parametrize("truth", [0.5, 0.9, 0.98])
def test_rows_that_stand_alone_are_covered(truth: float) -> None:
    random = np.random.default_rng(1)
    draws = (random.random((2000, 200)) < truth).astype(float)
    intervals = [mean_score(rows, None, seed=1).interval for rows in draws]
    # Of 2000, a coverage of 0.95 has a standard deviation of 0.005; 200 rows are a grid.
    assert 0.925 < covered(truth, intervals) < 0.98


def alike(random: np.random.Generator, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Eight rows of each group, whose own accuracies vary: the mean over groups is 0.8."""
    own = random.beta(4 * 0.8, 4 * 0.2, groups)
    group = np.repeat(np.arange(groups), 8)
    return (random.random(8 * groups) < own[group]).astype(float), group


def test_groups_are_covered_where_rows_alone_would_not_be() -> None:
    random, grouped, alone = np.random.default_rng(2), [], []
    for trial in range(200):
        rows, group = alike(random, 60)
        grouped.append(mean_score(rows, group, seed=trial, resamples=400).interval)
        alone.append(mean_score(rows, None, seed=trial).interval)
    assert covered(0.8, grouped) > 0.9
    assert covered(0.8, alone) < 0.87


def test_scores_between_right_and_wrong_are_covered() -> None:
    random = np.random.default_rng(3)
    draws = random.beta(4, 1, (200, 150))
    intervals = [
        mean_score(rows, None, seed=trial, resamples=400).interval
        for trial, rows in enumerate(draws)
    ]
    assert 0.89 < covered(0.8, intervals) <= 1


def test_many_rows_are_put_together_and_the_interval_stays() -> None:
    rows = np.random.default_rng(4).beta(4, 1, 50_000)
    found = mean_score(rows, None, seed=1)
    half = 1.96 * rows.std() / np.sqrt(len(rows))
    assert found.value == pytest.approx(rows.mean())
    np.testing.assert_allclose(found.interval, [found.value - half, found.value + half], atol=1e-4)


def test_a_perfect_score_is_not_sure_and_groups_count_once() -> None:
    alone = mean_score(np.ones(100), None, seed=1)
    grouped = mean_score(np.ones(100), np.repeat(np.arange(10), 10), seed=1)
    assert alone.interval == (pytest.approx(0.963, abs=1e-3), 1)
    assert grouped.interval == (pytest.approx(0.722, abs=1e-3), 1)


def test_f1_is_sklearns_and_its_interval_covers() -> None:
    random = np.random.default_rng(5)
    prior, confused = [0.6, 0.3, 0.1], np.array([[8, 1, 1], [2, 7, 1], [3, 1, 6]]) / 10

    def drawn(rows: int) -> tuple[np.ndarray, np.ndarray]:
        labels = random.choice(3, rows, p=prior)
        return (random.random(rows)[:, None] > confused.cumsum(axis=1)[labels]).sum(axis=1), labels

    classes, labels = drawn(300_000)
    truth = f1_score(labels, classes, average="macro")
    assert macro_f1(classes, labels, None, seed=1).value == pytest.approx(truth)
    intervals = [
        macro_f1(*drawn(250), None, seed=trial, resamples=400).interval for trial in range(60)
    ]
    assert covered(truth, intervals) > 0.86


def test_classes_that_are_no_label_are_wrong_and_texts_are_classes() -> None:
    labels = np.array(["cat", "dog", "dog", "owl"] * 5)
    classes = np.array(["cat", "dog", "emu", "dog"] * 5)
    expected = f1_score(labels, classes, average="macro", zero_division=0)
    assert macro_f1(classes, labels, None, seed=1).value == pytest.approx(expected)


def test_groups_that_are_all_alike_are_not_sure() -> None:
    rows = np.array([1.0, 0.0] * 50)
    for groups in (np.zeros(100, np.int64), np.repeat(np.arange(10), 10)):
        clusters = len(np.unique(groups))
        assert mean_score(rows, groups, seed=1).interval == wilson(0.5, clusters)
    labels, classes = np.array([0, 1] * 50), np.array([0, 1, 1, 0] * 25)
    found = macro_f1(classes, labels, np.zeros(100, np.int64), seed=1)
    assert found.interval == wilson(found.value, 1)


def test_f1_of_many_rows_and_classes_takes_little_memory() -> None:
    random = np.random.default_rng(6)
    labels = random.integers(0, 500, 50_000)
    classes = np.where(random.random(50_000) < 0.7, labels, random.integers(0, 500, 50_000))
    tracemalloc.start()
    try:
        found = macro_f1(classes, labels, None, seed=1, resamples=100)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert found.value == pytest.approx(f1_score(labels, classes, average="macro"))


def test_no_row_has_no_accuracy() -> None:
    with pytest.raises(ValueError, match="there is no row"):
        mean_score(np.empty(0), None, seed=1)
    with pytest.raises(ValueError, match="there is no row"):
        macro_f1(np.empty(0), np.empty(0), None, seed=1)
