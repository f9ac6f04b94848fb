"""A forecast of the next slot's counts, from those of the slots so far.

The next count of a request type is taken to be the last one, unless an exponentially weighted
average of its counts would have been nearer to what came. So a forecast follows a change at once,
and does not follow the noise of counts that are drawn from a constant mean.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from inferway.placement.contract import Float

# Weights of the last count: all of it, and those of the averages.
WEIGHTS: Final = (1.0, 0.5, 0.2, 0.05)
# What an error counts for in each slot that follows.
DISCOUNT: Final = 0.9
# How many times smaller the error of an average must be than the last count's.
LEAD: Final = 1.2


class Forecast:
    """The forecast of several counts, each for itself."""

    def __init__(self, counts: int) -> None:
        self._weights = np.array(WEIGHTS)[:, None]
        self._levels = np.full((len(WEIGHTS), counts), np.nan)
        self._errors = np.zeros((len(WEIGHTS), counts))

    def next(self, counts: Float) -> Float:
        """Take in (c,) counts of a slot; returns (c,) those that are forecast for the next."""
        if np.isnan(self._levels).any():
            self._levels[:] = counts
        self._errors *= DISCOUNT
        self._errors += np.abs(self._levels - counts)
        self._levels += self._weights * (counts - self._levels)
        last, *averages = self._errors
        best = 1 + np.argmin(averages, axis=0)
        led = np.min(averages, axis=0) * LEAD < last
        chosen = np.where(led, best, 0)
        return np.asarray(self._levels[chosen, np.arange(len(counts))])
