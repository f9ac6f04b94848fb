"""Live against twin: one recording, what was measured and what a simulation makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from inferway.twin.result import TaskResult, finite
from inferway.twin.trace import Trace


@dataclass(frozen=True)
class Numbers:
    """What is compared: of the live server, or of a simulation."""

    mean_s: float
    """Response time of the answers."""
    p50_s: float
    p95_s: float
    p99_s: float
    accuracy: float
    """Of the answers, by the profiles of their variants."""
    rejected: float
    """Refused at once, over requests."""
    dropped: float
    """Left without an answer later, over requests."""
    shares: dict[str, float]
    """Of the answers, by variant."""
    queries: int

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {
            "response_time_s": {
                "mean": finite(self.mean_s),
                "p50": finite(self.p50_s),
                "p95": finite(self.p95_s),
                "p99": finite(self.p99_s),
            },
            "accuracy": finite(self.accuracy),
            "rejected": finite(self.rejected),
            "dropped": finite(self.dropped),
            "shares": {name: finite(share) for name, share in self.shares.items()},
            "queries": self.queries,
        }


@dataclass(frozen=True)
class Error:
    """How far a simulation is from the live server."""

    mean: float
    """Relative: 0.1 is a mean that is a tenth too long."""
    p95: float
    """Relative."""
    accuracy: float
    """Difference; 0.005 is half a point."""

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return {name: finite(value) for name, value in vars(self).items()}


@dataclass(frozen=True)
class Comparison:
    """One recording of a task.

    Attributes
    ----------
    live
        Response times go from dispatch to answer; to read a request before that is not recorded.
    twin
        With service times measured in the recording.
    profiled
        With those of the file.
    notes
        What of the recording the twin cannot follow.
    """

    live: Numbers
    twin: Numbers
    profiled: Numbers
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> Error:
        """Of the twin."""
        return error(self.twin, self.live)

    @property
    def profiled_error(self) -> Error:
        """Of the twin by profiles."""
        return error(self.profiled, self.live)

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --trace DIR --json` prints it under ``tasks.NAME.trace``."""
        return {
            "live": self.live.to_json(),
            "twin": self.twin.to_json(),
            "profiled": self.profiled.to_json(),
            "error": {**self.error.to_json(), "profiled": self.profiled_error.to_json()},
            "notes": list(self.notes),
        }


def error(simulated: Numbers, live: Numbers) -> Error:
    """How far `simulated` is from `live`."""
    return Error(
        mean=simulated.mean_s / live.mean_s - 1.0,
        p95=simulated.p95_s / live.p95_s - 1.0,
        accuracy=simulated.accuracy - live.accuracy,
    )


def measured(trace: Trace) -> Numbers:
    """What the live server did.

    Raises
    ------
    ValueError
        Where it answered nothing.
    """
    answered, taken_by = trace.answered, trace.taken_by
    if not answered.any():
        raise ValueError(
            f"the recording of task {trace.task} has {len(answered)} requests and no answer"
        )
    response_s = (trace.left_s - trace.arrived_s)[answered]
    p50_s, p95_s, p99_s = np.quantile(response_s, (0.5, 0.95, 0.99)).tolist()
    by = np.bincount(taken_by[answered], minlength=len(trace.variants)) / answered.sum()
    return Numbers(
        mean_s=float(response_s.mean()),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        accuracy=float(by @ trace.accuracy),
        rejected=float((taken_by < 0).mean()),
        dropped=float((~answered & (taken_by >= 0)).mean()),
        shares=dict(zip(trace.variants, by.tolist(), strict=True)),
        queries=len(answered),
    )


def simulated(result: TaskResult) -> Numbers:
    """The same of a simulation."""
    return Numbers(
        mean_s=result.response_time_s.mean,
        p50_s=result.p50_s,
        p95_s=result.p95_s,
        p99_s=result.p99_s,
        accuracy=result.accuracy.mean,
        rejected=result.rejected,
        dropped=result.dropped,
        shares=result.shares,
        queries=result.queries,
    )
