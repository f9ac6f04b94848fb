"""The running time of a stream of gaps, kept to the last digit over billions of them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK: Final = 65_536
"""Arrivals, or steps of a chain, drawn at a time. Sums are rounded by chunk, so another size
changes the last digits of the times, and where several kinds of numbers take turns, all of them."""


class Clock:
    """A sum in two parts, so that its rounding errors do not add up (Knuth's TwoSum)."""

    def __init__(self) -> None:
        self.base = 0.0
        self.rest = 0.0
        """What `base` is short of the exact sum, below half of its last digit."""

    def after(self, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn (m,) gaps into the times at their ends, in place."""
        gaps[0] += self.rest
        np.cumsum(gaps, out=gaps)
        return self.moved(gaps, float(gaps[-1]))

    def moved(self, since: NDArray[np.float64], end: float) -> NDArray[np.float64]:
        """Turn times since `base`, that began at `rest`, into times, in place; go on from `end`."""
        since += self.base
        total = self.base + end
        back = total - self.base
        self.rest = (self.base - (total - back)) + (end - back)
        self.base = total
        return since
