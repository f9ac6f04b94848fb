"""Intervals and tests on accuracies of models that saw the same images.

Images drawn from one original are alike, so the originals are what is resampled (the cluster
bootstrap: A. C. Davison and D. V. Hinkley, *Bootstrap Methods and their Application*, Sec. 3.8,
DOI 10.1017/CBO9780511802843), and two models are compared on the same resample (paired).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 10_000
LEVEL: Final = 0.95
_CHUNK: Final = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
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
) -> Estimate:
    """Estimate a mean over images with resampled sources.

    Parameters
    ----------
    values
        One number per image, shape [N]: right or wrong for an accuracy, or for the gain of one
        model over another the difference of the two (-1, 0 or 1).
    source
        Which original each image was drawn from, shape [N].
    seed
        Of the resampling.
    resamples
        How many.

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
    total = np.bincount(cluster, weights=values.astype(np.float64))
    size = np.bincount(cluster).astype(np.float64)
    clusters = len(size)
    random = np.random.default_rng(seed)
    means = np.concatenate(
        [
            # How often each source is drawn, [chunk, clusters]; then sums are two products.
            (times @ total) / (times @ size)
            for start in range(0, resamples, _CHUNK)
            for times in [
                random.multinomial(
                    clusters,
                    np.full(clusters, 1 / clusters),
                    size=min(_CHUNK, resamples - start),
                ).astype(np.float64)
            ]
        ]
    )
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    # A tie of resampled means at 0 up to rounding counts as "no gain".
    p = (1 + np.count_nonzero(means <= 1e-12)) / (resamples + 1)
    return Estimate(float(total.sum() / size.sum()), (float(low), float(high)), float(p))
