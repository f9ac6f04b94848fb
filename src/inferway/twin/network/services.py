"""Service times of one variant on one hardware, drawn in blocks by the laws of the site's twin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.site.compiled import entry
from inferway.site.view import Floats
from inferway.twin.kernel.chance import streams
from inferway.twin.kernel.laws import Laws, draw, laws

if TYPE_CHECKING:
    from inferway.deployment import ServiceTime

_BLOCK = 1024


class ServiceTimes:
    """An endless row of service times.

    Parameters
    ----------
    service
        The distribution.
    seed, number
        Which stream of random numbers.
    """

    def __init__(self, service: ServiceTime, seed: int, number: int) -> None:
        self.mean_s = service.mean_s
        self._fixed = service.distribution == "deterministic"
        self._laws = laws([service], [None])
        self._state = streams(seed, number, 1)
        self._block = np.empty(_BLOCK)
        self._left: list[float] = []

    def next(self) -> float:
        """The next service time, s."""
        if self._fixed:
            return self.mean_s
        if not self._left:
            _fill(self._laws, self._state, self._block)
            self._left = self._block.tolist()
        return self._left.pop()


@entry
def _fill(laws: Laws, states: Any, found: Floats) -> None:
    state = states[0]
    for i in range(len(found)):
        time_s, state = draw(laws, 0, 1, state)
        found[i] = time_s
    states[0] = state
