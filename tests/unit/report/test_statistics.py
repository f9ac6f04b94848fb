from __future__ import annotations

import math

import numpy as np
import pytest

from inferway.experiments.statistics import cluster_bootstrap, percentiles, wilson


def test_wilson_against_published_values():
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    for successes, trials, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = wilson(successes, trials)
        assert found == pytest.approx((low, high), abs=5e-5)


def test_wilson_mirrors_and_stays_within_0_and_1():
    for successes in range(11):
        low, high = wilson(successes, 10)
        mirrored = wilson(10 - successes, 10)
        assert (1 - high, 1 - low) == pytest.approx(mirrored)
        assert 0 <= low <= successes / 10 <= high <= 1


@pytest.mark.parametrize("arguments", [(1, 0), (-1, 5), (6, 5), (1, 5, 1.0)])
def test_wilson_refuses_impossible_counts(arguments):
    with pytest.raises(ValueError, match=r"no interval|between 0 and 1"):
        wilson(*arguments)


def test_bootstrap_of_single_observations_is_the_normal_interval():
    rng = np.random.default_rng(3)
    values = rng.random(2000) < 0.8
    low, high = cluster_bootstrap(values, np.arange(2000), seed=1, resamples=8000)
    p = values.mean()
    half = 1.96 * math.sqrt(p * (1 - p) / 2000)
    assert (low, high) == pytest.approx((p - half, p + half), abs=0.1 * half)


def test_bootstrap_counts_clusters_not_copies():
    """Copies of each observation add nothing: the interval stays that of the clusters."""
    rng = np.random.default_rng(5)
    truth = rng.random(300) < 0.7
    copies = np.repeat(truth, 10)
    cluster = np.repeat(np.arange(300), 10)
    low, high = cluster_bootstrap(copies, cluster, seed=1, resamples=8000)
    p = truth.mean()
    half = 1.96 * math.sqrt(p * (1 - p) / 300)
    assert (low, high) == pytest.approx((p - half, p + half), abs=0.12 * half)
    naive = cluster_bootstrap(copies, np.arange(3000), seed=1)
    assert high - low > 2.5 * (naive[1] - naive[0])


def test_bootstrap_weighs_clusters_by_their_size():
    """A mean of ones is one, whichever clusters of unequal size are drawn."""
    sizes = np.arange(1, 30)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    assert cluster_bootstrap(np.ones(len(cluster)), cluster, seed=2) == (1.0, 1.0)


def test_bootstrap_covers_as_often_as_it_says():
    rng = np.random.default_rng(11)
    covered = 0
    for run in range(200):
        easy = np.repeat(rng.beta(4, 2, 100), 5)
        values = rng.random(500) < easy
        low, high = cluster_bootstrap(
            values, np.repeat(np.arange(100), 5), seed=run, resamples=500, confidence=0.9
        )
        covered += low <= 4 / 6 <= high
    # Binomial(200, 0.9) stays above 168 with probability 0.99.
    assert covered >= 168


def test_bootstrap_is_seeded_and_blocks_do_not_matter(monkeypatch):
    values, cluster = np.random.default_rng(0).random(60), np.arange(60) // 3
    one = cluster_bootstrap(values, cluster, seed=4)
    assert one == cluster_bootstrap(values, cluster, seed=4)
    assert one != cluster_bootstrap(values, cluster, seed=5)
    monkeypatch.setattr("inferway.experiments.statistics._BLOCK", 100)
    assert one == cluster_bootstrap(values, cluster, seed=4)


def test_bootstrap_refuses_what_has_no_mean():
    with pytest.raises(ValueError, match="no interval"):
        cluster_bootstrap([], [], seed=0)
    with pytest.raises(ValueError, match="no interval"):
        cluster_bootstrap([1, 0], [1], seed=0)


def test_percentiles_leave_out_what_is_missing():
    assert percentiles([np.nan, *range(101)], (0, 50, 99)) == [0, 50, 99]
    assert all(math.isnan(p) for p in percentiles([np.nan]))
