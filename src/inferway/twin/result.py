"""What a simulation gives: numbers with their errors, as JSON, as frames, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.site.view import Floats

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error; nan where nothing was counted."""

    mean: float
    stderr: float

    def to_json(self) -> dict[str, float | None]:
        """Both by name."""
        return finite_values(vars(self))


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
            **finites(self, "share utilization response_time_s"),
            **percentiles(self),
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
            "response_time_s": {"mean": finite(self.response_time_s)} | percentiles(self),
            "accuracy": finite(self.accuracy),
            "shares": finite_values(self.shares),
            "dispatched": finite_values(self.dispatched),
            **finites(self, "rejected dropped late goodput violation_ratio"),
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
            "response_time_s": {"mean": finite(self.mean_s)} | percentiles(self),
            **finites(self, "accuracy rejected dropped"),
            "shares": finite_values(self.shares),
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
        return finite_values(vars(self))


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
            "response_time_s": self.response_time_s.to_json() | percentiles(self),
            "accuracy": self.accuracy.to_json(),
            "accuracy_target": self.accuracy_target,
            "balance": self.balance,
            "shares": finite_values(self.shares),
            "dispatched": finite_values(self.dispatched),
            **finites(self, "rejected dropped late goodput violation_ratio"),
            "queries": self.queries,
            "queries_per_cpu_s": finite(self.queries_per_cpu_s),
            "phases": [phase.to_json() for phase in self.phases],
            "classes": {name: one.to_json() for name, one in self.classes.items()},
            **finites(self, "in_system rate_per_s"),
            "stable": self.stable,
            "complete": self.complete,
            "notes": list(self.notes),
            "engine": self.engine,
            "replications": self.replications,
            "warmup": self.warmup,
            "simulated_s": self.simulated_s,
        }
        return found if self.trace is None else found | {"trace": self.trace.to_json()}


Float = NDArray[np.float64]


@dataclass(frozen=True)
class PartResult:
    """What one tier served, or what the requests for one task got."""

    share: float
    """Of all requests."""
    latency_s: float
    """Mean round trip and inference delay of a request."""
    inaccuracy: float
    """Mean, 0..1."""
    ntag_ms: float | None
    """Gain per request; None for tiers, which have none of their own."""
    mu_bytes_per_slot: float
    """Bytes of models fetched per slot."""
    used: float | None
    """Mean share of the budgets in use; None for tasks, and where there is no budget."""

    def to_json(self) -> dict[str, float | None]:
        """By name, without what does not apply."""
        return finite_values({name: of for name, of in vars(self).items() if of is not None})


@dataclass(frozen=True)
class Regret:
    """How far a run stayed behind the best static allocation, in cost times requests."""

    best: Float
    """(T,) gain per slot of the best static allocation that was found."""
    discounted: float
    """(1 - 1/e) of its total gain less the run's: what Theorem V.1 bounds."""
    plain: float
    """Its total gain less the run's."""
    bound: float
    """A sqrt(T)."""
    gap: float
    """Proven gap of the best static allocation, as a share."""

    def to_json(self) -> dict[str, float | None]:
        """By name."""
        return finites(self, "plain discounted bound") | {"optimality_gap": finite(self.gap)}


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """One policy on one network over some slots.

    Attributes
    ----------
    policy
        Its name.
    slots, slot_s
        How many, and their length in seconds.
    ntag_ms
        Time-averaged gain per request ([SiSalem23], eq. 23), in the unit of the cost.
    mu_bytes_per_slot
        Time-averaged model updates (eq. 24).
    latency_s, inaccuracy
        Means over requests: seconds, and 0..1.
    cpu_s_per_slot
        CPU time of the policy's step, the mean without the first, which loads compiled code.
    tiers, tasks
        The same by part.
    requests, gain, moved
        (T,) per slot: requests, gain in cost times requests, bytes fetched.
    network
        What ran; the arrays below follow its options and pairs.
    served
        (O,) requests that each option served.
    presence
        (P,) share of the slots in which each useful pair was allocated.
    fractional
        (P,) the fractional allocation at the end; None where the policy has none.
    regret
        Against the best static allocation, if it was asked for.
    notes
        What a reader should know: an early end.
    """

    policy: str
    slots: int
    slot_s: float
    ntag_ms: float
    mu_bytes_per_slot: float
    latency_s: float
    inaccuracy: float
    cpu_s_per_slot: float
    tiers: dict[str, PartResult]
    tasks: dict[str, PartResult]
    requests: Float
    gain: Float
    moved: Float
    network: DeliveryNetwork
    served: Float
    presence: Float
    fractional: Float | None
    regret: Regret | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """By name, as `inferway simulate FILE --json` prints it."""
        found: dict[str, Any] = {
            "policy": self.policy,
            **finites(self, "ntag_ms mu_bytes_per_slot latency_s inaccuracy"),
            "slots": self.slots,
            "slot_s": self.slot_s,
            "cpu_s_per_slot": finite(self.cpu_s_per_slot),
            "tiers": {name: part.to_json() for name, part in self.tiers.items()},
            "tasks": {name: part.to_json() for name, part in self.tasks.items()},
        }
        if self.regret is not None:
            found["regret"] = self.regret.to_json()
        return found

    def to_frame(self) -> pd.DataFrame:
        """One row per slot: requests, gain per request, bytes fetched."""
        import pandas as pd

        return pd.DataFrame(
            {
                "time_s": np.arange(self.slots) * self.slot_s,
                "requests": self.requests,
                "gain_ms": self.gain / np.where(self.requests > 0, self.requests, 1.0),
                "moved_bytes": self.moved,
            },
            index=pd.RangeIndex(self.slots, name="slot"),
        )


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


def finite_values(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers by name, as JSON can hold them."""
    return {name: finite(number) for name, number in numbers.items()}


def finites(result: Any, names: str) -> dict[str, float | None]:
    """Attributes of a result, as JSON can hold them; names with blanks between."""
    return {name: finite(getattr(result, name)) for name in names.split()}


def percentiles(result: Any) -> dict[str, float | None]:
    """Percentiles of the response time that a result has, s."""
    return {name: finite(getattr(result, f"{name}_s")) for name in ("p50", "p95", "p99")}
