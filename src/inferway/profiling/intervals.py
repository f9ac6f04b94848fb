"""How sure a measured accuracy is: 95 % intervals for rows that stand alone, and for groups.

Rows that are right or wrong and stand alone have Wilson's interval (E. B. Wilson, 1927, DOI
10.1080/01621459.1927.10502953), which holds near 0 and 1, too (L. D. Brown, T. T. Cai and A.
DasGupta, 2001, DOI 10.1214/ss/1009213286). All else is resampled: rows, or whole groups, as rows of
one group are alike (the cluster bootstrap: A. C. Davison and D. V. Hinkley, *Bootstrap Methods and
their Application*, Sec. 3.8, DOI 10.1017/CBO9780511802843).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 10_000
LEVEL: Final = 0.95

_CHUNK: Final = 1000
_SAME: Final = 1e-12  # resamples that differ by rounding alone
_QUANTILE: Final = 1.959963984540054  # of the normal distribution at (1 + LEVEL) / 2
# With more, rows or groups are put together at random: the interval is as wide, and the work has a
# bound. Its width then varies by 1 / sqrt(2 * 1000), 2.2 %.
_MOST_CLUSTERS: Final = 1_000


class ResampledMean(NamedTuple):
    """A mean over images.

    Attributes
    ----------
    mean
        The estimate.
    interval
        Lower and upper end of the 95 % percentile interval.
    p
        One-sided: the share of resamples with a mean of 0 or less, never below 1/(resamples + 1).
    """

    mean: float
    interval: tuple[float, float]
    p: float


def estimate(
    values: NDArray[np.float64] | NDArray[np.bool_],
    source: NDArray[np.int64],
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> ResampledMean:
    """Estimate a mean over images with resampled sources.

    Images drawn from one original are alike, so the originals are what is resampled, and two models
    are compared on the same resample (paired).

    Parameters
    ----------
    values
        One number per image, shape [N]: right or wrong for an accuracy, or for the gain of one
        model over another the difference of the two (-1, 0 or 1).
    source
        Original that each image was drawn from, shape [N].
    seed
        Of the resampling.
    resamples
        Number of them.

    Raises
    ------
    ValueError
        When the shapes differ or there is no image.
    """
    if values.shape != source.shape or values.ndim != 1 or not len(values):
        raise ValueError(
            f"values {values.shape} and source {source.shape} must be of the same length, above 0"
        )
    _, cluster = np.unique(source, return_inverse=True)
    sums = _sums(values.astype(np.float64)[:, None], cluster)
    drawn = _resampled(sums, lambda one: one[:, 0] / one[:, 1], seed, resamples)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # A tie of resampled means at 0 up to rounding counts as "no gain".
    p = (1 + np.count_nonzero(drawn <= 1e-12)) / (resamples + 1)
    total, size = sums.sum(axis=0)
    return ResampledMean(float(total / size), (float(low), float(high)), float(p))


class MeasuredAccuracy(NamedTuple):
    """An accuracy with its interval.

    Attributes
    ----------
    value
        Mean score of the rows, or what else the score comes to, 0..1.
    interval
        Lower and upper end of the 95 % interval.
    """

    value: float
    interval: tuple[float, float]


def mean_score(
    rows: NDArray[np.float64],
    groups: NDArray[np.int64] | None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> MeasuredAccuracy:
    """Estimate the mean score.

    Parameters
    ----------
    rows
        Score of each row, 0..1, shape [N].
    groups
        Which rows are alike, shape [N]; None where each stands alone.
    seed, resamples
        Of the resampling: start and number.

    Raises
    ------
    ValueError
        When there is no row.
    """
    if not len(rows):
        raise ValueError("there is no row to measure an accuracy on")
    mean = float(rows.mean())
    plain = bool(((rows == 0) | (rows == 1)).all())
    if groups is None and plain:
        return MeasuredAccuracy(mean, wilson(mean, len(rows)))
    if mean in (0.0, 1.0):
        # All resamples are equal then, and would pretend to be sure: each group counts as one row.
        count = len(rows) if groups is None else len(np.unique(groups))
        return MeasuredAccuracy(mean, wilson(mean, count))
    sums = _sums(rows[:, None], _clusters(len(rows), groups, seed))
    drawn = _resampled(sums, lambda one: one[:, 0] / one[:, 1], seed, resamples)
    return MeasuredAccuracy(mean, _interval(mean, drawn, len(sums)))


def macro_f1(
    classes: NDArray[Any],
    labels: NDArray[Any],
    groups: NDArray[np.int64] | None,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> MeasuredAccuracy:
    """Estimate macro-F1, the mean of the F1 of all classes, of labels and of answers.

    A row has no F1, so that whole resamples are scored: 2 TP / (2 TP + FP + FN) of each class that
    is in the resample, as label or as answer.

    Parameters
    ----------
    classes, labels
        The class answered and the right one, shape [N].
    groups, seed, resamples
        As in `mean_score`.

    Raises
    ------
    ValueError
        When there is no row.
    """
    rows = len(labels)
    if not rows:
        raise ValueError("there is no row to measure an accuracy on")
    known, number = np.unique(np.concatenate([classes, labels]), return_inverse=True)
    kinds, answer, label = len(known), number[:rows], number[rows:]
    right = answer == label

    def counts(cluster: NDArray[np.int64]) -> NDArray[np.float64]:
        """Count hits, and answers and labels together, by cluster, [clusters, 2 * kinds]."""
        size = (int(cluster.max()) + 1, kinds)
        cells = cluster * kinds

        def counted(at: NDArray[np.int64]) -> NDArray[np.float64]:
            return np.bincount(at, minlength=size[0] * kinds).reshape(size).astype(np.float64)

        hits = counted((cells + label)[right])
        return np.concatenate([hits, counted(cells + answer) + counted(cells + label)], axis=1)

    def score(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        hits, both = sums[:, :kinds], sums[:, kinds:]
        f1 = np.divide(2 * hits, both, out=np.zeros_like(hits), where=both > 0)
        return np.asarray(f1.sum(axis=1) / (both > 0).sum(axis=1))

    value = float(score(counts(np.zeros(rows, np.int64)))[0])
    if value in (0.0, 1.0):
        count = rows if groups is None else len(np.unique(groups))
        return MeasuredAccuracy(value, wilson(value, count))
    sums = counts(_clusters(rows, groups, seed))
    drawn = _resampled(sums, score, seed, resamples)
    return MeasuredAccuracy(value, _interval(value, drawn, len(sums)))


def wilson(mean: float, rows: int) -> tuple[float, float]:
    """Compute Wilson's 95 % interval of a share of so many independent rows.

    Source: DOI 10.1080/01621459.1927.10502953.
    """
    z = _QUANTILE**2 / rows
    middle = (mean + z / 2) / (1 + z)
    half = math.sqrt(mean * (1 - mean) * z + z * z / 4) / (1 + z)
    # At the ends, rounding must not take the estimate out of its interval.
    return max(0.0, min(mean, middle - half)), min(1.0, max(mean, middle + half))


def _clusters(rows: int, groups: NDArray[np.int64] | None, seed: int) -> NDArray[np.int64]:
    """Number what is resampled: the groups, or the rows; put together at random if many."""
    number = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(number.max()) + 1
    if count > _MOST_CLUSTERS:
        number = np.random.default_rng(seed).permutation(count)[number] % _MOST_CLUSTERS
    return number.astype(np.int64)


def _sums(values: NDArray[np.float64], cluster: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sum columns of rows by cluster, shape [clusters, columns + 1]; the last one counts rows."""
    columns = [np.bincount(cluster, weights=column) for column in values.T]
    return np.stack([*columns, np.bincount(cluster).astype(np.float64)], axis=1)


def _resampled(
    sums: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    seed: int,
    resamples: int,
) -> NDArray[np.float64]:
    """Compute a statistic of sums, [chunk, columns], over resampled clusters; shape [resamples]."""
    clusters = len(sums)
    random, even = np.random.default_rng(seed), np.full(clusters, 1 / clusters)
    drawn = np.empty(resamples)
    for start in range(0, resamples, _CHUNK):
        # How often each cluster is drawn, [chunk, clusters]; then sums are products.
        some = min(_CHUNK, resamples - start)
        times = random.multinomial(clusters, even, size=some).astype(np.float64)
        drawn[start : start + some] = statistic(times @ sums)
    return drawn


def _interval(value: float, drawn: NDArray[np.float64], clusters: int) -> tuple[float, float]:
    """Find the ends of resamples; where all are equal, as of one group, each counts as one row."""
    if np.ptp(drawn) < _SAME:
        return wilson(value, clusters)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
