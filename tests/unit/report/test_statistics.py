from __future__ import annotations

import math

import numpy as np
import pytest

from inferway.experiments.results import cluster_bootstrap


def test_bootstrap_of_single_observations_is_the_normal_interval():
    rng = np.random.default_rng(3)
    values = rng.random(2000) < 0.8
    low, high = cluster_bootstrap(values, np.arange(2000), seed=1)
    p = values.mean()
    half = 1.96 * math.sqrt(p * (1 - p) / 2000)
    assert (low, high) == pytest.approx((p - half, p + half), abs=0.1 * half)


def test_bootstrap_counts_clusters_not_copies():
    """Copies of each observation add nothing: the interval stays that of the clusters."""
    rng = np.random.default_rng(5)
    truth = rng.random(300) < 0.7
    copies = np.repeat(truth, 10)
    cluster = np.repeat(np.arange(300), 10)
    low, high = cluster_bootstrap(copies, cluster, seed=1)
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


def test_bootstrap_covers_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr("inferway.experiments.results._RESAMPLES", 500)
    rng = np.random.default_rng(11)
    covered = 0
    for run in range(200):
        easy = np.repeat(rng.beta(4, 2, 100), 5)
        values = rng.random(500) < easy
        low, high = cluster_bootstrap(values, np.repeat(np.arange(100), 5), seed=run)
        covered += low <= 4 / 6 <= high
    # Binomial(200, 0.95) stays above 181 with probability 0.99.
    assert covered >= 181


def test_bootstrap_is_seeded_and_blocks_do_not_matter(monkeypatch):
    values, cluster = np.random.default_rng(0).random(60), np.arange(60) // 3
    one = cluster_bootstrap(values, cluster, seed=4)
    assert one == cluster_bootstrap(values, cluster, seed=4)
    assert one != cluster_bootstrap(values, cluster, seed=5)
    monkeypatch.setattr("inferway.experiments.results._BLOCK", 100)
    assert one == cluster_bootstrap(values, cluster, seed=4)


def test_bootstrap_refuses_what_has_no_mean():
    with pytest.raises(ValueError, match="no interval"):
        cluster_bootstrap([], [], seed=0)
    with pytest.raises(ValueError, match="no interval"):
        cluster_bootstrap([1, 0], [1], seed=0)
