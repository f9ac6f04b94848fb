"""Prometheus metrics, rendered from plain counters when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
_NEIGHBOR = ["neighbor"]


def registry_of(
    sites: Callable[[], Sequence[Site]],
    pauses: Pauses,
    guard: Guard | None = None,
    bodies: Bodies | None = None,
) -> CollectorRegistry:
    """Make a registry of what is served and of the process, for ``generate_latest``."""
    registry = CollectorRegistry()
    registry.register(SiteCollector(sites))
    registry.register(NeighborCollector(sites))
    registry.register(PauseCollector(pauses))
    if guard is not None:
        registry.register(KeyCollector(guard))
    if bodies is not None:
        registry.register(BodiesCollector(bodies))
    return registry


class PauseCollector(Collector):
    """Reads the garbage collector's pauses."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses

    def collect(self) -> Iterator[Any]:
        """Yield the histogram of pauses and the longest."""
        pauses = self._pauses
        bounds = [*(str(bound) for bound in PAUSE_BOUNDS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(pauses.buckets), strict=True))
        family = HistogramMetricFamily(
            "inferway_gc_pause_seconds", "Pauses of the process for garbage collection."
        )
        family.add_metric([], buckets, pauses.sum_s)
        yield family
        yield GaugeMetricFamily(
            "inferway_gc_pause_longest_seconds",
            "The longest of them since the server was ready.",
            value=pauses.longest_s,
        )


class NeighborCollector(Collector):
    """Reads the counters of the ways that sites forward by."""

    def __init__(self, sites: Callable[[], Sequence[Site]]) -> None:
        self._sites = sites

    def collect(self) -> Iterator[Any]:
        """Yield what was sent to each neighbor, what came of it, and whether it is used."""
        sent = CounterMetricFamily(
            "inferway_neighbor_requests", "Requests sent to a neighbor.", labels=_NEIGHBOR
        )
        faults = CounterMetricFamily(
            "inferway_neighbor_faults",
            "Requests that a neighbor lost or failed at, and how often its HTTP hung.",
            labels=[*_NEIGHBOR, "fault"],
        )
        asked = CounterMetricFamily(
            "inferway_neighbor_health_requests",
            "How often it was asked whether it lives because a request was out for too long.",
            labels=_NEIGHBOR,
        )
        usable = GaugeMetricFamily(
            "inferway_neighbor_usable", "1 while requests are sent to it, else 0.", labels=_NEIGHBOR
        )
        upstreams = {
            one.upstream.name: one.upstream
            for site in self._sites()
            for one in site.pool.runtimes
            if isinstance(one, Forwarding)
        }
        for name, upstream in sorted(upstreams.items()):
            sent.add_metric([name], upstream.sent)
            counts = {"lost": upstream.failures, "error": upstream.errors, "hung": upstream.hung}
            for fault, count in counts.items():
                faults.add_metric([name, fault], count)
            asked.add_metric([name], upstream.asked)
            usable.add_metric([name], float(upstream.works))
        if upstreams:
            yield from (sent, faults, asked, usable)


class KeyCollector(Collector):
    """Reads how many requests were not let in."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def collect(self) -> Iterator[Any]:
        """Yield the counts by reason."""
        family = CounterMetricFamily(
            "inferway_key_failures",
            "Requests and calls that were not let in, by what is wrong with their key.",
            labels=["reason"],
        )
        for reason, count in self._guard.denied.items():
            family.add_metric([reason], count)
        yield family


class BodiesCollector(Collector):
    """Reads the account of all bodies."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies

    def collect(self) -> Iterator[Any]:
        """Yield what is held, what may be, and how often there was no room."""
        bodies = self._bodies
        yield GaugeMetricFamily(
            "inferway_body_bytes", "Bodies of requests that are held.", value=bodies.held
        )
        yield GaugeMetricFamily(
            "inferway_body_limit_bytes", "The most that there may be.", value=bodies.limit
        )
        yield CounterMetricFamily(
            "inferway_bodies_refused", "Bodies that found no room.", value=bodies.refused
        )


class SiteCollector(Collector):
    """Reads the sites' counters; nothing is kept between two scrapes."""

    def __init__(self, sites: Callable[[], Sequence[Site]]) -> None:
        self._served = sites
        self._sites: Sequence[Site] = ()

    def collect(self) -> Iterator[Any]:
        """Yield every metric of every site."""
        self._sites = self._served()
        yield self._requests()
        yield self._answers()
        yield self._late()
        yield self._ignored()
        yield self._latency()
        yield self._service()
        yield self._batches()
        yield from self._queues()
        yield from self._accuracy()
        yield from self._scheduling()
        yield from self._remotes()
        yield from self._recordings()
        yield from self._memory()

    def _memory(self) -> Iterator[Any]:
        # One for all sites of a process.
        every = (site.pool.options.headroom for site in self._sites)
        rooms = {room for room in every if room is not None}
        held = GaugeMetricFamily(
            "inferway_run_memory_bytes", "Memory that running requests are taken to need."
        )
        limit = GaugeMetricFamily("inferway_run_memory_limit_bytes", "The most that there may be.")
        waiting = GaugeMetricFamily(
            "inferway_run_memory_waiting_requests", "Requests that wait for memory to run in."
        )
        for room in rooms:
            held.add_metric([], room.held_bytes)
            limit.add_metric([], room.limit_bytes)
            waiting.add_metric([], room.waiting)
        yield from (held, limit, waiting)

    def _requests(self) -> Any:
        family = CounterMetricFamily(
            "inferway_requests", "Requests by how they ended.", labels=[*_VARIANT, "outcome"]
        )
        for site in self._sites:
            columns = [*_columns(site), ("", -1)]
            for outcome in Outcome:
                for name, column in columns:
                    count = site.stats.outcomes[outcome][column]
                    # A zero stands where such an end is usual, so that rates start from it.
                    if count or bool(name) == (outcome is Outcome.ANSWERED):
                        family.add_metric([site.task, name, outcome.name.lower()], count)
        return family

    def _answers(self) -> Any:
        family = CounterMetricFamily(
            "inferway_answers", "Rows answered; a request may have several.", labels=_VARIANT
        )
        for site in self._sites:
            for name, column in _columns(site):
                family.add_metric([site.task, name], site.stats.rows[column])
        return family

    def _late(self) -> Any:
        family = CounterMetricFamily(
            "inferway_late_answers", "Requests answered after their deadline.", labels=_VARIANT
        )
        for site in self._sites:
            for name, column in _columns(site):
                family.add_metric([site.task, name], site.stats.late[column])
        return family

    def _ignored(self) -> Any:
        family = CounterMetricFamily(
            "inferway_ignored_parameters",
            "Parameters of requests that mean nothing here, and were left alone.",
            labels=_TASK,
        )
        for site in self._sites:
            family.add_metric([site.task], site.stats.ignored)
        return family

    def _latency(self) -> Any:
        family = HistogramMetricFamily(
            "inferway_request_duration_seconds",
            "From the whole request's arrival to its answer, of answered requests.",
            labels=_VARIANT,
        )
        bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
        for site in self._sites:
            counters = site.stats
            for name, column in _columns(site):
                buckets = list(zip(bounds, accumulate(counters.buckets[column]), strict=True))
                family.add_metric([site.task, name], buckets, counters.latency_sum_s[column])
        return family

    def _service(self) -> Any:
        family = CounterMetricFamily(
            "inferway_service_seconds",
            "Time that models have run, over answered requests.",
            labels=_VARIANT,
        )
        for site in self._sites:
            for name, column in _columns(site):
                family.add_metric([site.task, name], site.stats.service_sum_s[column])
        return family

    def _batches(self) -> Any:
        family = HistogramMetricFamily(
            "inferway_batch_size", "Rows that a model was run on at once.", labels=_VARIANT
        )
        bounds = [*(str(bound) for bound in BATCH_BOUNDS), "+Inf"]
        for site in self._sites:
            counters = site.stats
            for name, column in _columns(site):
                buckets = list(zip(bounds, accumulate(counters.batches[column]), strict=True))
                family.add_metric([site.task, name], buckets, counters.batch_rows[column])
        return family

    def _queues(self) -> Iterator[Any]:
        length = GaugeMetricFamily(
            "inferway_queue_length",
            "Requests at the servers of a class, those in service included.",
            labels=_VARIANT,
        )
        servers = GaugeMetricFamily(
            "inferway_instances", "Running copies of a variant.", labels=_VARIANT
        )
        healthy = GaugeMetricFamily(
            "inferway_instance_healthy",
            "1 while the instance takes requests, 0 while it rests after failures.",
            labels=[*_VARIANT, "instance"],
        )
        held = GaugeMetricFamily(
            "inferway_held_requests", "Requests in the central queue.", labels=_TASK
        )
        ready = GaugeMetricFamily(
            "inferway_task_ready", "1 when the task is served, else 0.", labels=_TASK
        )
        for site in self._sites:
            for k, name in enumerate(site.pool.variants):
                queues = site.pool.queues[site.pool.first[k] : site.pool.first[k + 1]]
                length.add_metric([site.task, name], sum(map(len, queues)))
                servers.add_metric([site.task, name], len(queues))
                for i in range(len(queues)):
                    takes = site.pool.health.healthy[site.pool.first[k] + i]
                    healthy.add_metric([site.task, name, str(i)], float(takes))
            held.add_metric([site.task], len(site.pool.held))
            ready.add_metric([site.task], float(site.ready))
        yield from (length, servers, healthy, held, ready)

    def _accuracy(self) -> Iterator[Any]:
        mean = GaugeMetricFamily(
            "inferway_accuracy_mean_ratio",
            "Mean profile accuracy of all answers, 0..1.",
            labels=_TASK,
        )
        target = GaugeMetricFamily(
            "inferway_accuracy_target_ratio", "Accuracy target, 0..1.", labels=_TASK
        )
        balance = GaugeMetricFamily(
            "inferway_accuracy_balance",
            "Running sum of (accuracy - target) over dispatched answers, pinned ones left out.",
            labels=_TASK,
        )
        for site in self._sites:
            rows = site.stats.total_rows
            if rows:
                mean.add_metric([site.task], site.stats.accuracy_sum / rows)
            if site.target is not None:
                target.add_metric([site.task], site.target)
            balance.add_metric([site.task], site.balance.item())
        yield from (mean, target, balance)

    def _scheduling(self) -> Iterator[Any]:
        share = GaugeMetricFamily(
            "inferway_routing_probability_ratio",
            "Probability that a request is routed to an instance, where a scheduler says so.",
            labels=[*_VARIANT, "instance"],
        )
        slots = CounterMetricFamily(
            "inferway_scheduling_slots", "Slots of the scheduler that have begun.", labels=_TASK
        )
        spent = CounterMetricFamily(
            "inferway_scheduling_seconds",
            "Time of the event loop that the scheduler's decisions have taken.",
            labels=_TASK,
        )
        longest = GaugeMetricFamily(
            "inferway_scheduling_longest_seconds",
            "The longest of these decisions.",
            labels=_TASK,
        )
        for site in self._sites:
            routing = site.pool.dispatcher.routing
            if routing is not None:
                for server, probability in enumerate(routing.tolist()):
                    k = site.pool.class_of[server]
                    number = str(server - site.pool.first[k])
                    share.add_metric([site.task, site.pool.variants[k], number], probability)
            if site.pool.scheduler is not None:
                slots.add_metric([site.task], site.pool.scheduler.slots)
                spent.add_metric([site.task], site.pool.scheduler.spent_s)
                longest.add_metric([site.task], site.pool.scheduler.longest_s)
        yield from (share, slots, spent, longest)

    def _remotes(self) -> Iterator[Any]:
        failures = CounterMetricFamily(
            "inferway_remote_failures",
            "Calls to a variant's remote server that gave no answer, probes included.",
            labels=[*_VARIANT, "fault"],
        )
        moved = CounterMetricFamily(
            "inferway_remote_moved_requests",
            "Requests that it did not serve and that another variant was given.",
            labels=_VARIANT,
        )
        retries = CounterMetricFamily(
            "inferway_remote_retries",
            "Calls made again because the first connection ended before they were out.",
            labels=_VARIANT,
        )
        opened = CounterMetricFamily(
            "inferway_remote_connections", "Connections made to it.", labels=_VARIANT
        )
        for site in self._sites:
            for k, name in enumerate(site.pool.variants):
                runtime = site.pool.runtimes[site.pool.first[k]]
                if not isinstance(runtime, RemoteRuntime):
                    continue
                for fault in Fault:
                    count = runtime.faults[fault]
                    failures.add_metric([site.task, name, fault.value], count)
                moved.add_metric([site.task, name], site.stats.moved[site.pool.columns[k]])
                retries.add_metric([site.task, name], runtime.retried)
                opened.add_metric([site.task, name], runtime.opened)
        yield from (failures, moved, retries, opened)

    def _recordings(self) -> Iterator[Any]:
        writing = GaugeMetricFamily(
            "inferway_recording_writing",
            "1 while the task is recorded, 0 while the disk takes no more.",
            labels=_TASK,
        )
        gaps = CounterMetricFamily(
            "inferway_recording_gaps", "Times that the disk refused the recording.", labels=_TASK
        )
        decisions = CounterMetricFamily(
            "inferway_recording_lost_decisions",
            "Requests dispatched that could not be recorded.",
            labels=_TASK,
        )
        events = CounterMetricFamily(
            "inferway_recording_lost_events",
            "Events that could not be recorded, these requests included.",
            labels=_TASK,
        )
        for site in self._sites:
            recording = site.pool.recording
            if recording is not None:
                writing.add_metric([site.task], float(recording.gap is None))
                gaps.add_metric([site.task], recording.losses.gaps)
                decisions.add_metric([site.task], recording.losses.decisions)
                events.add_metric([site.task], recording.losses.events)
        yield from (writing, gaps, decisions, events)


def _columns(site: Site) -> list[tuple[str, int]]:
    """List the variants of a task, and where each is counted; those that it had before come last.

    They go on being told: a counter that vanished would seem to begin anew.
    """
    here = list(zip(site.pool.variants, site.pool.columns, strict=True))
    names = site.stats.variants
    return here + [(name, at) for at, name in enumerate(names) if (name, at) not in here]
