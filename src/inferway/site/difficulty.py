"""Difficulty: what a confidence says of answers where only accuracies are known.

A request is hard by a standard normal amount d. Class k adds what is hard for it alone, e_k, so
that the request's difficulty to it is z_k = sqrt(common) d + sqrt(1 - common) e_k, and it is right
where z_k is below the quantile of its accuracy: two classes' difficulties correlate by `common`.
Its confidence reads its own difficulty with noise, s_k = quality z_k + sqrt(1 - quality^2) n_k, and
the bins are quantiles of s_k. So expected accuracies are probabilities of two normal variables with
a known correlation, computed by Owen's T function (D. B. Owen, 1956, DOI 10.1214/aoms/1177728074,
eq. 2.1), without drawing anything.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BINS: Final = 20
"""As many as a profile has."""

_ZERO: Final = 1e-300  # Stands for 0, at which Owen's formula is a limit
_NEARLY: Final = 1.0 - 1e-9  # Correlations above are 1


def accuracy_by_difficulty(accuracy: Floats, quality: float, common: float, bins: int) -> Floats:
    """Accuracies by the confidence of another class, where both depend on a normal difficulty.

    Parameters
    ----------
    accuracy
        (K,) accuracies, 0..1.
    quality
        Correlation of a class's confidence with the request's difficulty to it, 0..1: at 1 it knows
        when it is right, but for the width of a bin; at 0 its confidence says nothing.
    common
        Correlation of two classes' difficulties, 0..1: at 1 no class is right where a more accurate
        one is wrong.
    bins
        Their number, of the same mass each, the least sure first.

    Returns
    -------
    ndarray
        (K, B, K) expected accuracy of class j where class i's confidence is in bin b. Its mean over
        bins is class j's accuracy.

    Raises
    ------
    ValueError
        Where a number is out of its range.
    """
    for sound, message in (
        (((accuracy >= 0) & (accuracy <= 1)).all(), f"accuracies are in 0..1, not {accuracy}"),
        (0 <= quality <= 1, f"a quality is in 0..1, not {quality}"),
        (0 <= common <= 1, f"a common part is in 0..1, not {common}"),
        (bins >= 1, f"there is at least one bin, not {bins}"),
    ):
        if not sound:
            raise ValueError(message)
    correlation = np.full((len(accuracy), len(accuracy)), quality * common)
    np.fill_diagonal(correlation, quality)
    parts = np.arange(bins + 1) / bins
    # Share of requests that class j gets right and whose reading by class i is below a quantile.
    below = _both_below(accuracy[None, None, :], parts[None, :, None], correlation[:, None, :])
    # The greatest difficulties are those of the least sure bin.
    return np.ascontiguousarray((np.diff(below, axis=1) * bins)[:, ::-1]).clip(0.0, 1.0)


def _both_below(first: Floats, second: Floats, correlation: Floats) -> Floats:
    """Probability that two normal variables are both below their quantiles of these shares."""
    from scipy.special import ndtri, owens_t  # a tenth of a second, which most uses do not need

    first, second, correlation = np.broadcast_arrays(first, second, correlation)
    both = np.minimum(first, second)  # at a correlation of 1, and where one share is 0 or 1
    inner = (both > 0) & (np.maximum(first, second) < 1) & (correlation < _NEARLY)
    p, q, r = first[inner], second[inner], correlation[inner]
    h, k = ndtri(p), ndtri(q)
    h, k = np.where(h == 0, _ZERO, h), np.where(k == 0, _ZERO, k)
    rest = np.sqrt(1 - r**2)
    both[inner] = (
        (p + q) / 2
        - owens_t(h, (k - r * h) / (h * rest))
        - owens_t(k, (h - r * k) / (k * rest))
        - np.where((h > 0) == (k > 0), 0.0, 0.5)
    )
    return both
