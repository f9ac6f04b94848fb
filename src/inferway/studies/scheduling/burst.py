"""The system of [Tan24] (Sec. 5.1): one edge server, two variants, a workload with bursts.

Service times are not printed. 42.9 ms and 10.7 ms give what Table 2 says of HW and LW: four
servers of 42.9 ms turn away 48.2 % of 180 requests per second, as printed (48.11 %).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from inferway.studies.scheduling import gains
from inferway.studies.scheduling.batch_curve import (
    HEAVY_PHI,
    LIGHT_PHI,
    SIZES,
    batch_service_s,
)

if TYPE_CHECKING:
    from inferway.deployment.workloads import MapArrivals, PhasedArrivals
    from inferway.learning.site import Control
    from inferway.twin.scenario import Scenario

TASK = "recognise"
VARIANTS = ("light", "heavy")
SERVICE_S = (0.0107, 0.0429)
"""EfficientNet-B0 and PNASNet-5-Large: the calibration of the module's docstring."""
ACCURACY = (0.7769, 0.8278)
"""On ImageNet's validation set, as printed (Sec. 5.1.1)."""
BUFFER = 15
DEADLINE_S = 0.3
VIOLATIONS = 0.02
"""Of a P98 requirement."""

BURSTY, NORMAL = 0, 1
RATE_PER_S = (180.0, 10.0)
LEAVING_PER_S = (0.0036, 0.0002)
"""The first is printed as 0.036, which fits nothing else in the paper; see `table_2`."""
HOLDING_S = (1 / LEAVING_PER_S[0], 1 / LEAVING_PER_S[1])
WORKLOADS = ("map", "periodic")


def arrivals_of(workload: str) -> MapArrivals | PhasedArrivals:
    """``map``: eq. 12. ``periodic``: Sec. 5.2.3, each state for its mean sojourn time.

    Both have the bursty state as phase 0.

    Raises
    ------
    ValueError
        For another name.
    """
    from inferway.deployment.workloads import MapArrivals, phased

    if workload == "map":
        out, back = LEAVING_PER_S
        high, low = RATE_PER_S
        return MapArrivals.read(
            {
                "process": "map",
                "d0": [[-high - out, out], [back, -low - back]],
                "d1": [[high, 0.0], [0.0, low]],
            }
        )
    if workload == "periodic":
        return phased(
            (holding_s, rate_per_s, None)
            for rate_per_s, holding_s in zip(RATE_PER_S, HOLDING_S, strict=True)
        )
    raise ValueError(f"unknown workload {workload!r}: expected one of {', '.join(WORKLOADS)}")


def mean_rate_per_s() -> float:
    """Requests per second in the long run, of both workloads."""
    held = np.array(HOLDING_S)
    return float(held @ np.array(RATE_PER_S) / held.sum())


def scenario(
    workload: str = "map",
    *,
    counts: tuple[int, int] = (2, 2),
    deadline_s: float = DEADLINE_S,
    service_s: tuple[float, float] = SERVICE_S,
    distribution: str = "deterministic",
    cv: float = 0.0,
    phis: tuple[float, float] | None = None,
) -> Scenario:
    """The site as the twin has it.

    Parameters
    ----------
    workload
        One of `WORKLOADS`.
    counts
        Light and heavy servers; a variant of none is left out.
    deadline_s
        From arrival, s. Late requests are served.
    service_s, distribution, cv
        Mean service times, s, their law and its coefficient of variation.
    phis
        Of the `batch_curve`, for light and heavy; None for no batches.
    """
    from inferway.deployment import Batch, ServiceTime
    from inferway.site import Fleet
    from inferway.twin.scenario import Scenario

    there = [k for k, count in enumerate(counts) if count]
    fleet = Fleet(
        variants=tuple(VARIANTS[k] for k in there),
        rate=np.array([1 / service_s[k] for k in there]),
        accuracy=np.array([ACCURACY[k] for k in there]),
        count=np.array([counts[k] for k in there]),
        buffer=BUFFER,
    )
    batches: tuple[Batch | None, ...] = ()
    if phis is not None:
        times = [batch_service_s(service_s[k], phis[k]) for k in there]
        batches = tuple(Batch(SIZES, of, 1, SIZES[-1]) for of in times)
    return Scenario(
        fleet=fleet,
        service=tuple(ServiceTime(distribution, service_s[k], cv=cv) for k in there),
        arrivals=arrivals_of(workload),
        policy="deadline",
        deadline_s=deadline_s,
        late="serve",
        batches=batches,
    )


def control(
    policy: str,
    workload: str = "map",
    *,
    deadline_s: float = DEADLINE_S,
    phis: tuple[float, float] = (LIGHT_PHI, HEAVY_PHI),
) -> Control:
    """The site as a scheduler is trained on it: rewards count the accuracies of `gains`.

    Parameters
    ----------
    policy
        ``rl-po``, ``rl-fo``, or these with ``-b``, which serve batches.
    workload, deadline_s, phis
        As of `scenario`.
    """
    from inferway.learning.site import Control

    batches = policy.endswith("-b")
    asked = scenario(workload, deadline_s=deadline_s, phis=phis if batches else None)
    return Control(
        replace(asked, policy="alias"),
        sees_phase=policy.startswith("rl-fo"),
        batches=batches,
        gains=(gains.LIGHT, gains.HEAVY),
    )
