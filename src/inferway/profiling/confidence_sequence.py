"""A mean of values in 0..1 that is looked at all the time, and an interval that allows it.

The interval is a confidence sequence: with probability 95 % or more, it holds the mean at every
step at once, however often it is looked at and whenever somebody stops. A usual interval holds at
one step that was fixed before.

Source: I. Waudby-Smith and A. Ramdas, *Estimating means of bounded random variables by betting*
(2024, DOI 10.1093/jrsssb/qkad009), the hedged capital process of Theorem 3 with the predictable
plug-in bets of its Eq. (26), and half of the error for each side. One departure, which makes the
interval no narrower: means are looked at on a grid, and each limit is the last grid point that has
been ruled out, not the first that has not. A value may lie outside of 0..1 by an amount that is
known before it is: the bet on it is the smaller for that, so that capital stays above 0.
"""

from __future__ import annotations

import math
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

LEVEL: Final = 0.95
POINTS: Final = 1000
_TRUNCATION: Final = 0.5  # of a bet, so that capital stays above 0


class ConfidenceSequence:
    """The mean of values that come one after the other, each of 0..1, and an interval around it.

    The values may be of any distribution and depend on each other, as long as each has the same
    mean given those before it.

    Parameters
    ----------
    level
        Probability with which the interval holds at every step.
    points
        Steps of the grid between 0 and 1.
    """

    def __init__(self, level: float = LEVEL, points: int = POINTS) -> None:
        self.count, self._sum = 0, 0.0
        self._squares = 0.25  # of distances to the running means, with one that was made up
        self._ruin = math.log(2.0 / (1.0 - level))  # capital, as a logarithm, that rules a mean out
        self._means = np.linspace(0.0, 1.0, points + 1)
        self._most_up, self._most_down = self._most(0.0)
        # By mean, capital of who bets that the true one is above it, and below it.
        self._up, self._down = np.zeros(points + 1), np.zeros(points + 1)

    def _most(self, beyond: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Limit the bets on a value of -beyond..1 + beyond, up and down, by mean."""
        with np.errstate(divide="ignore"):
            up = _TRUNCATION / (self._means + beyond)
            return up, _TRUNCATION / (1.0 - self._means + beyond)

    def add(self, value: float, beyond: float = 0.0) -> None:
        """Take in the next value.

        Parameters
        ----------
        value
            In -beyond..1 + beyond.
        beyond
            How far it may lie outside of 0..1; chosen without looking at the value.
        """
        value, ordinal = float(value), self.count + 1
        most_up, most_down = self._most(beyond) if beyond else (self._most_up, self._most_down)
        # The bet is made before the value is looked at.
        variance = self._squares / ordinal
        bet = math.sqrt(2.0 * self._ruin / (variance * ordinal * math.log(ordinal + 1.0)))
        distance = value - self._means
        self._up += np.log1p(np.minimum(bet, most_up) * distance)
        self._down += np.log1p(-np.minimum(bet, most_down) * distance)
        self.count, self._sum = ordinal, self._sum + value
        self._squares += (value - (0.5 + self._sum) / (ordinal + 1.0)) ** 2

    @property
    def mean(self) -> float | None:
        """Mean of the values so far; None before the first."""
        return self._sum / self.count if self.count else None

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper limit of the mean, 0..1."""
        # The capital of either side changes one way along the means.
        below = np.flatnonzero(self._up >= self._ruin)
        above = np.flatnonzero(self._down >= self._ruin)
        return (
            float(self._means[below[-1]]) if below.size else 0.0,
            float(self._means[above[0]]) if above.size else 1.0,
        )

    def pack(self) -> bytes:
        """Write down all that `unpack` needs to go on from here."""
        sides: list[NDArray[np.float64]] = [self._up, self._down]
        state = (self.count, self._sum, self._squares, [side.tobytes() for side in sides])
        return msgspec.msgpack.encode(state)

    @classmethod
    def unpack(cls, packed: bytes, level: float = LEVEL, points: int = POINTS) -> Self:
        """Go on from what `pack` has written, of the same level and points.

        Raises
        ------
        ValueError
            Where it is none.
        """
        own = cls(level, points)
        kind = tuple[int, float, float, list[bytes]]
        own.count, own._sum, own._squares, sides = msgspec.msgpack.decode(packed, type=kind)
        own._up, own._down = (np.frombuffer(side).copy() for side in sides)
        if own._up.shape != own._means.shape or own._down.shape != own._means.shape:
            raise ValueError(f"a sequence of {points} points has other capital")
        return own
