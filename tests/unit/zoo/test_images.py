"""Images depend on the seed alone, and no original is in two parts of the split."""

import numpy as np
import pytest

from inferway.catalog import zoo
from zoo.build import SEED, TEST_TIMES
from zoo.images import LEVELS, SIDE, Originals, draw, originals, split


@pytest.fixture(scope="module")
def digits() -> Originals:
    pytest.importorskip("sklearn.datasets", reason="the originals come with scikit-learn")
    return originals()


@pytest.mark.parametrize("seed", range(5))
def test_split_is_disjoint_and_whole(seed: int) -> None:
    parts = split(1797, seed=seed)
    assert (len(parts.validation), len(parts.test)) == (150, 600)
    whole = np.concatenate([parts.train, parts.validation, parts.test])
    np.testing.assert_array_equal(np.sort(whole), np.arange(1797))


def test_split_depends_on_the_seed() -> None:
    np.testing.assert_array_equal(split(1797, seed=1).test, split(1797, seed=1).test)
    assert not np.array_equal(split(1797, seed=1).test, split(1797, seed=2).test)


def test_the_shipped_test_set_is_drawn_from_the_test_part(digits: Originals) -> None:
    shipped = zoo.testset()
    parts = split(len(digits.labels), seed=SEED)
    np.testing.assert_array_equal(np.unique(shipped.source), parts.test)
    assert not set(shipped.source) & (set(parts.train) | set(parts.validation))
    np.testing.assert_array_equal(np.bincount(shipped.source)[parts.test], TEST_TIMES)
    np.testing.assert_array_equal(shipped.labels, digits.labels[shipped.source])


def test_the_shipped_images_come_from_the_seed(digits: Originals) -> None:
    shipped = zoo.testset()
    parts = split(len(digits.labels), seed=SEED)
    source = np.repeat(parts.test, TEST_TIMES)
    again = draw(digits, source, parts.test, seed=[SEED, 2])
    # Other processors round sines differently, which moves single gray values.
    same = np.isclose(again, shipped.images[:, 0] * 255, atol=0.5)
    assert same.mean() > 0.999


def test_images_are_gray_levels(digits: Originals) -> None:
    images = draw(digits, np.arange(1500), np.arange(100), seed=[1])
    assert images.shape == (1500, SIDE, SIDE)
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(np.unique(images), np.arange(LEVELS) * 17)


def test_same_seed_same_images(digits: Originals) -> None:
    source, pool = np.arange(1100), np.arange(100)
    first = draw(digits, source, pool, seed=[1, 2])
    np.testing.assert_array_equal(first, draw(digits, source, pool, seed=[1, 2]))
    other = draw(digits, source, pool, seed=[1, 3])
    assert (first != other).any(axis=(1, 2)).all()
    # The second chunk of a drawing has random numbers of its own.
    again = draw(digits, np.repeat(7, 2048), pool, seed=[1, 2])
    assert (again[:1024] != again[1024:]).any(axis=(1, 2)).all()


def test_clutter_comes_from_the_pool_alone(digits: Originals) -> None:
    # With all originals outside the pool but the source blank, nothing changes.
    source, pool = np.full(200, 5), np.arange(10, 60)
    blank = np.zeros_like(digits.fine)
    kept = np.union1d(source, pool)
    blank[kept] = digits.fine[kept]
    np.testing.assert_array_equal(
        draw(digits, source, pool, seed=[1]),
        draw(Originals(blank, digits.labels), source, pool, seed=[1]),
    )


def test_the_digit_is_in_the_image(digits: Originals) -> None:
    # The mean of many drawings of one original looks more like it than like others.
    ones = np.flatnonzero(digits.labels == 1)
    zeros = np.flatnonzero(digits.labels == 0)
    mean = {}
    for name, pool in (("one", ones), ("zero", zeros)):
        images = draw(digits, np.resize(pool, 1000), np.arange(1797), seed=[1])
        mean[name] = images.mean(axis=0)
    center = (slice(14, 18), slice(14, 18))
    assert mean["one"][center].mean() > mean["zero"][center].mean() + 20
