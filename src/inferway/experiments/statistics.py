"""Intervals and percentiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

_BLOCK: Final = 1_000_000

Interval = tuple[float, float]


def wilson(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Score interval of a proportion of independent trials.

    Parameters
    ----------
    successes, trials
        Counts, 0 <= successes <= trials, trials > 0.
    confidence
        Coverage aimed at, in 0..1.

    Returns
    -------
    low, high
        Within 0..1.

    Raises
    ------
    ValueError
        For impossible counts or confidence.

    References
    ----------
    E. B. Wilson, doi:10.1080/01621459.1927.10502953.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"{successes} successes in {trials} trials have no interval")
    z = _quantile(confidence)
    p = successes / trials
    scale = 1 + z * z / trials
    center = (p + z * z / (2 * trials)) / scale
    half = z * float(np.sqrt(p * (1 - p) / trials + (z / (2 * trials)) ** 2)) / scale
    # Rounding must not keep the ends from 0 and 1, where they belong.
    return (
        0.0 if successes == 0 else center - half,
        1.0 if successes == trials else center + half,
    )


def cluster_bootstrap(
    values: ArrayLike,
    cluster: ArrayLike,
    *,
    seed: int,
    resamples: int = 4000,
    confidence: float = 0.95,
) -> Interval:
    """Percentile interval of a mean whose values depend on each other within clusters.

    Whole clusters are drawn with replacement, so that a thousand variations of one source image
    do not pass for a thousand observations.

    Parameters
    ----------
    values
        Shape (N,): numbers or booleans, N > 0.
    cluster
        Shape (N,): which cluster each belongs to, any integers.
    seed
        Of the resampling.
    resamples
        How many means to draw.
    confidence
        Coverage aimed at, in 0..1.

    Returns
    -------
    low, high
        Quantiles of the resampled means.

    Raises
    ------
    ValueError
        When the arrays are empty or differ in length.

    References
    ----------
    A. C. Davison and D. V. Hinkley, doi:10.1017/CBO9780511802843, Sec. 3.8.
    """
    value = np.asarray(values, np.float64)
    _, index = np.unique(np.asarray(cluster), return_inverse=True)
    if value.shape != index.shape or value.size == 0:
        raise ValueError(f"{value.size} values in {index.size} clusters have no interval")
    _quantile(confidence)
    total = np.bincount(index, weights=value)
    count = np.bincount(index).astype(np.float64)
    clusters = len(count)
    rng = np.random.default_rng(seed)
    share = np.full(clusters, 1 / clusters)
    means = np.empty(resamples)
    # Rows of draw counts, in blocks that bound the memory.
    block = max(1, _BLOCK // clusters)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        drawn = rng.multinomial(clusters, share, size=rows).astype(np.float64)
        means[start : start + rows] = (drawn @ total) / (drawn @ count)
    low, high = np.quantile(means, ((1 - confidence) / 2, (1 + confidence) / 2)).tolist()
    return low, high


def percentiles(values: ArrayLike, percents: Sequence[float] = (50, 95, 99)) -> list[float]:
    """Percentiles of the finite values; NaN when there are none.

    Parameters
    ----------
    values
        Any shape.
    percents
        In 0..100.
    """
    value: NDArray[np.float64] = np.asarray(values, np.float64)
    value = value[np.isfinite(value)]
    if value.size == 0:
        return [float("nan")] * len(percents)
    found: list[float] = np.percentile(value, percents).tolist()
    return found


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: it lies between 0 and 1")
    return float(ndtri((1 + confidence) / 2))
