"""A policy's run as it is deployed, with sigma = 0, and what came of the requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inferway.learning.site import Control, SlottedSites

Decide = Callable[[NDArray[np.float32]], tuple[NDArray[np.float64], NDArray[np.int64] | None]]
"""(E, d) observations to (E, n) probabilities and (E, K, 2) batch rules, or None."""


@dataclass(frozen=True)
class PhaseTally:
    """Counts by phase of the workload at arrival, over all sites.

    Attributes
    ----------
    arrived, rejected, late
        (m,); `rejected` counts dropped ones too, `late` those that were answered late.
    timely
        (m, K) answered in time.
    sent
        (m, K) accepted.
    accuracy
        (K,)
    """

    arrived: NDArray[np.int64]
    rejected: NDArray[np.int64]
    late: NDArray[np.int64]
    timely: NDArray[np.int64]
    sent: NDArray[np.int64]
    accuracy: NDArray[np.float64]

    @staticmethod
    def of(sites: SlottedSites) -> PhaseTally:
        """Sum what sites have counted since they were cleared."""
        counts = sites.counts
        return PhaseTally(
            arrived=counts.arrived.sum(axis=0),
            rejected=(counts.rejected + counts.dropped).sum(axis=0),
            late=counts.answered[..., 1].sum(axis=(0, 2)),
            timely=counts.answered[..., 0].sum(axis=0),
            sent=counts.sent.sum(axis=0),
            accuracy=np.asarray(sites.control.scenario.fleet.accuracy, np.float64),
        )

    @property
    def goodput(self) -> NDArray[np.float64]:
        """(m,) correct answers in time per request; nan in a phase without requests."""
        return _share(self.timely @ self.accuracy, self.arrived)

    @property
    def violations(self) -> NDArray[np.float64]:
        """(m,) share of the requests that were rejected or late."""
        return _share(self.rejected + self.late, self.arrived)

    @property
    def heavy(self) -> NDArray[np.float64]:
        """(m,) share of the accepted requests at the most accurate class."""
        return _share(self.sent[:, int(self.accuracy.argmax())], self.sent.sum(axis=1))

    @property
    def overall_goodput(self) -> float:
        """Mean of the phases with requests: [Tan24]'s overall."""
        return _mean(self.goodput)

    @property
    def overall_violations(self) -> float:
        """As `overall_goodput`."""
        return _mean(self.violations)


def _share(part: NDArray[np.generic], whole: NDArray[np.int64]) -> NDArray[np.float64]:
    share = np.full(len(whole), np.nan)
    np.divide(part, whole, out=share, where=whole > 0)
    return share


def _mean(shares: NDArray[np.float64]) -> float:
    counted = shares[~np.isnan(shares)]
    return float(counted.mean()) if len(counted) else float("nan")


def evaluate(
    decide: Decide,
    control: Control,
    *,
    slots: int = 600_000,
    sites: int = 200,
    seed: int = 0,
    warmup: int = 10,
) -> PhaseTally:
    """Run a policy and count the sites' requests by phase at their arrival.

    The slots are those of all sites together, rounded up to whole slots of each: the paper's
    600,000 by default. Sites begin empty, the workload in its long run; their first slots, the
    warm-up, do not count. The seed is that of workload, service times and routing.
    """
    run = SlottedSites(control, count=sites, seed=seed)
    for t in range(warmup + -(-slots // sites)):
        if t == warmup:
            run.clear()
        run.step(*decide(run.observation))
    return PhaseTally.of(run)
