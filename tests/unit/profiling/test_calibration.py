"""Bins say how accurate answers of a confidence are, better than the rows in them alone."""

from __future__ import annotations

import numpy as np
import pytest

from inferway.profiling.calibration import BINS, calibrated, checked, fitted

MAPS = {
    "probability": lambda c: c,
    "any number": lambda c: 40 * c**3 - 7,
}


def truth(confidence: np.ndarray) -> np.ndarray:
    """A model that is too sure of itself, most of all where it is very sure."""
    odds = np.log(confidence / (1 - confidence))
    return np.asarray(1 / (1 + np.exp(-(0.2 + 0.7 * odds - 0.03 * odds**2))))


def drawn(random: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    confidence = random.beta(4, 1, rows).clip(1e-4, 1 - 1e-4)
    return confidence, (random.random(rows) < truth(confidence)).astype(float)


@pytest.mark.parametrize("kind", MAPS)
def test_a_known_curve_is_found_better_than_by_raw_cells(kind: str) -> None:
    random, fit, raw = np.random.default_rng(1), [], []
    for _ in range(40):
        confidence, score = drawn(random, 600)
        bins = calibrated(MAPS[kind](confidence), score)
        place = bins.of(MAPS[kind](confidence))
        count = np.bincount(place, minlength=BINS)
        right = np.bincount(place, weights=truth(confidence), minlength=BINS) / count
        cells = np.bincount(place, weights=score, minlength=BINS) / count
        fit.append(np.mean((bins.accuracy - right) ** 2))
        raw.append(np.mean((cells - right) ** 2))
    assert np.mean(fit) < 0.35 * np.mean(raw)


def test_bins_have_equal_mass_and_rows_of_one_are_together() -> None:
    confidence, score = drawn(np.random.default_rng(2), 1000)
    bins = calibrated(confidence, score)
    assert len(bins.accuracy) == BINS == len(bins.mass) == len(bins.edges) + 1
    np.testing.assert_allclose(bins.mass, 0.05)
    assert np.bincount(bins.of(confidence)).tolist() == [50] * BINS
    assert (bins.accuracy * bins.mass).sum() == pytest.approx(score.mean(), abs=5e-3)


def test_equal_confidences_share_a_bin() -> None:
    confidence = np.repeat([0.2, 0.5, 0.9], [10, 30, 60])
    score = np.concatenate([np.tile([1.0, 0, 0, 0, 0], 2), np.tile([1.0, 0, 0], 10), np.ones(60)])
    bins = calibrated(confidence, score)
    assert bins.edges.tolist() == [0.5, 0.9]
    assert bins.mass.tolist() == [0.1, 0.3, 0.6]
    np.testing.assert_allclose(bins.accuracy, [0.2, 1 / 3, 1.0], atol=0.03)
    one = calibrated(np.full(50, 0.7), np.repeat([1.0, 0.0], [40, 10]))
    assert one.edges.tolist() == []
    np.testing.assert_allclose(one.accuracy, [0.8], atol=0.02)


def test_rows_that_a_confidence_parts_and_rows_all_right_stay_finite() -> None:
    confidence = np.linspace(0.01, 0.99, 400)
    bins = calibrated(confidence, (confidence > 0.5).astype(float))
    assert np.isfinite(bins.accuracy).all()
    assert bins.accuracy[:8].max() < 0.05
    assert bins.accuracy[-8:].min() > 0.95
    right = calibrated(confidence, np.ones(400)).accuracy
    assert ((right > 0.99) & (right < 1)).all()
    wrong = calibrated(confidence, np.zeros(400)).accuracy
    assert ((wrong > 0) & (wrong < 0.01)).all()


@pytest.mark.parametrize("edge", [0.0, 1.0])
def test_certainty_itself_has_log_odds(edge: float) -> None:
    confidence, score = drawn(np.random.default_rng(3), 500)
    confidence[:100] = edge
    assert np.isfinite(fitted(confidence, score)).all()


def test_scores_between_right_and_wrong_are_fitted_too() -> None:
    confidence, _ = drawn(np.random.default_rng(4), 2000)
    curve = fitted(confidence, truth(confidence))
    np.testing.assert_allclose(curve, truth(confidence), atol=0.02)


def test_another_variants_rows_tell_what_asking_it_would_gain() -> None:
    random = np.random.default_rng(5)
    confidence, _ = drawn(random, 4000)
    other = (random.random(4000) < 0.9).astype(float)  # whatever the first one is sure of
    gained = calibrated(confidence, other).accuracy
    np.testing.assert_allclose(gained, 0.9, atol=0.04)


def test_the_error_is_near_0_of_calibrated_bins_and_seen_where_they_are_not() -> None:
    random = np.random.default_rng(6)
    bins = calibrated(*drawn(random, 20_000))
    confidence, score = drawn(random, 20_000)
    assert checked(bins, confidence, score).error < 0.02
    shifted = bins._replace(accuracy=(bins.accuracy - 0.1).clip(0))
    assert checked(shifted, confidence, score).error == pytest.approx(0.1, abs=0.02)


def test_what_is_seen_is_the_mean_of_each_bins_own_rows() -> None:
    bins = calibrated(np.repeat([0.2, 0.5, 0.9], 20), np.repeat([0.0, 1.0], 30))
    check = checked(bins, np.array([0.1, 0.3, 0.95]), np.array([1.0, 0.0, 1.0]))
    np.testing.assert_array_equal(check.observed, [0.5, np.nan, 1.0])


def test_rows_are_needed_and_of_equal_number() -> None:
    with pytest.raises(ValueError, match="must be of the same length, above 0"):
        calibrated(np.empty(0), np.empty(0))
    with pytest.raises(ValueError, match="must be of the same length, above 0"):
        calibrated(np.ones(3), np.ones(4))
