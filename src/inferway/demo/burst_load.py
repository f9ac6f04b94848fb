"""The burst demo's workload: calm and burst in turn, at rates that follow from this machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.deployment.workloads import PhasedArrivals
from inferway.site.fleet import Fleet
from inferway.workload.arrivals import times

PHASES: Final = ("calm", "burst")
"""They follow each other."""
CALM: Final = 5 / 8
"""Part of the time that is calm."""
CYCLES: Final = 2
"""Of calm and burst, in one stream."""

JUMP: Final = 18.0
"""By which a burst multiplies the rate, as in [Tan24]."""
_CALM_LOAD: Final = 0.21
"""Calm rate over what the heavy instances carry, as in [Tan24]: 10/s of 2 at 42.9 ms."""
_SPARED: Final = 0.3
"""Of a core, for the server itself and the generator, where instances have no cores to spare."""
_SERVICES: Final = 6.0
"""Heavy services that fit into the deadline, at least; 7 in [Tan24]."""
_LEAST_DEADLINE_S: Final = 0.01


@dataclass(frozen=True)
class BurstLoad:
    """What is asked of the fleet.

    Attributes
    ----------
    heavy_per_s
        What the heavy instances carry together on this machine's cores.
    calm_per_s, burst_per_s
        The two rates.
    deadline_s
        From arrival.
    calm_s, burst_s
        Length of the phases.
    """

    heavy_per_s: float
    calm_per_s: float
    burst_per_s: float
    deadline_s: float
    calm_s: float
    burst_s: float

    def process(self) -> dict[str, Any]:
        """The arrivals as a deployment file writes them."""
        return {
            "process": "phases",
            "phases": [
                {"for": f"{self.calm_s!r} s", "rate": f"{self.calm_per_s!r}/s"},
                {"for": f"{self.burst_s!r} s", "rate": f"{self.burst_per_s!r}/s"},
            ],
        }

    def arrivals(self, seed: int) -> NDArray[np.float64]:
        """Draw the arrival times of one stream, seconds from its start."""
        process = PhasedArrivals.model_validate(self.process())
        return times(process, horizon_s=CYCLES * (self.calm_s + self.burst_s), seed=seed)

    def phase_of(self, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
        """Which of `PHASES` each time is in."""
        inside_s = times_s % (self.calm_s + self.burst_s)
        return np.asarray(inside_s >= self.calm_s).astype(np.int64)


def choose_burst(fleet: Fleet, cores: int, duration_s: float) -> BurstLoad:
    """Choose rates and a deadline.

    The deadline is one of 10, 20, 40 ms and so on, so that a policy that has been trained for one
    fits the same machine another time.

    Parameters
    ----------
    fleet
        With measured service rates.
    cores
        That all instances share with the server and the generator.
    duration_s
        Length of the stream, seconds.
    """
    heavy = int(np.argmax(fleet.accuracy))
    service_s = 1.0 / float(fleet.rate[heavy])
    carried = min(float(fleet.count[heavy]), max(cores - _SPARED, 0.5)) / service_s
    doublings = math.ceil(math.log2(_SERVICES * service_s / _LEAST_DEADLINE_S))
    calm = _CALM_LOAD * carried
    cycle_s = duration_s / CYCLES
    return BurstLoad(
        carried,
        calm,
        JUMP * calm,
        _LEAST_DEADLINE_S * 2.0 ** max(0, doublings),
        CALM * cycle_s,
        (1 - CALM) * cycle_s,
    )
