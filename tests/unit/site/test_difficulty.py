"""The difficulty model against quadrature, sampling and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from inferway.site.confidence import difficulty_tables

PLAIN = np.array([0.0, 0.5, 0.7, 0.8, 1.0])


@pytest.mark.parametrize("quality", [0.0, 0.3, 0.8, 0.999, 1.0])
@pytest.mark.parametrize("common", [0.0, 0.8, 1.0])
def test_means_over_bins_are_the_accuracies(quality: float, common: float) -> None:
    tables = difficulty_tables(PLAIN, quality, common).checked(5)
    assert tables.expected_accuracy() == pytest.approx(PLAIN, abs=1e-12)
    for i in range(5):
        assert tables.mass[i] @ tables.expected[i] == pytest.approx(PLAIN, abs=1e-12)
    # Surer is no less accurate, of all classes.
    assert (np.diff(tables.expected, axis=1) >= -1e-12).all()


def test_bins_are_what_quadrature_says() -> None:
    tables = difficulty_tables(PLAIN, 0.8, 0.6)
    for i, b, j in [(1, 0, 1), (1, 10, 1), (2, 19, 2), (1, 0, 3), (2, 7, 1), (3, 12, 2)]:
        r = 0.8 if i == j else 0.8 * 0.6

        def right(s: float, r: float = r, j: int = j) -> float:
            given = (norm.ppf(PLAIN[j]) - r * s) / np.sqrt(1 - r**2)
            return float(norm.pdf(s) * norm.cdf(given))

        # The least sure bin reads the greatest difficulty.
        low, high = norm.ppf(1 - (b + 1) / 20), norm.ppf(1 - b / 20)
        assert tables.expected[i, b, j] == pytest.approx(20 * quad(right, low, high)[0], abs=1e-7)


def test_bins_are_what_is_drawn() -> None:
    draw = np.random.default_rng(1)
    n, quality, common = 400_000, 0.7, 0.5
    shared, noise = draw.standard_normal(n), draw.standard_normal((3, n))
    z = np.sqrt(common) * shared + np.sqrt(1 - common) * noise[:2]
    sure = -(quality * z[0] + np.sqrt(1 - quality**2) * noise[2])
    right = z < norm.ppf([[0.7], [0.9]])
    tables = difficulty_tables(np.array([0.7, 0.9]), quality, common, bins=5)
    place = np.searchsorted(norm.ppf(tables.edges[0]), sure, side="right")
    for b in range(5):
        assert tables.expected[0, b] == pytest.approx(
            right[:, place == b].mean(axis=1), abs=5 * 0.5 / np.sqrt(n / 5)
        )


def test_the_limits_are_exact() -> None:
    # At quality 1 the surest 0.7 are right, and nothing else is.
    sure = difficulty_tables(np.array([0.7, 0.8]), 1.0, 1.0)
    assert sure.expected[0, :, 0] == pytest.approx([0.0] * 6 + [1.0] * 14, abs=1e-9)
    assert sure.expected[0, :, 1] == pytest.approx([0.0] * 4 + [1.0] * 16, abs=1e-9)
    # Without a common difficulty one class's confidence says nothing of another.
    apart = difficulty_tables(np.array([0.7, 0.8]), 1.0, 0.0)
    assert apart.expected[0, :, 1] == pytest.approx([0.8] * 20)
    nothing = difficulty_tables(np.array([0.7, 0.8]), 0.0, 0.8)
    assert nothing.expected == pytest.approx(np.broadcast_to([0.7, 0.8], (2, 20, 2)))


def test_a_better_confidence_tells_more_apart() -> None:
    spread = [
        difficulty_tables(PLAIN, q, 0.8).expected[2, :, 2].std() for q in (0.2, 0.5, 0.9, 1.0)
    ]
    assert spread == sorted(spread)
    assert spread[0] < spread[-1] / 4


def test_a_class_of_unknown_accuracy_has_no_confidence() -> None:
    tables = difficulty_tables(np.array([np.nan, 0.8]), 0.8, 0.8)
    assert tables.sure.tolist() == [False, True]
    assert tables.expected[0] == pytest.approx(np.broadcast_to([0.0, 0.8], (20, 2)))


@pytest.mark.parametrize(
    ("accuracy", "more", "sentence"),
    [
        ([1.2], {"quality": 0.5, "common": 0.8}, "accuracies are in"),
        ([0.5], {"quality": 1.5, "common": 0.8}, "a quality is in"),
        ([0.5], {"quality": 0.5, "common": -0.1}, "a common part is in"),
        ([0.5], {"quality": 0.5, "common": 0.8, "bins": 0}, "at least one bin"),
    ],
)
def test_numbers_out_of_range_are_refused(
    accuracy: list[float], more: dict[str, float], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        difficulty_tables(np.array(accuracy), **more)  # type: ignore[arg-type]
