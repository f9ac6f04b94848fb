"""Services that drift: how many times longer they take than is said, a bounded random walk.

The logarithm of the factor is a Brownian motion between two reflecting bounds, looked at every so
often: the factor holds in between. Its long run is uniform in the logarithm, which is where a walk
begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from inferway.site.view import Floats


@dataclass(frozen=True)
class ServiceWalk:
    """A drift of all service times of a site together.

    Raises
    ------
    ValueError
        Where the bounds are none, or a step is not above 0.
    """

    low: float = 0.8  # Least factor
    high: float = 1.6  # Greatest factor
    step: float = 0.02  # Standard deviation of the logarithm's change within a second
    every_s: float = 1.0  # How long a factor holds in the twin; in a learner's sites, a slot

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < math.inf:
            raise ValueError(
                f"services take from {self.low:g} to {self.high:g} times as long: both are above "
                "0, the least first"
            )
        for name in ("step", "every_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is above 0, not {value:g}")

    def begin(self, random: np.random.Generator, count: int = 1) -> Floats:
        """Draw (count,) factors of the long run."""
        return np.exp(random.uniform(math.log(self.low), math.log(self.high), count))

    def after(self, factor: Floats, time_s: float, random: np.random.Generator) -> Floats:
        """Draw what factors become within a time."""
        low, width = math.log(self.low), math.log(self.high) - math.log(self.low)
        if width == 0.0:
            return factor.copy()
        moved = self.step * math.sqrt(time_s) * random.standard_normal(factor.shape)
        # Reflected at both bounds, however far it has gone: a triangle wave.
        away = (np.log(factor) - low + moved) % (2.0 * width)
        return np.asarray(np.exp(low + np.minimum(away, 2.0 * width - away)))
