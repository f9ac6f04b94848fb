"""The demo's requests: two-level bursts, at rates that follow from what this machine can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inferway.demo.calibration import feasible_rate
from inferway.deployment.workloads import MapArrivals
from inferway.site.fleet import Fleet
from inferway.workload.arrivals import times

QUIET_S: Final = 1.4
"""Mean length of a quiet phase."""

BURST_S: Final = 0.7
"""Mean length of a burst."""

_PART: Final = BURST_S / (QUIET_S + BURST_S)
_OVERLOAD: Final = 1.25
"""Mean rate over what the most accurate variant carries alone."""
_SWING: Final = 2.5
"""Rate of a burst over the quiet one, where the fleet can carry it."""
_PEAK_LOAD: Final = 0.75
"""Rate of a burst over the greatest feasible rate, at most."""
_CALM: Final = 0.9
"""Quiet rate over that of a burst, at most."""
_TYPICAL: Final = 0.02
_TRIES: Final = 200


@dataclass(frozen=True)
class Load:
    """Rates per second.

    Attributes
    ----------
    feasible_per_s
        Greatest rate at which the target can be kept.
    most_accurate_per_s
        What the most accurate variant carries alone.
    quiet_per_s, burst_per_s
        The two levels.
    """

    feasible_per_s: float
    most_accurate_per_s: float
    quiet_per_s: float
    burst_per_s: float

    @property
    def mean_per_s(self) -> float:
        """Mean of the two levels, weighted by how long they last."""
        return (1 - _PART) * self.quiet_per_s + _PART * self.burst_per_s

    @property
    def telling(self) -> bool:
        """Whether the most accurate variant alone cannot carry the mean."""
        return self.mean_per_s > self.most_accurate_per_s

    def process(self) -> MapArrivals:
        """Return the arrivals as a deployment file names them: a MAP of two phases."""
        calm, tense = 1 / QUIET_S, 1 / BURST_S
        return MapArrivals(
            process="map",
            d0=((-self.quiet_per_s - calm, calm), (tense, -self.burst_per_s - tense)),
            d1=((self.quiet_per_s, 0.0), (0.0, self.burst_per_s)),
        )


def choose(fleet: Fleet, target: float, cores: int) -> Load:
    """Choose rates below what the fleet can carry, yet above what its most accurate class can.

    Parameters
    ----------
    fleet
        With measured service rates.
    target
        Accuracy target, 0..1.
    cores
        That all instances share.
    """
    feasible = feasible_rate(fleet, target, cores)
    best = int(np.argmax(fleet.accuracy))
    alone = float(min(fleet.count[best], cores) * fleet.rate[best])
    mean = _OVERLOAD * alone
    quiet = mean / ((1 - _PART) + _PART * _SWING)
    burst = _SWING * quiet
    if burst > _PEAK_LOAD * feasible:
        burst = _PEAK_LOAD * feasible
        quiet = min((mean - _PART * burst) / (1 - _PART), _CALM * burst)
    return Load(feasible, alone, quiet, burst)


def arrivals(load: Load, duration_s: float, seed: int) -> NDArray[np.float64]:
    """Draw arrival times: Poisson at a rate that switches between the two levels.

    A few tens of phases vary a lot in number and length. Of the streams that the seed gives, the
    first whose mean rate is within 2 % of the mean is taken, so that every run has the load that
    it says.

    Parameters
    ----------
    load
        The levels.
    duration_s
        Length of the stream, seconds.
    seed
        Of the streams.

    Returns
    -------
    times_s
        Ascending, seconds from the start.
    """
    process = load.process()
    expected = load.mean_per_s * duration_s
    closest = np.empty(0)
    for word in np.random.SeedSequence(seed).generate_state(_TRIES).tolist():
        drawn = times(process, horizon_s=duration_s, seed=word)
        if abs(len(drawn) - expected) < abs(len(closest) - expected):
            closest = drawn
        if abs(len(closest) - expected) <= _TYPICAL * expected:
            break
    return closest
