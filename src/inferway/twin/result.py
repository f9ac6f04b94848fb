"""What a simulation gives: numbers with their errors, as JSON, as frames, as objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.site.view import Floats

if TYPE_CHECKING:
    import pandas as pd

    from inferway.twin.comparison import Comparison
    from inferway.twin.network_result import NetworkResult


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; nan where nothing was counted."""

    mean: float
    stderr: float

    def to_json(self) -> dict[str, float | None]:
        """Both by name."""
        return {"mean": finite(self.mean), "stderr": finite(self.stderr)}


@dataclass(frozen=True)
class ClassResult:
    """One server class."""

    share: float
    """Of the answers."""
    utilization: float
    """Share of its servers' time with a request there."""
    response_time_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    queue_lengths: Floats
    """(L,) share of its servers' time with so many requests at a server, the last of them with
    as many or more."""

    def to_json(self) -> dict[str, Any]:
        """By name; queue lengths up to the last that was seen."""
        seen = np.flatnonzero(self.queue_lengths > 0)
        lengths = self.queue_lengths[: seen[-1] + 1] if len(seen) else self.queue_lengths[:1]
        return {
            "share": finite(self.share),
            "utilization": finite(self.utilization),
            "response_time_s": finite(self.response_time_s),
            "p50": finite(self.p50_s),
            "p95": finite(self.p95_s),
            "p99": finite(self.p99_s),
            "queue_lengths": [float(f"{share:.6g}") for share in lengths],
        }


@dataclass(frozen=True)
class PhaseResult:
    """The requests that arrived in one phase of the workload."""

    accuracy_target: float | None
    rate_per_s: float | None
    response_time_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    accuracy: float
    shares: dict[str, float]
    rejected: float
    dropped: float
    late: float
    goodput: float
    violation_ratio: float
    queries: int
    dispatched: dict[str, float] = field(default_factory=dict)
    """Over the arrivals, by variant: those dispatched to it, less those withdrawn."""

    def to_json(self) -> dict[str, Any]:
        """As the whole run, without errors."""
        return {
            "accuracy_target": self.accuracy_target,
            "rate_per_s": self.rate_per_s,
            "response_time_s": {
                "mean": finite(self.response_time_s),
                "p50": finite(self.p50_s),
                "p95": finite(self.p95_s),
                "p99": finite(self.p99_s),
            },
            "accuracy": finite(self.accuracy),
            "shares": {name: finite(share) for name, share in self.shares.items()},
            "dispatched": {name: finite(share) for name, share in self.dispatched.items()},
            "rejected": finite(self.rejected),
            "dropped": finite(self.dropped),
            "late": finite(self.late),
            "goodput": finite(self.goodput),
            "violation_ratio": finite(self.violation_ratio),
            "queries": self.queries,
        }


@dataclass(frozen=True)
class Series:
    """The site over time, (replications, samples) each but for the times."""

    time_s: Floats
    """(samples,)"""
    in_system: Floats
    """Requests in the system."""
    accuracy: Floats
    """Mean accuracy of what was dispatched since the sample before."""
    running_accuracy: Floats
    """The same since the start."""


@dataclass(frozen=True)
class TaskResult:
    """One task's simulation."""

    response_time_s: Estimate
    p50_s: float
    p95_s: float
    p99_s: float
    accuracy: Estimate
    """Of the answers."""
    accuracy_target: float | None
    balance: float
    """The accuracy balance at the end, mean over replications."""
    shares: dict[str, float]
    """Of the answers, by variant."""
    classes: dict[str, ClassResult]
    rejected: float
    dropped: float
    late: float
    goodput: float
    """Accuracy of the answers within the deadline, summed, over arrivals."""
    violation_ratio: float
    in_system: float
    """Mean number of requests in the system."""
    rate_per_s: float
    """Arrivals over simulated time."""
    queries: int
    """Arrivals that count, in all replications."""
    queries_per_cpu_s: float
    phases: tuple[PhaseResult, ...]
    stable: bool
    notes: tuple[str, ...]
    """What a reader should know: instability, an early end."""
    engine: str
    replications: int
    warmup: int
    """Arrivals before those that count, in all replications."""
    simulated_s: float
    complete: bool
    """Whether the run was as long as asked."""
    series: Series | None = None
    trace: Comparison | None = None
    """Live against twin, where a recording was simulated."""
    dispatched: dict[str, float] = field(default_factory=dict)
    """Over the arrivals, by variant: those dispatched to it, less those withdrawn."""

    @property
    def utilization(self) -> dict[str, float]:
        """Share of servers' time with a request there, by variant."""
        return {name: one.utilization for name, one in self.classes.items()}

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --json` prints it under ``tasks.NAME``."""
        found = {
            "response_time_s": self.response_time_s.to_json()
            | {"p50": finite(self.p50_s), "p95": finite(self.p95_s), "p99": finite(self.p99_s)},
            "accuracy": self.accuracy.to_json(),
            "accuracy_target": self.accuracy_target,
            "balance": self.balance,
            "shares": {name: finite(share) for name, share in self.shares.items()},
            "dispatched": {name: finite(share) for name, share in self.dispatched.items()},
            "rejected": finite(self.rejected),
            "dropped": finite(self.dropped),
            "late": finite(self.late),
            "goodput": finite(self.goodput),
            "violation_ratio": finite(self.violation_ratio),
            "queries": self.queries,
            "queries_per_cpu_s": finite(self.queries_per_cpu_s),
            "phases": [phase.to_json() for phase in self.phases],
            "classes": {name: one.to_json() for name, one in self.classes.items()},
            "in_system": finite(self.in_system),
            "rate_per_s": finite(self.rate_per_s),
            "stable": self.stable,
            "complete": self.complete,
            "notes": list(self.notes),
            "engine": self.engine,
            "replications": self.replications,
            "warmup": self.warmup,
            "simulated_s": self.simulated_s,
        }
        return found if self.trace is None else found | {"trace": self.trace.to_json()}


@dataclass(frozen=True)
class Result:
    """What `inferway.simulate` gives."""

    tasks: dict[str, TaskResult]
    network: NetworkResult | None = None
    """Of a file with `network`; `tasks` is empty then. With ``events=True`` it is an
    `inferway.twin.network.result.EventResult`."""

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --json` prints it."""
        if self.network is not None:
            found = self.network.to_json()
            tasks, policy, slot_s = (found.pop(key) for key in ("tasks", "policy", "slot_s"))
            about = {"policy": policy, "slot_s": slot_s, "notes": list(self.network.notes)}
            return {"schema": 1, **about, "tasks": tasks, "network": found}
        tasks = {name: task.to_json() for name, task in self.tasks.items()}
        return {"schema": 1, "tasks": tasks, "network": None}

    def to_frame(self) -> pd.DataFrame:
        """One row per task, or per slot of a network.

        Nested keys are joined by dots, lists are left out.
        """
        if self.network is not None:
            return self.network.to_frame()
        import pandas as pd

        rows = []
        for name, task in self.tasks.items():
            flat = pd.json_normalize(task.to_json()).iloc[0].to_dict()
            rows.append({"task": name} | {k: v for k, v in flat.items() if not isinstance(v, list)})
        return pd.DataFrame(rows)


def finite(value: float) -> float | None:
    """A number that JSON can hold, or None."""
    return float(value) if np.isfinite(value) else None
