"""The cluster bootstrap against closed forms and a plain loop."""

import numpy as np
import pytest

from inferway.profiling.intervals import estimate


def test_independent_images_give_the_normal_interval() -> None:
    right = np.random.default_rng(1).random(1000) < 0.8
    found = estimate(right, np.arange(1000), seed=2)
    half = 1.96 * np.sqrt(right.mean() * (1 - right.mean()) / 1000)
    assert found.mean == pytest.approx(right.mean())
    np.testing.assert_allclose(found.interval, [found.mean - half, found.mean + half], atol=2e-3)


def test_copies_of_an_image_add_no_certainty() -> None:
    right = np.random.default_rng(1).random(400) < 0.8
    one = estimate(right, np.arange(400), seed=2)
    ten = estimate(np.repeat(right, 10), np.repeat(np.arange(400), 10), seed=2)
    np.testing.assert_allclose(ten.interval, one.interval)


def test_equals_a_plain_loop() -> None:
    # Clusters of different sizes: the mean is over images, so large ones weigh more.
    random = np.random.default_rng(3)
    source = np.repeat(np.arange(60), random.integers(1, 8, 60))
    values = random.normal(0.1, 1, len(source))
    found = estimate(values, source, seed=4, resamples=4_000)
    means = []
    for _ in range(4_000):
        chosen = random.integers(0, 60, 60)
        parts = [values[source == cluster] for cluster in range(60)]
        some = np.concatenate([parts[cluster] for cluster in chosen])
        means.append(some.mean())
    np.testing.assert_allclose(found.interval, np.quantile(means, [0.025, 0.975]), atol=0.02)
    assert found.p == pytest.approx(np.mean(np.array(means) <= 0), abs=0.02)


def test_p_is_uniform_under_no_gain() -> None:
    random = np.random.default_rng(5)
    source = np.repeat(np.arange(200), 3)
    # A shared part per source makes images of one source alike.
    p = [
        estimate(
            random.normal(size=200)[source] + random.normal(size=600),
            source,
            seed=trial,
            resamples=200,
        ).p
        for trial in range(300)
    ]
    # 300 trials: the share below .05 has a standard deviation of .0126.
    assert 0.01 < np.mean(np.array(p) < 0.05) < 0.09


def test_same_seed_same_numbers() -> None:
    values, source = np.random.default_rng(1).normal(size=50), np.arange(50) // 5
    assert estimate(values, source, seed=1) == estimate(values, source, seed=1)
    assert estimate(values, source, seed=1) != estimate(values, source, seed=2)


def test_p_is_never_zero() -> None:
    assert estimate(np.ones(10), np.arange(10), seed=1, resamples=99).p == 0.01


@pytest.mark.parametrize(
    ("values", "source"), [(np.ones(3), np.arange(2)), (np.ones(0), np.ones(0))]
)
def test_refuses_other_shapes(values: np.ndarray, source: np.ndarray) -> None:
    with pytest.raises(ValueError, match="must be of the same length, above 0"):
        estimate(values, source, seed=1)
