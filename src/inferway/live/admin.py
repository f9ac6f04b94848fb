"""The admin listener's pages: metrics for Prometheus, status for people and scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from inferway.dispatch.joint import TargetState
from inferway.dispatch.totals import TaskCounts, Totals, totals_of
from inferway.live.answers import AnswerBook
from inferway.live.assigned import DeviceAssignment
from inferway.live.canary import CANARY_STATES
from inferway.live.exclusive import HeldVariants
from inferway.live.headroom import Bodies
from inferway.live.http.exchange import Exchange
from inferway.live.http.routes import Routes
from inferway.live.pool import Pool
from inferway.live.process import PAUSE_BOUNDS_S, Pauses
from inferway.live.request import Outcome
from inferway.live.security.keys import Guard, Role
from inferway.live.site import TaskSite
from inferway.live.stats import BATCH_BOUNDS, LATENCY_BOUNDS_S, coarse
from inferway.live.targets import targets_of
from inferway.live.upstream.remote import Forwarding
from inferway.runtime import AwaitedRuntime, Fault
from inferway.site.view import WHOLE
from inferway.version import __version__

PAGES: Final = ("/", "/metrics", "/status", "/history", "/decisions", "/deployment")
"""Paths of the admin listener that may be read."""

# By name, without ``inferway_`` before it: labels, and text.
_COUNTERS: Final = {
    "requests": "task variant outcome: Requests by how they ended.",
    "answers": "task variant: Rows answered; a request may have several.",
    "late_answers": "task variant: Requests answered after their deadline.",
    "ignored_parameters": (
        "task: Parameters of requests that mean nothing here, and were left alone."
    ),
    "service_seconds": "task variant: Time that models have run, over answered requests.",
    "scheduling_slots": "task: Slots of the scheduler that have begun.",
    "scheduling_seconds": "task: Time of the event loop that the scheduler's decisions have taken.",
    "remote_failures": (
        "task variant fault: Calls to a variant's remote server that gave no answer, probes "
        "included."
    ),
    "escalations": (
        "task first second: Requests that a second variant was asked for after the first."
    ),
    "remote_moved_requests": (
        "task variant: Requests that it did not serve and that another variant was given."
    ),
    "remote_retries": (
        "task variant: Calls made again because the first connection ended before they were out."
    ),
    "remote_connections": "task variant: Connections made to it.",
    "worker_restarts": (
        "task variant: Processes of a Python class that were started in the place of another."
    ),
    "recording_gaps": "task: Times that the disk refused the recording.",
    "recording_lost_decisions": "task: Requests dispatched that could not be recorded.",
    "recording_lost_events": "task: Events that could not be recorded, these requests included.",
    "neighbor_requests": "neighbor: Requests sent to a neighbor.",
    "neighbor_faults": (
        "neighbor fault: Requests that a neighbor lost or failed at, and how often its HTTP hung."
    ),
    "neighbor_health_requests": (
        "neighbor: How often it was asked whether it lives because a request was out for too long."
    ),
    "feedback_labels": "task variant: Answers of its present model that feedback has come for.",
    "feedback_unknown": "task: Feedback for no answer that is kept.",
    "feedback_lost_answers": "task: Answers that could not be kept for feedback.",
    "shadow_runs": "task variant: Its answers that were compared with the most accurate variant's.",
    "shadow_agreed": "task variant: Of these, those that are the same in all rows.",
    "shadow_skipped": (
        "task reason: Answers that were to be compared and were not: no server was idle (busy), "
        "the server was needed (gave-way), or there was nothing to compare (failed)."
    ),
    "canary_requests": "task variant: Requests that a variant was given as a canary.",
    "drift_alarms": (
        "task variant: Alarms that the accuracy of its present model is not what it was, as "
        "feedback says."
    ),
    "placement_slots": ": Slots after which it was decided whether devices are given out anew.",
    "placement_moves": (
        "task variant device change: Copies that were loaded on a device, or retired from it, as "
        "devices are given out anew."
    ),
    "device_changes": "task device: Times that an exclusive device has loaded another variant.",
    "device_change_seconds": "task device: Time that this has taken.",
    "key_failures": (
        "reason: Requests and calls that were not let in, by what is wrong with their key."
    ),
    "bodies_refused": ": Bodies that found no room.",
}
_GAUGES: Final = {
    "queue_length": "task variant: Requests at the servers of a class, those in service included.",
    "instances": "task variant: Running copies of a variant.",
    "load_seconds": (
        "task variant: Time that an exclusive device is predicted to take until it has loaded a "
        "variant."
    ),
    "workers": "task variant: Processes of a Python class that live.",
    "instance_healthy": (
        "task variant instance: 1 while the instance takes requests, 0 while it rests after "
        "failures."
    ),
    "held_requests": "task: Requests in the central queue.",
    "task_ready": "task: 1 when the task is served, else 0.",
    "accuracy_mean_ratio": (
        "task: Mean accuracy, of profiles or as measured, of all answers whose variant has one, "
        "0..1."
    ),
    "accuracy_target_ratio": "task: Accuracy target, 0..1.",
    "accuracy_balance": (
        "task: Running sum of (accuracy - target) over dispatched answers, pinned ones left out; "
        "nothing without a target."
    ),
    "feedback_accuracy_ratio": (
        "task variant: Mean score of these answers since the last drift alarm, 0..1; nothing "
        "before the first."
    ),
    "feedback_accuracy_low_ratio": (
        "task variant: Lower limit of that accuracy, of a confidence sequence of 95 %."
    ),
    "feedback_accuracy_high_ratio": "task variant: Its upper limit.",
    "feedback_profile_ratio": (
        "task variant: Accuracy of the variant by its profile, 0..1; nothing where none says it."
    ),
    "feedback_estimate_ratio": (
        "task variant: Accuracy that counts where the promise is on what is measured."
    ),
    "feedback_joint_ratio": (
        "task variant: Accuracy by labels and comparisons together; nothing before the first label."
    ),
    "feedback_joint_low_ratio": (
        "task variant: Lower limit of that, of a confidence sequence of 95 %."
    ),
    "feedback_joint_high_ratio": "task variant: Its upper limit.",
    "shadow_agreement_ratio": (
        "task variant: Share of rows answered as by the most accurate variant, 0..1; nothing "
        "before the first."
    ),
    "canary_state": (
        "task variant state: 1 for what has become of a canary (trying, promoted, taken-back), 0 "
        "for the others."
    ),
    "drift_alarm_timestamp_seconds": (
        "task variant: When the last of these alarms was raised, s since 1970; nothing before the "
        "first."
    ),
    "promise_kept": (
        "task: 1 while the mean accuracy since the start or the last change of the target is at "
        "the target, 0 where it is missed; nothing before 2,000 answers."
    ),
    "promise_margin_ratio": "task: That mean accuracy less the target.",
    "target_accuracy_mean_ratio": (
        "target: Mean accuracy of the answers that a target over several tasks is over, 0..1."
    ),
    "target_accuracy_goal_ratio": "target: What it is to be at least.",
    "target_energy_mean_joules": (
        "target: Mean energy of the requests that a target over several tasks is over."
    ),
    "target_energy_goal_joules": "target: What it is to be at most.",
    "target_balance": (
        "target: Running sum of what these answers are ahead of such a target, in accuracies or "
        "joules, pinned ones left out."
    ),
    "target_kept": (
        "target: 1 while the mean of a target over several tasks is kept, 0 where it is missed; "
        "nothing before 2,000 answers."
    ),
    "routing_probability_ratio": (
        "task variant instance: Probability that a request is routed to an instance, where a "
        "scheduler says so."
    ),
    "scheduling_longest_seconds": "task: The longest of these decisions.",
    "recording_writing": "task: 1 while the task is recorded, 0 while the disk takes no more.",
    "device_slots": "device: Cores or accelerators of a device that instances share.",
    "device_busy_slots": "device: Of these, those that runs hold, of whichever task.",
    "device_waiting_instances": "device: Instances, of whichever task, that wait for it.",
    "request_overhead_seconds": (
        ": CPU time that a request takes of the node's cores besides its model, as measured or as "
        "the file says; nothing before it is known."
    ),
    "run_memory_bytes": ": Memory that running requests are taken to need.",
    "run_memory_limit_bytes": ": The most that there may be.",
    "run_memory_waiting_requests": ": Requests that wait for memory to run in.",
    "neighbor_usable": "neighbor: 1 while requests are sent to it, else 0.",
    "gc_pause_longest_seconds": ": The longest of them since the server was ready.",
    "body_bytes": ": Bodies of requests that are held.",
    "body_limit_bytes": ": The most that there may be.",
}
_HISTOGRAMS: Final = {
    "request_duration_seconds": (
        "task variant: From the whole request's arrival to its answer, of answered requests."
    ),
    "batch_size": "task variant: Rows that a model was run on at once.",
    "gc_pause_seconds": ": Pauses of the process for garbage collection.",
}
_FAMILIES: Final[dict[str, Any]] = {
    name: (kind, *described.split(": ", 1))
    for kind, families in (
        (CounterMetricFamily, _COUNTERS),
        (GaugeMetricFamily, _GAUGES),
        (HistogramMetricFamily, _HISTOGRAMS),
    )
    for name, described in families.items()
}

# By family, each sample: its labels' values, and what its kind wants behind them.
_Samples = dict[str, Iterable[tuple[Any, ...]]]


def admin_routes(
    sites: Callable[[], Sequence[TaskSite]],
    ready: Callable[[], bool],
    apply: Callable[[Exchange], None],
    pauses: Pauses,
    guard: Guard | None = None,
    bodies: Bodies | None = None,
    assignment: Callable[[], DeviceAssignment | None] = lambda: None,
    overhead: Callable[[], dict[str, Any]] = dict,
) -> Routes:
    """Lay out the admin pages of the tasks that are served; `apply` answers ``POST /apply``."""
    registry = CollectorRegistry()
    registry.register(ServerCollector(sites, pauses, guard, bodies, assignment, overhead))
    kind = CONTENT_TYPE_LATEST.encode()

    def metrics(exchange: Exchange) -> None:
        exchange.respond(200, generate_latest(registry), kind)

    def show(exchange: Exchange) -> None:
        moved = assignment()
        devices: dict[str, Any] = {} if moved is None else {"placement": moved.status()}
        if took := overhead():
            devices["overhead"] = took
        exchange.respond(200, msgspec.json.encode({**status(sites(), ready()), **devices}))

    routes = Routes(lambda path: f"there is nothing at {path}; see {', '.join(PAGES)}")
    routes.post("/apply", apply, Role.ADMIN)
    routes.read("/metrics", metrics, Role.READ)
    routes.read("/status", show, Role.READ)
    return routes


def status(sites: Sequence[TaskSite], ready: bool) -> dict[str, Any]:
    """Describe the server: tasks, their accuracy, what each variant has done and has to do."""
    tasks = {site.task: _task(site) for site in sites}
    whole: dict[str, Any] = {} if (found := totals(sites)) is None else {"totals": found.to_json()}
    if joint := targets_of(sites):
        whole["targets"] = {one.name: one.to_json() for one in joint}
    if devices := devices_of(sites):
        whole["devices"] = devices
    return {"schema": 1, "version": __version__, "ready": ready, "tasks": tasks, **whole}


def devices_of(sites: Sequence[TaskSite]) -> dict[str, dict[str, int]]:
    """Tell of each device its slots, how many runs of all tasks hold, and how many wait for it.

    Those of fleets that go, and answer what they have, are counted.
    """
    gates = {site.pool.servers.gate: None for site in sites if site.pool.dispatcher.shares}
    return {name: one for gate in gates for name, one in gate.status().items()}


def totals(sites: Sequence[TaskSite]) -> Totals | None:
    """Add up what became of all tasks' requests since the start; None of a single task.

    Requests that were malformed, and those whose client went, are left out.
    """
    return totals_of({site.task: _counts(site) for site in sites})


def _counts(site: TaskSite) -> TaskCounts:
    stats = site.stats
    answered = stats.total(Outcome.ANSWERED)
    known = stats.graded == stats.total_rows
    return TaskCounts(
        requests=sum(
            stats.total(one) for one in Outcome if one not in (Outcome.INVALID, Outcome.CANCELED)
        ),
        answers=stats.total_rows,
        accuracy_sum=stats.accuracy_sum if known else math.nan,
        in_time=answered - sum(stats.late),
        in_time_sum=stats.in_time_sum if known else math.nan,
    )


def _task(site: TaskSite) -> dict[str, Any]:
    pool, stats = site.pool, site.stats
    routing, recording = pool.dispatcher.routing, pool.recording
    return {
        "ready": site.ready,
        "accuracy_target": site.target,
        "accuracy_mean": stats.accuracy_mean,
        "accuracy_balance": None if site.target is None else site.balance.item(),
        "promise": None if (promise := site.promise) is None else promise.to_json(),
        "requests": {outcome.name.lower(): stats.total(outcome) for outcome in Outcome},
        "held": len(pool.held),
        "slots": None if pool.scheduler is None else pool.scheduler.slots,
        "routing": None if routing is None else routing.tolist(),
        "recording": None
        if recording is None
        else {
            "folder": str(recording.folder),
            "writing": recording.gap is None,
            "reason": "" if recording.gap is None else recording.gap.reason,
            "since": None if recording.gap is None else recording.gap.since,
            "gaps": recording.losses.gaps,
            "lost_decisions": recording.losses.decisions,
            "lost_events": recording.losses.events,
        },
        **({} if site.answers is None else {"feedback": _feedback(site, site.answers)}),
        **({} if pool.canary is None else {"canary": pool.canary.status}),
        **({} if pool.dispatcher.fleet.devices is None else {"devices": _devices(pool)}),
        "variants": {name: _variant(site, k) for k, name in enumerate(pool.variants)},
    }


def _devices(pool: Pool) -> dict[str, Any]:
    """Tell of each device how many of its slots runs of the task hold, and how many wait for it."""
    fleet, shared = pool.dispatcher.fleet, pool.dispatcher.site.devices
    assert fleet.devices is not None
    device = fleet.devices.device.repeat(fleet.count)
    return {
        name: {
            "slots": int(fleet.devices.slots[d]),
            "busy": int(shared.used[d]),
            "waiting": int(shared.waits[device == d].sum()),
            **_holding(pool, name),
        }
        for d, name in enumerate(fleet.devices.names)
    }


def _holding(pool: Pool, device: str) -> dict[str, Any]:
    """Tell what an exclusive device holds, how often that has changed, and how long loads take."""
    held = pool.held_variants
    if held is None or device not in held.devices:
        return {}
    names = [pool.variants[one] for one, of in held.device_of.items() if of == device]
    return {
        "holds": held.name_of(device),
        "changes": held.changes[device],
        "change_seconds": held.seconds[device],
        "load_s": {name: held.load_s.get(name) for name in names},
    }


def _feedback(site: TaskSite, book: AnswerBook) -> dict[str, Any]:
    return {
        "unknown": book.unknown,
        "lost_answers": book.lost,
        **({"shadow": book.shadows} if _has_shadows(site) else {}),
        "variants": book.measured,
    }


def _has_shadows(site: TaskSite) -> bool:
    return site.present is not None and site.present.options.shadow is not None


def _variant(site: TaskSite, k: int) -> dict[str, Any]:
    pool, stats, column = site.pool, site.stats, site.pool.columns[k]
    servers, demand = slice(*pool.first[k : k + 2]), pool.demands[k]
    answered = stats.outcomes[Outcome.ANSWERED][column]
    workers = getattr(pool.runtimes[pool.first[k]], "workers", None)
    own = {} if workers is None else {"workers": workers}
    return {
        "accuracy": pool.accuracy[k],
        "profile_service_s": 1.0 / pool.rate[k],
        "mean_service_s": stats.service_sum_s[column] / answered if answered else None,
        "mean_latency_s": stats.latency_sum_s[column] / answered if answered else None,
        "instances": len(pool.queues[servers]),
        "healthy": pool.health.healthy[servers],
        "queue": [len(queue) for queue in pool.queues[servers]],
        "answers": stats.rows[column],
        "memory": None
        if demand is None
        else {
            "source": demand.source,
            "rows_per_run": demand.most_rows,
            "one_row_bytes": demand.runs[1],
            "largest_run_bytes": demand.runs[-1],
            "rows_per_request": None if demand.rows == WHOLE else demand.rows,
        },
        **own,
    }


@dataclass(frozen=True, eq=False)
class ServerCollector(Collector):
    """Reads what is served, and the process; nothing is kept between two scrapes."""

    served: Callable[[], Sequence[TaskSite]]
    pauses: Pauses
    guard: Guard | None = None
    bodies: Bodies | None = None
    assignment: Callable[[], DeviceAssignment | None] = lambda: None
    overhead: Callable[[], dict[str, Any]] = dict

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        sites, pauses, bodies = self.served(), self.pauses, self.bodies
        samples = _samples(sites)
        buckets = _buckets(PAUSE_BOUNDS_S, pauses.buckets)
        samples["gc_pause_seconds"] = [([], buckets, pauses.sum_s)]
        samples["gc_pause_longest_seconds"] = [([], pauses.longest_s)]
        if self.guard is not None:
            samples["key_failures"] = (([why], n) for why, n in self.guard.denied.items())
        if bodies is not None:
            samples["body_bytes"] = [([], bodies.held)]
            samples["body_limit_bytes"] = [([], bodies.limit)]
            samples["bodies_refused"] = [([], bodies.refused)]
        if books := [(site.task, one) for site in sites if (one := site.answers) is not None]:
            samples |= _feedback_samples(books)
            shadowed = {site.task for site in sites if _has_shadows(site)}
            samples |= _shadow_samples([one for one in books if one[0] in shadowed])
        trials = [(site.task, it) for site in sites if (it := site.pool.canary) is not None]
        if trials:
            samples["canary_requests"] = [
                ([task, one.terms.variant], one.requests) for task, one in trials
            ]
            samples["canary_state"] = [
                ([task, one.terms.variant, state], float(state == one.state))
                for task, one in trials
                for state in CANARY_STATES
            ]
        if joint := targets_of(sites):
            samples |= _target_samples(joint)
        if devices := devices_of(sites):
            told = {"slots": "slots", "busy_slots": "busy", "waiting_instances": "waiting"}
            for name, key in told.items():
                samples[f"device_{name}"] = [([one], of[key]) for one, of in devices.items()]
        if any(site.stats.escalations for site in sites):
            samples["escalations"] = _escalations(sites)
        variants = [(site.task, site.pool.held_variants) for site in sites]
        held = [(task, one) for task, one in variants if one is not None]
        if held:
            samples |= _change_samples(held)
        if (took_s := self.overhead().get("seconds")) is not None:
            samples["request_overhead_seconds"] = [([], took_s)]
        if (moved := self.assignment()) is not None:
            samples["placement_slots"] = [([], moved.slots)]
            samples["placement_moves"] = [([*key], n) for key, n in moved.moved.items()]
        for name, rows in samples.items():
            kind, labels, text = _FAMILIES[name]
            family = kind(f"inferway_{name}", text, labels=labels.split())
            for row in rows:
                family.add_metric(*row)
            yield family


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip([*map(str, bounds), "+Inf"], accumulate(counts), strict=True))


def _columns(site: TaskSite) -> list[tuple[str, int]]:
    """List the variants of a task, and where each is counted; those that it had before come last.

    They go on being told: a counter that vanished would seem to begin anew.
    """
    here = list(zip(site.pool.variants, site.pool.columns, strict=True))
    names = site.stats.variants
    return here + [(name, at) for at, name in enumerate(names) if (name, at) not in here]


def _shadow_samples(books: Sequence[tuple[str, AnswerBook]]) -> _Samples:
    if not books:
        return {}
    measured = [
        ([task, variant], one) for task, book in books for variant, one in book.measured.items()
    ]
    return {
        "shadow_runs": [(labels, one.compared) for labels, one in measured],
        "shadow_agreed": [(labels, one.agreed) for labels, one in measured],
        "shadow_skipped": [
            ([task, reason], count)
            for task, book in books
            for reason, count in (
                ("busy", book.shadows.busy),
                ("gave-way", book.shadows.gave_way),
                ("failed", book.shadows.failed),
            )
        ],
        "shadow_agreement_ratio": [
            (labels, one.agreement) for labels, one in measured if one.agreement is not None
        ],
        "feedback_joint_ratio": [
            (labels, one.joint) for labels, one in measured if one.joint is not None
        ],
        "feedback_joint_low_ratio": [(labels, one.joint_low) for labels, one in measured],
        "feedback_joint_high_ratio": [(labels, one.joint_high) for labels, one in measured],
    }


def _feedback_samples(books: Sequence[tuple[str, AnswerBook]]) -> _Samples:
    measured = [
        ([task, variant], one) for task, book in books for variant, one in book.measured.items()
    ]
    return {
        "feedback_labels": [(labels, one.labels) for labels, one in measured],
        "feedback_unknown": [([task], book.unknown) for task, book in books],
        "feedback_lost_answers": [([task], book.lost) for task, book in books],
        "feedback_accuracy_ratio": [
            (labels, one.mean) for labels, one in measured if one.mean is not None
        ],
        "feedback_accuracy_low_ratio": [(labels, one.low) for labels, one in measured],
        "feedback_accuracy_high_ratio": [(labels, one.high) for labels, one in measured],
        "feedback_profile_ratio": [
            (labels, one.profile) for labels, one in measured if one.profile is not None
        ],
        "feedback_estimate_ratio": [
            (labels, one.estimate) for labels, one in measured if one.estimate is not None
        ],
        "drift_alarms": [
            ([task, variant], one.alarms)
            for task, book in books
            if book.watching
            for variant, one in book.measured.items()
        ],
        "drift_alarm_timestamp_seconds": [
            (labels, one.alarm.at) for labels, one in measured if one.alarm is not None
        ],
    }


def _change_samples(held: Sequence[tuple[str, HeldVariants]]) -> _Samples:
    devices = [(task, device, one) for task, one in held for device in one.devices]
    return {
        "device_changes": [([task, name], one.changes[name]) for task, name, one in devices],
        "device_change_seconds": [([task, name], one.seconds[name]) for task, name, one in devices],
        "load_seconds": [
            ([task, variant], load_s)
            for task, one in held
            for variant, load_s in one.load_s.items()
        ],
    }


def _target_samples(targets: Sequence[TargetState]) -> _Samples:
    """Sample the targets over several tasks; of a kind that there is none of, nothing."""
    samples: _Samples = {
        "target_balance": [([one.name], one.balance) for one in targets],
        "target_kept": [
            ([one.name], float(one.state != "missed")) for one in targets if one.state != "unknown"
        ],
    }
    for kind, unit in (("accuracy", "ratio"), ("energy", "joules")):
        if own := [one for one in targets if one.kind == kind]:
            means = [([one.name], mean) for one in own if (mean := one.mean) is not None]
            samples[f"target_{kind}_mean_{unit}"] = means
            samples[f"target_{kind}_goal_{unit}"] = [([one.name], one.goal) for one in own]
    return samples


def _escalations(sites: Sequence[TaskSite]) -> Iterator[tuple[list[str], int]]:
    for site in sites:
        names = site.stats.variants
        for (first, second), count in site.stats.escalations.items():
            yield [site.task, names[first], names[second]], count


def _samples(sites: Sequence[TaskSite]) -> _Samples:
    counted = [
        ([site.task, name], site.stats, column) for site in sites for name, column in _columns(site)
    ]
    classes = [
        ([site.task, name], site.pool, range(*site.pool.first[k : k + 2]))
        for site in sites
        for k, name in enumerate(site.pool.variants)
    ]
    promises = [([site.task], promise) for site in sites if (promise := site.promise) is not None]
    loops = [([site.task], loop) for site in sites if (loop := site.pool.scheduler) is not None]
    remotes = [
        ([site.task, name], runtime, site.stats.moved[site.pool.columns[k]])
        for site in sites
        for k, name in enumerate(site.pool.variants)
        if isinstance(runtime := site.pool.runtimes[site.pool.first[k]], AwaitedRuntime)
    ]
    own = [
        ([site.task, name], getattr(runtime, "restarts", 0), workers)
        for site in sites
        for k, name in enumerate(site.pool.variants)
        if (workers := getattr(runtime := site.pool.runtimes[site.pool.first[k]], "workers", None))
        is not None
    ]
    recorded = [([site.task], one) for site in sites if (one := site.pool.recording) is not None]
    # One for all sites of a process.
    rooms = {room for site in sites if (room := site.pool.options.headroom) is not None}
    upstreams = {
        one.upstream.name: one.upstream
        for site in sites
        for one in site.pool.runtimes
        if isinstance(one, Forwarding)
    }
    ways = [([name], upstream) for name, upstream in sorted(upstreams.items())]
    samples: _Samples = {
        "requests": (
            ([site.task, name, outcome.name.lower()], count)
            for site in sites
            for outcome in Outcome
            for name, column in [*_columns(site), ("", -1)]
            # A zero stands where such an end is usual, so that rates start from it.
            if (count := site.stats.outcomes[outcome][column])
            or bool(name) == (outcome is Outcome.ANSWERED)
        ),
        "answers": ((labels, stats.rows[k]) for labels, stats, k in counted),
        "late_answers": ((labels, stats.late[k]) for labels, stats, k in counted),
        "ignored_parameters": (([site.task], site.stats.ignored) for site in sites),
        "request_duration_seconds": (
            (labels, _buckets(LATENCY_BOUNDS_S, coarse(stats.buckets[k])), stats.latency_sum_s[k])
            for labels, stats, k in counted
        ),
        "service_seconds": ((labels, stats.service_sum_s[k]) for labels, stats, k in counted),
        "batch_size": (
            (labels, _buckets(BATCH_BOUNDS, stats.batches(k)), stats.batch_rows(k))
            for labels, stats, k in counted
        ),
        "queue_length": (
            (labels, sum(len(pool.queues[server]) for server in servers))
            for labels, pool, servers in classes
        ),
        "instances": ((labels, len(servers)) for labels, _, servers in classes),
        "instance_healthy": (
            ([*labels, str(i)], float(pool.health.healthy[server]))
            for labels, pool, servers in classes
            for i, server in enumerate(servers)
        ),
        "held_requests": (([site.task], len(site.pool.held)) for site in sites),
        "task_ready": (([site.task], float(site.ready)) for site in sites),
        "accuracy_mean_ratio": (
            ([site.task], mean) for site in sites if (mean := site.stats.accuracy_mean) is not None
        ),
        "accuracy_target_ratio": (
            ([site.task], site.target) for site in sites if site.target is not None
        ),
        "accuracy_balance": (
            ([site.task], site.balance.item()) for site in sites if site.target is not None
        ),
        "promise_kept": (
            (labels, float(promise.state != "missed"))
            for labels, promise in promises
            if promise.state != "unknown"
        ),
        "promise_margin_ratio": (
            (labels, promise.margin) for labels, promise in promises if promise.margin is not None
        ),
        "routing_probability_ratio": (
            ([*labels, str(i)], routing[server].item())
            for labels, pool, servers in classes
            if (routing := pool.dispatcher.routing) is not None
            for i, server in enumerate(servers)
        ),
        "scheduling_slots": ((labels, loop.slots) for labels, loop in loops),
        "scheduling_seconds": ((labels, loop.spent_s) for labels, loop in loops),
        "scheduling_longest_seconds": ((labels, loop.longest_s) for labels, loop in loops),
        "remote_failures": (
            ([*labels, fault.value], runtime.faults[fault])
            for labels, runtime, _ in remotes
            for fault in Fault
            if runtime.apart or fault is not Fault.DIED
        ),
        "remote_moved_requests": ((labels, moved) for labels, _, moved in remotes),
        "remote_retries": ((labels, runtime.retried) for labels, runtime, _ in remotes),
        "remote_connections": ((labels, runtime.opened) for labels, runtime, _ in remotes),
        "worker_restarts": ((labels, restarts) for labels, restarts, _ in own),
        "workers": ((labels, len(workers)) for labels, _, workers in own),
        "recording_writing": ((labels, float(one.gap is None)) for labels, one in recorded),
        "recording_gaps": ((labels, one.losses.gaps) for labels, one in recorded),
        "recording_lost_decisions": ((labels, one.losses.decisions) for labels, one in recorded),
        "recording_lost_events": ((labels, one.losses.events) for labels, one in recorded),
        "run_memory_bytes": (([], room.held_bytes) for room in rooms),
        "run_memory_limit_bytes": (([], room.limit_bytes) for room in rooms),
        "run_memory_waiting_requests": (([], room.waiting) for room in rooms),
        "neighbor_requests": ((labels, way.sent) for labels, way in ways),
        "neighbor_faults": (
            ([*labels, fault], count)
            for labels, way in ways
            for fault, count in (("lost", way.failures), ("error", way.errors), ("hung", way.hung))
        ),
        "neighbor_health_requests": ((labels, way.asked) for labels, way in ways),
        "neighbor_usable": ((labels, float(way.works)) for labels, way in ways),
    }
    # A server without neighbors says nothing of any, nor one without Python classes of processes.
    left_out = [word for word, there in (("neighbor", ways), ("worker", own)) if not there]
    return {
        name: rows for name, rows in samples.items() if not any(one in name for one in left_out)
    }
