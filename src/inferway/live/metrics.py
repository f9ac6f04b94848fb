"""Prometheus metrics, rendered from plain counters when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from inferway.live.headroom import Bodies
from inferway.live.process import PAUSE_BOUNDS_S, Pauses
from inferway.live.request import Outcome
from inferway.live.security.keys import Guard
from inferway.live.site import TaskSite
from inferway.live.stats import BATCH_BOUNDS, LATENCY_BOUNDS_S
from inferway.live.upstream.remote import Forwarding
from inferway.runtime import Fault, RemoteRuntime

_COUNTER: Final = CounterMetricFamily
_GAUGE: Final = GaugeMetricFamily
_HISTOGRAM: Final = HistogramMetricFamily
_TASK: Final = ("task",)
_VARIANT: Final = ("task", "variant")
_INSTANCE: Final = ("task", "variant", "instance")
_NEIGHBOR: Final = ("neighbor",)

# By name, without ``inferway_`` before it: kind, labels, text.
_FAMILIES: Final[dict[str, tuple[Any, tuple[str, ...], str]]] = {
    "requests": (_COUNTER, (*_VARIANT, "outcome"), "Requests by how they ended."),
    "answers": (_COUNTER, _VARIANT, "Rows answered; a request may have several."),
    "late_answers": (_COUNTER, _VARIANT, "Requests answered after their deadline."),
    "ignored_parameters": (
        _COUNTER,
        _TASK,
        "Parameters of requests that mean nothing here, and were left alone.",
    ),
    "request_duration_seconds": (
        _HISTOGRAM,
        _VARIANT,
        "From the whole request's arrival to its answer, of answered requests.",
    ),
    "service_seconds": (_COUNTER, _VARIANT, "Time that models have run, over answered requests."),
    "batch_size": (_HISTOGRAM, _VARIANT, "Rows that a model was run on at once."),
    "queue_length": (
        _GAUGE,
        _VARIANT,
        "Requests at the servers of a class, those in service included.",
    ),
    "instances": (_GAUGE, _VARIANT, "Running copies of a variant."),
    "instance_healthy": (
        _GAUGE,
        _INSTANCE,
        "1 while the instance takes requests, 0 while it rests after failures.",
    ),
    "held_requests": (_GAUGE, _TASK, "Requests in the central queue."),
    "task_ready": (_GAUGE, _TASK, "1 when the task is served, else 0."),
    "accuracy_mean_ratio": (_GAUGE, _TASK, "Mean profile accuracy of all answers, 0..1."),
    "accuracy_target_ratio": (_GAUGE, _TASK, "Accuracy target, 0..1."),
    "accuracy_balance": (
        _GAUGE,
        _TASK,
        "Running sum of (accuracy - target) over dispatched answers, pinned ones left out.",
    ),
    "routing_probability_ratio": (
        _GAUGE,
        _INSTANCE,
        "Probability that a request is routed to an instance, where a scheduler says so.",
    ),
    "scheduling_slots": (_COUNTER, _TASK, "Slots of the scheduler that have begun."),
    "scheduling_seconds": (
        _COUNTER,
        _TASK,
        "Time of the event loop that the scheduler's decisions have taken.",
    ),
    "scheduling_longest_seconds": (_GAUGE, _TASK, "The longest of these decisions."),
    "remote_failures": (
        _COUNTER,
        (*_VARIANT, "fault"),
        "Calls to a variant's remote server that gave no answer, probes included.",
    ),
    "remote_moved_requests": (
        _COUNTER,
        _VARIANT,
        "Requests that it did not serve and that another variant was given.",
    ),
    "remote_retries": (
        _COUNTER,
        _VARIANT,
        "Calls made again because the first connection ended before they were out.",
    ),
    "remote_connections": (_COUNTER, _VARIANT, "Connections made to it."),
    "recording_writing": (
        _GAUGE,
        _TASK,
        "1 while the task is recorded, 0 while the disk takes no more.",
    ),
    "recording_gaps": (_COUNTER, _TASK, "Times that the disk refused the recording."),
    "recording_lost_decisions": (
        _COUNTER,
        _TASK,
        "Requests dispatched that could not be recorded.",
    ),
    "recording_lost_events": (
        _COUNTER,
        _TASK,
        "Events that could not be recorded, these requests included.",
    ),
    "run_memory_bytes": (_GAUGE, (), "Memory that running requests are taken to need."),
    "run_memory_limit_bytes": (_GAUGE, (), "The most that there may be."),
    "run_memory_waiting_requests": (_GAUGE, (), "Requests that wait for memory to run in."),
    "neighbor_requests": (_COUNTER, _NEIGHBOR, "Requests sent to a neighbor."),
    "neighbor_faults": (
        _COUNTER,
        (*_NEIGHBOR, "fault"),
        "Requests that a neighbor lost or failed at, and how often its HTTP hung.",
    ),
    "neighbor_health_requests": (
        _COUNTER,
        _NEIGHBOR,
        "How often it was asked whether it lives because a request was out for too long.",
    ),
    "neighbor_usable": (_GAUGE, _NEIGHBOR, "1 while requests are sent to it, else 0."),
    "gc_pause_seconds": (_HISTOGRAM, (), "Pauses of the process for garbage collection."),
    "gc_pause_longest_seconds": (
        _GAUGE,
        (),
        "The longest of them since the server was ready.",
    ),
    "key_failures": (
        _COUNTER,
        ("reason",),
        "Requests and calls that were not let in, by what is wrong with their key.",
    ),
    "body_bytes": (_GAUGE, (), "Bodies of requests that are held."),
    "body_limit_bytes": (_GAUGE, (), "The most that there may be."),
    "bodies_refused": (_COUNTER, (), "Bodies that found no room."),
}

# By family, each sample: its labels' values, and what its kind wants behind them.
_Samples = dict[str, Iterable[tuple[Any, ...]]]


def registry_of(
    served: Callable[[], Sequence[TaskSite]],
    pauses: Pauses,
    guard: Guard | None = None,
    bodies: Bodies | None = None,
) -> CollectorRegistry:
    """Make a registry of what is served and of the process, for ``generate_latest``."""
    registry = CollectorRegistry()
    registry.register(ServerCollector(served, pauses, guard, bodies))
    return registry


class ServerCollector(Collector):
    """Reads what is served, and the process; nothing is kept between two scrapes."""

    def __init__(
        self,
        served: Callable[[], Sequence[TaskSite]],
        pauses: Pauses,
        guard: Guard | None,
        bodies: Bodies | None,
    ) -> None:
        self._served, self._pauses, self._guard, self._bodies = served, pauses, guard, bodies

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        sites, pauses, bodies = self._served(), self._pauses, self._bodies
        samples = _of_requests(sites) | _of_fleets(sites) | _of_neighbors(sites)
        buckets = _buckets(PAUSE_BOUNDS_S, pauses.buckets)
        samples["gc_pause_seconds"] = [([], buckets, pauses.sum_s)]
        samples["gc_pause_longest_seconds"] = [([], pauses.longest_s)]
        if self._guard is not None:
            samples["key_failures"] = (([why], n) for why, n in self._guard.denied.items())
        if bodies is not None:
            samples["body_bytes"] = [([], bodies.held)]
            samples["body_limit_bytes"] = [([], bodies.limit)]
            samples["bodies_refused"] = [([], bodies.refused)]
        for name, rows in samples.items():
            kind, labels, text = _FAMILIES[name]
            family = kind(f"inferway_{name}", text, labels=labels)
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


def _of_requests(sites: Sequence[TaskSite]) -> _Samples:
    """Tell how requests ended, how long that took, and how many models ran at once."""
    counted = [
        ([site.task, name], site.stats, column) for site in sites for name, column in _columns(site)
    ]
    return {
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
            (labels, _buckets(LATENCY_BOUNDS_S, stats.buckets[k]), stats.latency_sum_s[k])
            for labels, stats, k in counted
        ),
        "service_seconds": ((labels, stats.service_sum_s[k]) for labels, stats, k in counted),
        "batch_size": (
            (labels, _buckets(BATCH_BOUNDS, stats.batches[k]), stats.batch_rows[k])
            for labels, stats, k in counted
        ),
    }


def _of_fleets(sites: Sequence[TaskSite]) -> _Samples:
    """Tell of queues and instances, promises kept, schedulers, remote servers and recordings."""
    classes = [
        ([site.task, name], site.pool, range(*site.pool.first[k : k + 2]))
        for site in sites
        for k, name in enumerate(site.pool.variants)
    ]
    loops = [([site.task], loop) for site in sites if (loop := site.pool.scheduler) is not None]
    remotes = [
        ([site.task, name], runtime, site.stats.moved[site.pool.columns[k]])
        for site in sites
        for k, name in enumerate(site.pool.variants)
        if isinstance(runtime := site.pool.runtimes[site.pool.first[k]], RemoteRuntime)
    ]
    recorded = [([site.task], one) for site in sites if (one := site.pool.recording) is not None]
    # One for all sites of a process.
    rooms = {room for site in sites if (room := site.pool.options.headroom) is not None}
    return {
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
            ([site.task], site.stats.accuracy_sum / rows)
            for site in sites
            if (rows := site.stats.total_rows)
        ),
        "accuracy_target_ratio": (
            ([site.task], site.target) for site in sites if site.target is not None
        ),
        "accuracy_balance": (([site.task], site.balance.item()) for site in sites),
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
        ),
        "remote_moved_requests": ((labels, moved) for labels, _, moved in remotes),
        "remote_retries": ((labels, runtime.retried) for labels, runtime, _ in remotes),
        "remote_connections": ((labels, runtime.opened) for labels, runtime, _ in remotes),
        "recording_writing": ((labels, float(one.gap is None)) for labels, one in recorded),
        "recording_gaps": ((labels, one.losses.gaps) for labels, one in recorded),
        "recording_lost_decisions": ((labels, one.losses.decisions) for labels, one in recorded),
        "recording_lost_events": ((labels, one.losses.events) for labels, one in recorded),
        "run_memory_bytes": (([], room.held_bytes) for room in rooms),
        "run_memory_limit_bytes": (([], room.limit_bytes) for room in rooms),
        "run_memory_waiting_requests": (([], room.waiting) for room in rooms),
    }


def _of_neighbors(sites: Sequence[TaskSite]) -> _Samples:
    """Tell what was sent to each neighbor, what came of it, and whether it is used."""
    upstreams = {
        one.upstream.name: one.upstream
        for site in sites
        for one in site.pool.runtimes
        if isinstance(one, Forwarding)
    }
    if not upstreams:
        return {}
    ways = [([name], upstream) for name, upstream in sorted(upstreams.items())]
    return {
        "neighbor_requests": ((labels, way.sent) for labels, way in ways),
        "neighbor_faults": (
            ([*labels, fault], count)
            for labels, way in ways
            for fault, count in (("lost", way.failures), ("error", way.errors), ("hung", way.hung))
        ),
        "neighbor_health_requests": ((labels, way.asked) for labels, way in ways),
        "neighbor_usable": ((labels, float(way.works)) for labels, way in ways),
    }
