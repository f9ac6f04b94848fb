"""Peaks: what a task's rate comes to beside its mean, for whoever sizes by it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from inferway.workload.arrivals import mean_rate, stream

if TYPE_CHECKING:
    from inferway.deployment.workloads import Arrivals

WINDOW_S: Final = 10.0  # Time over which a rate is counted for a percentile
_WINDOWS: Final = 1_000  # So many of them
PERCENTILE: Final = r"^p([1-9]|[1-9]\d)(\.\d+)?$"
"""Pattern of a percentile, of a file's schema, too."""


def percentile_of(peak: str) -> float | None:
    """Read ``p95`` as 95; None for what is no percentile."""
    return float(peak[1:]) if re.fullmatch(PERCENTILE, peak) else None


def read_peak(value: float | str) -> float | str:
    """Read a peak: a number of times the mean, or a percentile such as ``p95``.

    Raises
    ------
    ValueError
        For anything else.
    """
    if isinstance(value, str) and percentile_of(value) is not None:
        return value
    try:
        times = float(value)
    except ValueError:
        times = 0.0
    if not 0.0 < times < np.inf:
        raise ValueError(no_peak(value))
    return times


def no_peak(value: object) -> str:
    """Say of something that it is no peak."""
    return (
        "a peak is a number of times the mean, such as 1.2, or a percentile such as p95, "
        f"not {value!r}"
    )


def rate_at_peak(arrivals: Arrivals, peak: float | str, *, seed: int = 0) -> float:
    """The rate that a peak stands for, 1/s.

    Parameters
    ----------
    arrivals
        A process with a rate of its own, not a load.
    peak
        A number of times the mean; or a percentile, such as ``p95``, of the rates in windows of
        10 s: a thousand of them, or as many as there are. A trace that is shorter has one rate,
        its mean.
    seed
        Of the arrivals that are drawn for a percentile.
    """
    percent = percentile_of(peak) if isinstance(peak, str) else None
    if percent is None:
        return float(peak) * mean_rate(arrivals)
    counts = np.zeros(_WINDOWS)
    for chunk in stream(arrivals, capacity_per_s=1.0, seed=seed):
        window = (chunk.times_s / WINDOW_S).astype(np.int64)
        counts += np.bincount(window[window < _WINDOWS], minlength=_WINDOWS)
        last = int(window[-1])
        if last >= _WINDOWS:
            last = _WINDOWS
            break
    if last == 0:
        return mean_rate(arrivals)
    # Of a trace that ends, windows that are whole count.
    return float(np.percentile(counts[:last], percent)) / WINDOW_S
