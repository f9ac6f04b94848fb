"""Prometheus metrics, rendered from plain counters when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from inferway.live.bodies import Bodies
from inferway.live.pauses import PAUSE_BOUNDS_S, Pauses
from inferway.live.request import Outcome
from inferway.live.security.keys import Guard
from inferway.live.site import Site
from inferway.live.stats import BATCH_BOUNDS, LATENCY_BOUNDS_S
from inferway.live.upstream.remote import Forwarding
from inferway.runtime import Fault, RemoteRuntime

_TASK = ["task"]
_VARIANT = ["task", "variant"]
_INSTANCE = ["task", "variant", "instance"]
_NEIGHBOR = ["neighbor"]


def registry_of(
    served: Callable[[], Sequence[Site]],
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
        served: Callable[[], Sequence[Site]],
        pauses: Pauses,
        guard: Guard | None,
        bodies: Bodies | None,
    ) -> None:
        self._served, self._pauses, self._guard, self._bodies = served, pauses, guard, bodies

    def collect(self) -> Iterator[Any]:
        """Yield every metric."""
        sites = self._served()
        yield from _ends(sites)
        yield from _queues(sites)
        yield from _accuracy(sites)
        yield from _scheduling(sites)
        yield from _remotes(sites)
        yield from _recordings(sites)
        yield from _memory(sites)
        yield from _neighbors(sites)
        yield from _pauses(self._pauses)
        if self._guard is not None:
            yield _family(
                CounterMetricFamily,
                "inferway_key_failures",
                "Requests and calls that were not let in, by what is wrong with their key.",
                ["reason"],
                (([reason], count) for reason, count in self._guard.denied.items()),
            )
        if self._bodies is not None:
            bodies = self._bodies
            held = "Bodies of requests that are held."
            yield GaugeMetricFamily("inferway_body_bytes", held, value=bodies.held)
            most = "The most that there may be."
            yield GaugeMetricFamily("inferway_body_limit_bytes", most, value=bodies.limit)
            refused = "Bodies that found no room."
            yield CounterMetricFamily("inferway_bodies_refused", refused, value=bodies.refused)


def _family(
    kind: Any, name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[Any, ...]]
) -> Any:
    """Make a family; each sample is its labels' values, and what its kind wants behind them."""
    family = kind(name, text, labels=labels)
    for sample in samples:
        family.add_metric(*sample)
    return family


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, int]]:
    return list(zip([*map(str, bounds), "+Inf"], accumulate(counts), strict=True))


def _columns(site: Site) -> list[tuple[str, int]]:
    """List the variants of a task, and where each is counted; those that it had before come last.

    They go on being told: a counter that vanished would seem to begin anew.
    """
    here = list(zip(site.pool.variants, site.pool.columns, strict=True))
    names = site.stats.variants
    return here + [(name, at) for at, name in enumerate(names) if (name, at) not in here]


def _ends(sites: Sequence[Site]) -> Iterator[Any]:
    """Yield how requests ended, how long that took, and how many models ran at once."""
    counted = [
        ([site.task, name], site.stats, column) for site in sites for name, column in _columns(site)
    ]
    yield _family(
        CounterMetricFamily,
        "inferway_requests",
        "Requests by how they ended.",
        [*_VARIANT, "outcome"],
        (
            ([site.task, name, outcome.name.lower()], count)
            for site in sites
            for outcome in Outcome
            for name, column in [*_columns(site), ("", -1)]
            # A zero stands where such an end is usual, so that rates start from it.
            if (count := site.stats.outcomes[outcome][column])
            or bool(name) == (outcome is Outcome.ANSWERED)
        ),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_answers",
        "Rows answered; a request may have several.",
        _VARIANT,
        ((labels, stats.rows[column]) for labels, stats, column in counted),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_late_answers",
        "Requests answered after their deadline.",
        _VARIANT,
        ((labels, stats.late[column]) for labels, stats, column in counted),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_ignored_parameters",
        "Parameters of requests that mean nothing here, and were left alone.",
        _TASK,
        (([site.task], site.stats.ignored) for site in sites),
    )
    yield _family(
        HistogramMetricFamily,
        "inferway_request_duration_seconds",
        "From the whole request's arrival to its answer, of answered requests.",
        _VARIANT,
        (
            (labels, _buckets(LATENCY_BOUNDS_S, stats.buckets[k]), stats.latency_sum_s[k])
            for labels, stats, k in counted
        ),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_service_seconds",
        "Time that models have run, over answered requests.",
        _VARIANT,
        ((labels, stats.service_sum_s[column]) for labels, stats, column in counted),
    )
    yield _family(
        HistogramMetricFamily,
        "inferway_batch_size",
        "Rows that a model was run on at once.",
        _VARIANT,
        (
            (labels, _buckets(BATCH_BOUNDS, stats.batches[k]), stats.batch_rows[k])
            for labels, stats, k in counted
        ),
    )


def _queues(sites: Sequence[Site]) -> Iterator[Any]:
    classes = [
        ([site.task, name], site.pool, range(*site.pool.first[k : k + 2]))
        for site in sites
        for k, name in enumerate(site.pool.variants)
    ]
    yield _family(
        GaugeMetricFamily,
        "inferway_queue_length",
        "Requests at the servers of a class, those in service included.",
        _VARIANT,
        (
            (labels, sum(len(pool.queues[server]) for server in servers))
            for labels, pool, servers in classes
        ),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_instances",
        "Running copies of a variant.",
        _VARIANT,
        ((labels, len(servers)) for labels, _, servers in classes),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_instance_healthy",
        "1 while the instance takes requests, 0 while it rests after failures.",
        _INSTANCE,
        (
            ([*labels, str(i)], float(pool.health.healthy[server]))
            for labels, pool, servers in classes
            for i, server in enumerate(servers)
        ),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_held_requests",
        "Requests in the central queue.",
        _TASK,
        (([site.task], len(site.pool.held)) for site in sites),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_task_ready",
        "1 when the task is served, else 0.",
        _TASK,
        (([site.task], float(site.ready)) for site in sites),
    )


def _accuracy(sites: Sequence[Site]) -> Iterator[Any]:
    yield _family(
        GaugeMetricFamily,
        "inferway_accuracy_mean_ratio",
        "Mean profile accuracy of all answers, 0..1.",
        _TASK,
        (
            ([site.task], site.stats.accuracy_sum / rows)
            for site in sites
            if (rows := site.stats.total_rows)
        ),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_accuracy_target_ratio",
        "Accuracy target, 0..1.",
        _TASK,
        (([site.task], site.target) for site in sites if site.target is not None),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_accuracy_balance",
        "Running sum of (accuracy - target) over dispatched answers, pinned ones left out.",
        _TASK,
        (([site.task], site.balance.item()) for site in sites),
    )


def _scheduling(sites: Sequence[Site]) -> Iterator[Any]:
    routed = [(site.task, site.pool, site.pool.dispatcher.routing) for site in sites]
    loops = [([site.task], loop) for site in sites if (loop := site.pool.scheduler) is not None]
    yield _family(
        GaugeMetricFamily,
        "inferway_routing_probability_ratio",
        "Probability that a request is routed to an instance, where a scheduler says so.",
        _INSTANCE,
        (
            ([task, pool.variants[k], str(server - pool.first[k])], probability)
            for task, pool, routing in routed
            if routing is not None
            for (server, k), probability in zip(
                enumerate(pool.class_of), routing.tolist(), strict=True
            )
        ),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_scheduling_slots",
        "Slots of the scheduler that have begun.",
        _TASK,
        ((labels, loop.slots) for labels, loop in loops),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_scheduling_seconds",
        "Time of the event loop that the scheduler's decisions have taken.",
        _TASK,
        ((labels, loop.spent_s) for labels, loop in loops),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_scheduling_longest_seconds",
        "The longest of these decisions.",
        _TASK,
        ((labels, loop.longest_s) for labels, loop in loops),
    )


def _remotes(sites: Sequence[Site]) -> Iterator[Any]:
    remotes = [
        ([site.task, name], runtime, site.stats.moved[site.pool.columns[k]])
        for site in sites
        for k, name in enumerate(site.pool.variants)
        if isinstance(runtime := site.pool.runtimes[site.pool.first[k]], RemoteRuntime)
    ]
    yield _family(
        CounterMetricFamily,
        "inferway_remote_failures",
        "Calls to a variant's remote server that gave no answer, probes included.",
        [*_VARIANT, "fault"],
        (
            ([*labels, fault.value], runtime.faults[fault])
            for labels, runtime, _ in remotes
            for fault in Fault
        ),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_remote_moved_requests",
        "Requests that it did not serve and that another variant was given.",
        _VARIANT,
        ((labels, moved) for labels, _, moved in remotes),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_remote_retries",
        "Calls made again because the first connection ended before they were out.",
        _VARIANT,
        ((labels, runtime.retried) for labels, runtime, _ in remotes),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_remote_connections",
        "Connections made to it.",
        _VARIANT,
        ((labels, runtime.opened) for labels, runtime, _ in remotes),
    )


def _recordings(sites: Sequence[Site]) -> Iterator[Any]:
    recorded = [([site.task], one) for site in sites if (one := site.pool.recording) is not None]
    yield _family(
        GaugeMetricFamily,
        "inferway_recording_writing",
        "1 while the task is recorded, 0 while the disk takes no more.",
        _TASK,
        ((labels, float(recording.gap is None)) for labels, recording in recorded),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_recording_gaps",
        "Times that the disk refused the recording.",
        _TASK,
        ((labels, recording.losses.gaps) for labels, recording in recorded),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_recording_lost_decisions",
        "Requests dispatched that could not be recorded.",
        _TASK,
        ((labels, recording.losses.decisions) for labels, recording in recorded),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_recording_lost_events",
        "Events that could not be recorded, these requests included.",
        _TASK,
        ((labels, recording.losses.events) for labels, recording in recorded),
    )


def _memory(sites: Sequence[Site]) -> Iterator[Any]:
    # One for all sites of a process.
    every = (site.pool.options.headroom for site in sites)
    rooms = {room for room in every if room is not None}
    yield _family(
        GaugeMetricFamily,
        "inferway_run_memory_bytes",
        "Memory that running requests are taken to need.",
        (),
        (([], room.held_bytes) for room in rooms),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_run_memory_limit_bytes",
        "The most that there may be.",
        (),
        (([], room.limit_bytes) for room in rooms),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_run_memory_waiting_requests",
        "Requests that wait for memory to run in.",
        (),
        (([], room.waiting) for room in rooms),
    )


def _neighbors(sites: Sequence[Site]) -> Iterator[Any]:
    """Yield what was sent to each neighbor, what came of it, and whether it is used."""
    upstreams = {
        one.upstream.name: one.upstream
        for site in sites
        for one in site.pool.runtimes
        if isinstance(one, Forwarding)
    }
    if not upstreams:
        return
    ways = [([name], upstream) for name, upstream in sorted(upstreams.items())]
    yield _family(
        CounterMetricFamily,
        "inferway_neighbor_requests",
        "Requests sent to a neighbor.",
        _NEIGHBOR,
        ((labels, way.sent) for labels, way in ways),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_neighbor_faults",
        "Requests that a neighbor lost or failed at, and how often its HTTP hung.",
        [*_NEIGHBOR, "fault"],
        (
            ([*labels, fault], count)
            for labels, way in ways
            for fault, count in (("lost", way.failures), ("error", way.errors), ("hung", way.hung))
        ),
    )
    yield _family(
        CounterMetricFamily,
        "inferway_neighbor_health_requests",
        "How often it was asked whether it lives because a request was out for too long.",
        _NEIGHBOR,
        ((labels, way.asked) for labels, way in ways),
    )
    yield _family(
        GaugeMetricFamily,
        "inferway_neighbor_usable",
        "1 while requests are sent to it, else 0.",
        _NEIGHBOR,
        ((labels, float(way.works)) for labels, way in ways),
    )


def _pauses(pauses: Pauses) -> Iterator[Any]:
    yield _family(
        HistogramMetricFamily,
        "inferway_gc_pause_seconds",
        "Pauses of the process for garbage collection.",
        (),
        [([], _buckets(PAUSE_BOUNDS_S, pauses.buckets), pauses.sum_s)],
    )
    yield GaugeMetricFamily(
        "inferway_gc_pause_longest_seconds",
        "The longest of them since the server was ready.",
        value=pauses.longest_s,
    )
