"""Result of a simulation: numbers with their errors, as JSON, as frames, as objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch.totals import TaskCounts, Totals, totals_of
from inferway.site.view import Floats

if TYPE_CHECKING:
    import pandas as pd

    from inferway.network.delivery import DeliveryNetwork

Float = NDArray[np.float64]
PERCENTILES = "p50:p50_s p95:p95_s p99:p99_s"
_COUNTS = "rejected dropped late goodput violation_ratio queries"


def finite(value: float) -> float | None:
    """A number that JSON can hold, or None."""
    return float(value) if np.isfinite(value) else None


def as_json(value: Any) -> Any:
    """A result's value as JSON can hold it."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return value.to_json() if hasattr(value, "to_json") else value


def values(result: Any, names: str) -> dict[str, Any]:
    """Attributes of a result, as JSON can hold them; names with blanks between.

    Where JSON has another name than the attribute, that stands before it, with a colon.
    """
    pairs = (name.partition(":") for name in names.split())
    return {name: as_json(getattr(result, own or name)) for name, _, own in pairs}


class Reported:
    """A result whose JSON is these `values`."""

    names: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return values(self, self.names)


@dataclass(frozen=True, kw_only=True)
class Percentiles(Reported):
    """Percentiles of the response time, s."""

    p50_s: float
    p95_s: float
    p99_s: float

    def response(self, **mean: float) -> dict[str, Any]:
        """The response time as JSON has it: the mean, and the percentiles."""
        return as_json(mean) | values(self, PERCENTILES)


@dataclass(frozen=True, kw_only=True)
class Served(Percentiles):
    """Common results of a whole run and a phase of it, over the arrivals where nothing is said.

    Attributes
    ----------
    accuracy_target
        Least mean accuracy that was asked for.
    shares
        Of the answers, by variant.
    rejected, dropped, late, violation_ratio
        Requests refused at once, left without an answer later, answered after the deadline, and
        all of these.
    goodput
        Accuracy of the answers within the deadline, summed; nan where one is unknown.
    queries
        Arrivals that count, in all replications.
    dispatched
        By variant: those dispatched to it, less those withdrawn.
    """

    accuracy_target: float | None
    shares: dict[str, float]
    rejected: float
    dropped: float
    late: float
    goodput: float
    violation_ratio: float
    queries: int
    dispatched: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MeanEstimate(Reported):
    """A mean and its standard error; nan where nothing was counted, or known of it."""

    names = "mean stderr"
    mean: float
    stderr: float


@dataclass(frozen=True)
class Escalated:
    """Answers of a variant that was asked after another one, as a share of all."""

    first: str
    second: str
    share: float

    def to_json(self) -> dict[str, Any]:
        """As in a bound's ``then``."""
        return {"from": self.first, "to": self.second, "share": self.share}


@dataclass(frozen=True, kw_only=True)
class ClassResult(Percentiles):
    """One server class."""

    share: float  # Of the answers
    utilization: float  # Share of its servers' time with a request there
    response_time_s: float
    # (L,) share of its servers' time with so many requests at a server, the last of them with as
    # many or more.
    queue_lengths: Floats

    names = f"share utilization response_time_s {PERCENTILES} queue_lengths:seen_lengths"

    @property
    def seen_lengths(self) -> list[float]:
        """Queue lengths up to the last that was seen, rounded."""
        seen = np.flatnonzero(self.queue_lengths > 0)
        lengths = self.queue_lengths[: seen[-1] + 1] if len(seen) else self.queue_lengths[:1]
        return [float(f"{share:.6g}") for share in lengths]


@dataclass(frozen=True, kw_only=True)
class PhaseResult(Served):
    """The requests that arrived in one phase of the workload."""

    rate_per_s: float | None
    response_time_s: float
    accuracy: float

    def to_json(self) -> dict[str, Any]:
        """As the whole run, without errors."""
        return {
            **values(self, "accuracy_target rate_per_s"),
            "response_time_s": self.response(mean=self.response_time_s),
            **values(self, f"accuracy shares dispatched {_COUNTS}"),
        }


@dataclass(frozen=True)
class Series:
    """The site over time, (replications, samples) each but for the times."""

    time_s: Floats  # (samples,)
    in_system: Floats  # Requests in the system
    accuracy: Floats  # Mean accuracy of what was dispatched since the sample before
    running_accuracy: Floats  # The same since the start
    dispatched: Floats  # Requests dispatched since the start


@dataclass(frozen=True, kw_only=True)
class Numbers(Percentiles):
    """Numbers to compare: of the live server, or of a simulation."""

    mean_s: float  # Response time of the answers
    accuracy: float  # Of the answers, by the profiles of their variants
    rejected: float  # Refused at once, over requests
    dropped: float  # Left without an answer later, over requests
    shares: dict[str, float]  # Of the answers, by variant
    queries: int

    def to_json(self) -> dict[str, Any]:
        """By name."""
        named = values(self, "accuracy rejected dropped shares queries")
        return {"response_time_s": self.response(mean=self.mean_s)} | named


@dataclass(frozen=True)
class Error(Reported):
    """Error of a simulation against the live server."""

    names = "mean p50 p95 accuracy"
    mean: float  # Relative: 0.1 is a mean that is a tenth too long
    p50: float  # Relative
    p95: float  # Relative
    accuracy: float  # Difference; 0.005 is half a point

    @classmethod
    def of(cls, simulated: Numbers, live: Numbers) -> Error:
        """Compute the error of `simulated` against `live`."""
        mean, p50, p95 = (
            getattr(simulated, name) / getattr(live, name) - 1.0
            for name in ("mean_s", "p50_s", "p95_s")
        )
        return cls(mean, p50, p95, simulated.accuracy - live.accuracy)


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
        return Error.of(self.twin, self.live)

    @property
    def profiled_error(self) -> Error:
        """Of the twin by profiles."""
        return Error.of(self.profiled, self.live)

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --trace DIR --json` prints it under ``tasks.NAME.trace``."""
        error = self.error.to_json() | {"profiled": self.profiled_error.to_json()}
        numbers = values(self, "live twin profiled")
        return numbers | {"error": error, "notes": list(self.notes)}


@dataclass(frozen=True, kw_only=True)
class DriftResult(Reported):
    """True accuracy of the answers where a variant's own has changed.

    Attributes
    ----------
    variant, at_s
        Whose, and when, s from the beginning.
    by
        Whose accuracies the promise is on, `profile` or `measured`.
    before, after
        Mean true accuracy of the answers until then, and from then on; nan without any.
    labels
        Answers that were labeled.
    compared
        Answers that were compared with the most accurate variant's.
    last_labels, last_mean, half_width
        The last labels, 2,000 of each replication at most, their mean, and half of its 95 %
        interval.
    alarms, false_alarms
        Replications in which an alarm said that the variant has changed; alarms before it did.
    alarm_s
        Mean time from the change to that alarm, s; nan without any.
    """

    variant: str
    at_s: float
    by: str
    before: float
    after: float
    labels: int
    compared: int
    last_labels: int
    last_mean: float
    half_width: float
    alarms: int
    false_alarms: int
    alarm_s: float

    names = (
        "variant at_s by before after labels compared last_labels last_mean half_width alarms "
        "false_alarms alarm_s"
    )


@dataclass(frozen=True, kw_only=True)
class TaskResult(Served):
    """One task's simulation."""

    response_time_s: MeanEstimate
    accuracy: MeanEstimate  # Of the answers
    # The accuracy balance at the end, mean over replications; nan without a target.
    balance: float
    classes: dict[str, ClassResult]
    in_system: float  # Mean number of requests in the system
    rate_per_s: float  # Arrivals over simulated time
    queries_per_cpu_s: float
    phases: tuple[PhaseResult, ...]
    stable: bool
    notes: tuple[str, ...]  # What a reader should know: instability, an early end
    engine: str
    replications: int
    warmup: int  # Arrivals before those that count, in all replications
    simulated_s: float
    complete: bool  # Whether the run was as long as asked, or as its trace
    series: Series | None = None
    trace: Comparison | None = None  # Live against twin, where a recording was simulated
    # Answers of the second variant that was asked; None where the policy asks only one.
    escalated: tuple[Escalated, ...] | None = None
    # Accuracy of the answers by what is known of the requests; None where nothing is.
    by_labels: MeanEstimate | None = None
    drift: DriftResult | None = None  # Where a variant's true accuracy has changed
    # Share of the slots of each device that the task's own runs hold, by name, or changes of its
    # variant; None where servers share none. Of several tasks on a device, add theirs up.
    devices: dict[str, float] | None = None
    # How often each exclusive device loads another variant, one of the task, 1/s; None where none
    # is exclusive.
    changes_per_s: dict[str, float] | None = None

    @property
    def utilization(self) -> dict[str, float]:
        """Share of servers' time with a request there, by variant."""
        return {name: one.utilization for name, one in self.classes.items()}

    @property
    def per_second(self) -> TaskCounts:
        """Requests and answers a second, for `Totals`."""
        answers = self.rate_per_s * (1.0 - self.rejected - self.dropped)
        return TaskCounts(
            requests=self.rate_per_s,
            answers=answers,
            accuracy_sum=answers * self.accuracy.mean if answers > 0 else 0.0,
            in_time=self.rate_per_s * (1.0 - self.violation_ratio),
            in_time_sum=self.rate_per_s * self.goodput,
        )

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --json` prints it under ``tasks.NAME``."""
        shares = "accuracy accuracy_target balance shares dispatched"
        about = "in_system rate_per_s stable complete notes engine replications warmup simulated_s"
        response = self.response(**self.response_time_s.to_json())
        trace = {} if self.trace is None else {"trace": self.trace.to_json()}
        named = values(self, f"{shares} {_COUNTS} queries_per_cpu_s phases classes {about}")
        some = ("escalated", "by_labels", "drift", "devices", "changes_per_s")
        asked = [name for name in some if getattr(self, name) is not None]
        return {"response_time_s": response} | named | values(self, " ".join(asked)) | trace


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """Requests that one tier served, or that were for one task."""

    share: float  # Of all requests
    latency_s: float  # Mean round trip and inference delay of a request
    inaccuracy: float  # Mean, 0..1
    ntag_ms: float | None = None  # Gain per request; None for tiers, which have none of their own
    mu_bytes_per_slot: float  # Bytes of models fetched per slot
    # Mean share of the budgets in use; None for tasks, and where there is no budget.
    used: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """By name, without what does not apply."""
        return {name: finite(one) for name, one in vars(self).items() if one is not None}


@dataclass(frozen=True)
class Regret(Reported):
    """Regret of a run against the best static allocation, in cost times requests."""

    names = "plain discounted bound optimality_gap:gap"
    best: Float  # (T,) gain per slot of the best static allocation that was found
    discounted: float  # (1 - 1/e) of its total gain less the run's: what Theorem V.1 bounds
    plain: float  # Its total gain less the run's
    bound: float  # A sqrt(T)
    gap: float  # Proven gap of the best static allocation, as a share


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
        means = "ntag_ms mu_bytes_per_slot latency_s inaccuracy"
        regret = {} if self.regret is None else {"regret": self.regret.to_json()}
        return values(self, f"policy {means} slots slot_s cpu_s_per_slot tiers tasks") | regret

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


@dataclass(frozen=True, eq=False, kw_only=True)
class EventResult(NetworkResult):
    """One policy on one network over some slots, request by request.

    The names that it shares with `NetworkResult` mean the same, with latencies as they happened: a
    request's gain is what it costs less than the slot twin says that repositories alone would have
    cost it, and counts to the slot in which it entered. A lost request gains nothing.

    Attributes
    ----------
    p50_s, p95_s, p99_s
        Percentiles of the latency, s, to 0.5 %.
    accuracy
        Mean over the answers.
    answered, lost
        Requests. Lost are those that two nodes refused and those dropped past their deadline.
    late
        Answers after their deadline.
    retried
        Requests that were decided twice, since the first node refused.
    forwarded
        Share of the answers that came from another node than the entry.
    variants
        Share of the answers, by ``TASK/VARIANT`` of the file and by the tier that served, or the
        node where there are no tiers.
    letters
        Sets of offers that nodes told each other.
    used_most
        Greatest share of its budget that any node ever held, copies that load and leave included.
    in_system, flow
        Mean number of requests in the network, counted, and by Little's law from their times.
    lost_in, latency_in
        (T,) by the slot of entry: requests lost, mean latency in s; nan where none was answered.
    complete
        Whether all slots were run to their end.
    requests_per_cpu_s
        Requests over the CPU time of the events, without what placement takes.
    escalated
        Answers of a second variant, by ``TASK/VARIANT`` of the file, as shares of all; None where
        there are none.
    targets
        Where targets over several tasks stand in the end, by name, as they were dispatched:
        ``tasks``, ``accuracy`` or ``energy``, ``mean``, ``balance``, ``answers``, ``state``, and
        the last four of each entry node in ``nodes``; None where there are none.
    """

    p50_s: float
    p95_s: float
    p99_s: float
    accuracy: float
    answered: int
    lost: int
    late: int
    retried: int
    forwarded: float
    variants: dict[str, dict[str, float]]
    letters: int
    used_most: float
    in_system: float
    flow: float
    lost_in: Float
    latency_in: Float
    complete: bool
    requests_per_cpu_s: float
    escalated: tuple[Escalated, ...] | None = None
    targets: dict[str, dict[str, Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        """By name, as `inferway simulate FILE --events --json` prints it."""
        counts = "p50_s p95_s p99_s accuracy answered lost late retried forwarded variants letters"
        gain_ms = self.gain / np.where(self.requests > 0, self.requests, np.nan)
        series = {
            "requests": self.requests,
            "ntag_ms": gain_ms,
            "latency_s": self.latency_in,
            "lost": self.lost_in,
            "moved_bytes": self.moved,
        }
        return (
            super().to_json()
            | {"events": True}
            | values(self, f"{counts} used_most in_system requests_per_cpu_s")
            | {"series": {name: as_json(one.tolist()) for name, one in series.items()}}
            | ({} if self.escalated is None else {"escalated": self._asked_again()})
            | ({} if self.targets is None else {"targets": as_json(self.targets)})
        )

    def _asked_again(self) -> list[dict[str, Any]]:
        return [one.to_json() for one in self.escalated or ()]

    def to_frame(self) -> pd.DataFrame:
        """One row per slot: requests, gain per request, bytes fetched, mean latency, lost."""
        return super().to_frame().assign(latency_s=self.latency_in, lost=self.lost_in)


@dataclass(frozen=True)
class AssignResult:
    """Account of the devices that a placement policy has given out anew.

    Attributes
    ----------
    slot_s, slots
        Length of a slot, s, and how many count, in all replications.
    moves
        Devices that have changed hands; 0 of a dry run.
    bound
        Greatest accuracy-weighted goodput over all requests of any copies, slot by slot, at the
        rates that each had, where devices can be divided at will and nothing waits.
    copies
        That have served, by ``TASK/VARIANT:DEVICE``, in the mean over slots.
    decisions
        Each that moved something, or would have: ``replication``, ``at_s``, ``rates_per_s`` that
        there was to be room for, ``accuracy_before`` and ``accuracy`` of the requests that were
        expected in the mean, where one that is not served counts as 0, ``reason``, ``moves``, and
        the means ``before`` and ``after`` of ``targets`` over several tasks, by name.
    dry_run
        Whether nothing was moved.
    """

    slot_s: float
    slots: int
    moves: int
    bound: float
    copies: dict[str, float]
    decisions: tuple[dict[str, Any], ...]
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --json` prints it under ``placement``."""
        return values(self, "slot_s slots moves bound copies decisions dry_run")


@dataclass(frozen=True)
class TwinResult:
    """Result of `inferway.simulate`."""

    tasks: dict[str, TaskResult]
    # Of a file with `network`; `tasks` is empty then. With ``events=True`` it is an
    # `EventResult`.
    network: NetworkResult | None = None
    placement: AssignResult | None = None  # Where a policy has given out a node's devices
    not_begun: tuple[str, ...] = ()  # Tasks that Ctrl-C has come before

    @property
    def totals(self) -> Totals | None:
        """All tasks together, each by its rate.

        None of a single task, of a network, and where Ctrl-C has come before some of the tasks.
        """
        if self.not_begun:
            return None
        return totals_of({name: one.per_second for name, one in self.tasks.items()}, span_s=1.0)

    def to_json(self) -> dict[str, Any]:
        """As `inferway simulate FILE --json` prints it."""
        if self.network is None:
            totals = {} if (found := self.totals) is None else {"totals": found.to_json()}
            moved = {} if self.placement is None else {"placement": self.placement.to_json()}
            tasks = as_json(self.tasks)
            left = {"not_begun": list(self.not_begun)} if self.not_begun else {}
            return {"schema": 1, "tasks": tasks, "network": None, **totals, **moved, **left}
        whole = self.network.to_json()
        tasks, policy, slot_s = (whole.pop(key) for key in ("tasks", "policy", "slot_s"))
        about = {"policy": policy, "slot_s": slot_s, "notes": list(self.network.notes)}
        return {"schema": 1, **about, "tasks": tasks, "network": whole}

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
