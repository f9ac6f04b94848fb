"""Calibration: which accuracy a confidence stands for, in bins of equal mass.

What a bin holds is not the mean score of its rows: of a few hundred rows a bin has too few. The
score is fitted by a logistic curve in the log-odds of the confidence and their square, and a bin
holds the curve's mean over its rows. Straight in the log-odds it would be Platt's scaling, whose
targets keep it finite where a confidence separates right from wrong (H.-T. Lin, C.-J. Lin and
R. C. Weng, 2007, DOI 10.1007/s10994-007-5018-6, Sec. 2); the square lets it bend.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

BINS: Final = 20

Floats = NDArray[np.float64]

_LEAST: Final = 1e-6  # of a confidence, and of what it is short of 1: its log-odds are finite
# Penalty on half the squared coefficients of standardized columns: a thousandth of a row. A column
# that says nothing, as the square of a confidence of two values, gets no weight.
_RIDGE: Final = 1e-3
_STEPS: Final = 100
_TOLERANCE: Final = 1e-10


class Bins(NamedTuple):
    """Accuracy by confidence.

    Attributes
    ----------
    edges
        Confidences at which the next bin begins, increasing, shape [bins - 1].
    accuracy
        In each bin, 0..1, shape [bins].
    mass
        Share of rows in each bin, shape [bins].
    """

    edges: Floats
    accuracy: Floats
    mass: Floats

    def of(self, confidence: Floats) -> NDArray[np.int64]:
        """Find the bin of each confidence."""
        return np.searchsorted(self.edges, confidence, side="right")


def calibrated(confidence: Floats, score: Floats, bins: int = BINS) -> Bins:
    """Say which accuracy a confidence stands for.

    Parameters
    ----------
    confidence
        Of each row, finite, shape [N]; any numbers, greater for surer.
    score
        How right each row is, 0..1, shape [N]. It may be another variant's on the same rows: then
        the bins say how accurate that one is where this one is so sure.
    bins
        Their number; fewer where confidences have fewer values.

    Raises
    ------
    ValueError
        When there is no row, or the shapes differ.
    """
    if confidence.shape != score.shape or confidence.ndim != 1 or not len(score):
        raise ValueError(
            f"confidence {confidence.shape} and score {score.shape} must be of the same length, "
            "above 0"
        )
    edges = _edges(confidence, bins)
    place = np.searchsorted(edges, confidence, side="right")
    curve = fitted(confidence, score)
    count = np.bincount(place, minlength=len(edges) + 1)
    accuracy = np.bincount(place, weights=curve, minlength=len(edges) + 1) / count
    return Bins(edges, accuracy, count / len(score))


class HeldBins(NamedTuple):
    """Bins beside other rows' scores.

    Attributes
    ----------
    observed
        Mean score of these rows in each bin, shape [bins]; NaN where there is none.
    error
        Expected calibration error: how far bins are from these scores, weighted with where the rows
        fall (M. P. Naeini, G. F. Cooper and M. Hauskrecht, 2015, DOI 10.1609/aaai.v29i1.9602).
        Chance alone keeps it above 0.
    """

    observed: Floats
    error: float


def checked(bins: Bins, confidence: Floats, score: Floats) -> HeldBins:
    """Hold bins against rows that they were not fitted to, shape [N] each."""
    place, many = bins.of(confidence), len(bins.accuracy)
    count = np.bincount(place, minlength=many)
    total = np.bincount(place, weights=score, minlength=many)
    observed = np.divide(total, count, out=np.full(many, np.nan), where=count > 0)
    error = float(np.abs(total - count * bins.accuracy).sum() / len(score))
    return HeldBins(observed, error)


def fitted(confidence: Floats, score: Floats) -> Floats:
    """Fit the score by the confidence; the curve at each row, 0..1, shape [N].

    Confidences outside 0..1 have no log-odds. They are replaced by their ranks, from 1 / 2N to
    1 - 1 / 2N with equal ones in the middle of theirs: whatever grows with a confidence is as good
    as that one.
    """
    columns = _columns(confidence)
    right, rows = score.sum(), len(score)
    # Platt's targets: as if one more row were right, and one wrong.
    high, low = (right + 1) / (right + 2), 1 / (rows - right + 2)
    return _logistic(columns, low + score * (high - low))


def _columns(confidence: Floats) -> Floats:
    """The curve's columns: one, the standardized log-odds, and the standardized square of these."""
    shares = confidence
    if ((confidence < 0) | (confidence > 1)).any():
        shares = _ranks(confidence)
    clipped = shares.clip(_LEAST, 1 - _LEAST)
    odds = _standard(np.log(clipped) - np.log1p(-clipped))
    return np.stack([np.ones(len(odds)), odds, _standard(odds**2)], axis=1)


def _ranks(values: Floats) -> Floats:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(count) - count
    return ((below + count / 2) / len(values))[place]


def _standard(column: Floats) -> Floats:
    spread = column.std()
    return (column - column.mean()) / spread if spread > 1e-12 else np.zeros_like(column)


def _logistic(columns: Floats, target: Floats) -> Floats:
    """Minimize the cross-entropy by Newton's steps, halved where they go too far."""
    ridge = np.diag([0.0, *[_RIDGE] * (columns.shape[1] - 1)])
    mean = target.mean()
    weights = np.array([np.log(mean / (1 - mean)), *[0.0] * (columns.shape[1] - 1)])

    def loss(at: Floats) -> float:
        odds = columns @ at
        return float((np.logaddexp(0, odds) - target * odds).sum() + at @ ridge @ at / 2)

    now = loss(weights)
    for _ in range(_STEPS):
        curve = 1 / (1 + np.exp(-(columns @ weights)))
        slope = columns.T @ (curve - target) + ridge @ weights
        bend = (columns.T * (curve * (1 - curve))) @ columns + ridge
        step = np.linalg.lstsq(bend, slope, rcond=None)[0]
        share = 1.0
        while (after := loss(weights - share * step)) > now and share > _TOLERANCE:
            share /= 2
        weights = weights - share * step
        if now - after <= _TOLERANCE * max(1.0, now):
            break
        now = after
    return np.asarray(1 / (1 + np.exp(-(columns @ weights))))


def _edges(confidence: Floats, bins: int) -> Floats:
    """Where bins of equal mass begin; equal confidences are never parted."""
    ordered = np.sort(confidence)
    at = np.arange(1, bins) * len(ordered) // bins
    edges = np.unique(ordered[at])
    return np.asarray(edges[edges > ordered[0]])
