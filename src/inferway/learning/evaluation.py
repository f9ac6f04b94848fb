"""How good a policy is when it acts as deployed: sigma = 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inferway.learning.site import Control, SlottedSites
from inferway.learning.tally import Tally

__all__ = ["Decide", "evaluate"]

Decide = Callable[[NDArray[np.float32]], tuple[NDArray[np.float64], NDArray[np.int64] | None]]
"""(E, d) observations to (E, n) probabilities and (E, K, 2) batch rules, or None."""


def evaluate(
    decide: Decide,
    control: Control,
    *,
    slots: int = 600_000,
    sites: int = 200,
    seed: int = 0,
    warmup: int = 10,
) -> Tally:
    """Run a policy and count.

    Parameters
    ----------
    decide
        The policy.
    control
        The sites as it sees them.
    slots
        Over all sites, rounded up to whole slots of each; the paper's 600,000 by default.
    sites
        In lockstep.
    seed
        Of the workload, the service times and the routing.
    warmup
        Slots of each site that are not counted; they begin empty, the workload in its long run.

    Returns
    -------
    Tally
        The sites' requests by phase at their arrival.
    """
    run = SlottedSites(control, count=sites, seed=seed)
    for t in range(warmup + -(-slots // sites)):
        if t == warmup:
            run.clear()
        run.step(*decide(run.observation))
    return Tally.of(run)
