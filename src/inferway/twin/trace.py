"""A recording as a scenario: the requests that a live server had, and how long they took there.

How long a server takes is learned from the same recording that live and twin are then compared by:
what is put to the test is all the rest, that is arrivals, decisions, queues. Learning from one half
of the requests and comparing by the other would test more, and was tried: on a machine that other
programs use as well, most of what it shows is how far the two halves are apart by chance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.deployment import ServiceTime
from inferway.deployment.workloads import TraceArrivals, Workload
from inferway.dispatch.batching import rule_of
from inferway.dispatch.joint import told_targets
from inferway.dispatch.recording import (
    ANSWER,
    ARRIVE,
    BEGIN,
    BIN,
    EVENT,
    FALL_BACK,
    FINISH,
    MARK,
    SETTLE,
    START,
    WITHDRAW,
)
from inferway.dispatch.replay import MOST_PLACES, events, header, recordings
from inferway.site.view import HOLD, Floats, Ints
from inferway.twin.result import Numbers, TaskResult
from inferway.twin.scenario import Scenario, scenario_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment

MOST_SAMPLES = 1 << 16  # Measured times kept per class; of more, every so manieth is
_FEW = 50  # Answers of a variant in half a recording below which nothing is said of its drift
_STEADY = 0.2  # Change of a mean from half to half that is not worth a word
# A deadline counts from the receipt of a request, which is this much before its arrival at most:
# reading it takes so long.
_SAME_DEADLINE_S = 1e-3


@dataclass(frozen=True)
class RecordedTrace:
    """A recording's n requests, in the order in which they arrived."""

    task: str
    policy: str
    told_rate_per_s: float | None  # The arrival rate that the policy was told, 1/s
    variants: tuple[str, ...]  # K server classes, in the order of the recorded fleet
    count: Ints  # (K,) servers of each
    accuracy: Floats  # (K,) by their profiles; nan where one is unknown
    arrived_s: Floats  # (n,) when each was dispatched for the first time, s from the first of them
    taken_by: Ints  # (n,) class that answered it, or had it last; -1 where it was refused
    left_s: Floats  # (n,) when its answer was ready to be sent; nan where there was none
    # (n,) for how long its server was its own: from when it came there, or the end of the one
    # before it there if that was later, to its own end. Of a batch the first request has the time
    # from its beginning to its last answer; nan for the others, and where there was no answer.
    occupied_s: Floats
    # (n,) for how long the model ran, as the server measured it; nan where it was not answered.
    model_s: Floats
    # (n,) requests that were run at once with it, itself included: 1 where it was alone; of a
    # batch the first has the number and the others 0, as have those that were not answered.
    together: Ints
    rows: Ints  # (n,)
    deadline_s: Floats  # (n,) from its arrival; inf where it had none
    floors: int  # Requests with an accuracy floor of their own
    pins: int  # Requests pinned to a variant
    urgent: int  # Requests with a priority
    marks: int  # How often a server fell sick or returned
    begun: int  # Requests that were at servers when the recording began
    # Requests that a second server was asked for; the times above are those of that one.
    again: int = 0
    # (n,) expected accuracy of the answer; nan where nothing is known but its variant's. Empty
    # where no answer was decided on.
    worth: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def answered(self) -> Any:
        """(n,) which had an answer."""
        return np.isfinite(self.left_s)


def read(folder: Path) -> RecordedTrace:
    """Read one recording, of `inferway serve --record`.

    ValueError where it cannot be read, holds no request, or holds some that waited in a central
    queue: when those arrived is not recorded.
    """
    head = header(folder)
    try:
        return _read(folder, head)
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError) as wrong:
        why = f"there is no {wrong}" if isinstance(wrong, KeyError) else str(wrong)
        raise ValueError(f"{folder} is damaged: {why}") from wrong


def _read(folder: Path, head: dict[str, Any]) -> RecordedTrace:
    fleet = head["fleet"]
    count = np.array(fleet["count"], np.int64)
    if not 0 < int(count.sum()) <= MOST_PLACES:
        raise ValueError(f"{folder} is damaged: it has {int(count.sum())} servers")
    files = list(events(folder))
    queue = files[0][0]["site.queue"].tolist() if files else []
    begun = sum(queue)
    if not 0 <= begun <= MOST_PLACES:
        raise IndexError(f"{begun} requests were at its servers")
    parts = [rows for _, rows in files]
    rows = np.concatenate([np.empty(0, EVENT), *parts])
    came = rows[rows["kind"] == ARRIVE]
    held = int((came["server"] == HOLD).sum())
    if held:
        raise ValueError(
            f"{folder}: {held} times a request waited in the central queue, and when those "
            "arrived is not recorded; record a node with `queue: per-server`"
        )
    if not len(came):
        raise ValueError(f"{folder} holds no request")
    first_s = came["time_s"][0]
    class_of = np.repeat(np.arange(len(count)), count)
    server, left_s, occupied_s, model_s, together = _services(parts, came, queue)
    tables = fleet.get("confidence")
    return RecordedTrace(
        task=fleet["task"],
        policy=head["policy"],
        told_rate_per_s=head["rate_per_s"],
        variants=tuple(fleet["variants"]),
        count=count,
        accuracy=np.array(fleet["accuracy"], np.float64),
        arrived_s=came["time_s"] - first_s,
        taken_by=np.where(server >= 0, class_of[np.maximum(server, 0)], -1),
        left_s=left_s - first_s,
        occupied_s=occupied_s,
        model_s=model_s,
        together=together,
        rows=came["rows"].astype(np.int64),
        deadline_s=came["value"] - came["time_s"],
        floors=int((came["floor"] > 0.0).sum()),
        pins=int((came["flag"] == 0).sum()),
        urgent=int((came["priority"] > 0).sum()),
        marks=int((rows["kind"] == MARK).sum()),
        begun=begun,
        again=int(((rows["kind"] == SETTLE) & (rows["server"] >= 0)).sum()),
        worth=np.empty(0) if tables is None else _worth(parts, len(came), queue, class_of, tables),
    )


def _worth(
    parts: Sequence[Any], count: int, waiting: Sequence[int], class_of: Ints, tables: Any
) -> Floats:
    """Expected accuracy of each answer, by what its policy saw of it."""
    worth, arrivals = np.full(count, np.nan), 0
    expected = np.array(tables["expected"], np.float64)
    queues = [deque([-1] * length) for length in waiting]
    answering, credit, count_of, of_rows, in_bins = -1, 0.0, 1, 0, 0.0
    for kind, _, _, number, server, part, _, _, value, other in chain.from_iterable(
        rows.tolist() for rows in parts
    ):
        if kind == ARRIVE:
            if server >= 0:
                queues[server].append(arrivals)
            arrivals += 1
        elif kind == ANSWER:
            answering, credit, count_of, of_rows, in_bins = server, value, other, 0, 0.0
        elif kind == BIN:
            k = class_of[answering]
            of_rows, in_bins = of_rows + number, in_bins + number * expected[k, server, k]
        elif kind == SETTLE:
            request = queues[answering][0]
            if server >= 0:
                queues[server].append(request)
            elif request >= 0 and (count_of > 1 or of_rows):
                worth[request] = credit if count_of > 1 else in_bins / of_rows
        elif kind in (WITHDRAW, FALL_BACK):
            request = queues[server][number]
            del queues[server][number]
            if kind == FALL_BACK and request >= 0:
                worth[request] = part
        elif kind == FINISH:
            queues[server].popleft()
    return worth


def _services(
    parts: Sequence[Any], came: Any, waiting: Sequence[int]
) -> tuple[Ints, Floats, Floats, Floats, Ints]:
    """Follow each server's queue through the events, first come, first served.

    For each request its server, the last one where there were two, when it left, its server's and
    its model's time, and who was served along; -1 stands for each of those that were waiting at the
    servers when the first file began.
    """
    taken_by: list[int] = came["server"].tolist()
    # When each came to its server.
    arrived_s: list[float] = came["time_s"].tolist()
    answering = -1  # The server whose answer has just been decided on
    asked: set[int] = set()  # Those that go to a second server when their first one has ended
    left_s, occupied_s, model_s = np.full((3, len(came)), np.nan)
    together = np.zeros(len(came), np.int64)
    queues = [deque([-1] * length) for length in waiting]
    free_s = [-np.inf] * len(queues)
    # Of the batch in service: its size, 0 where there is none; its beginning; its first.
    size, began_s, lead = [0] * len(queues), [np.nan] * len(queues), [-1] * len(queues)
    arrivals = 0
    for kind, _, _, number, server, part, time_s, _, value, other in chain.from_iterable(
        part.tolist() for part in parts
    ):
        if kind == ARRIVE:
            if server >= 0:
                queues[server].append(arrivals)
            arrivals += 1
        elif kind in (BEGIN, START):
            size[server], began_s[server], lead[server] = number, time_s, -1
        elif kind in (WITHDRAW, FALL_BACK):
            request = queues[server][number]
            del queues[server][number]
            if number == 0:
                free_s[server] = time_s
            if kind == FALL_BACK and request >= 0 and part == part:
                left_s[request], taken_by[request] = time_s, other
        elif kind == ANSWER:
            answering = server
        elif kind == SETTLE and server >= 0:
            request = queues[answering][0]
            queues[server].append(request)
            if request >= 0:
                asked.add(request)
                arrived_s[request], taken_by[request] = time_s, server
        elif kind == FINISH:
            request = queues[server].popleft()
            if request in asked:  # its first answer is in hand
                asked.remove(request)
                request = -1
            if request >= 0:
                left_s[request], model_s[request] = time_s, value
                if lead[server] < 0:
                    together[request] = max(1, size[server])
                    lead[server] = request
            first = lead[server]
            if first >= 0:
                alone_s = max(arrived_s[first], free_s[server])
                occupied_s[first] = time_s - (began_s[server] if size[server] else alone_s)
            if size[server] == 0:
                lead[server] = -1
            free_s[server] = time_s
    return np.array(taken_by, np.int64), left_s, occupied_s, model_s, together


def traces(folder: Path) -> dict[str, RecordedTrace]:
    """Read the recordings at a folder, by task; ValueError as `read`, and where there is none.

    Where a task has several, since another file was applied to the server, the longest counts.
    """
    found: dict[str, RecordedTrace] = {}
    for one in map(read, recordings(folder)):
        if one.task not in found or len(one.arrived_s) > len(found[one.task].arrived_s):
            found[one.task] = one
    return found


def measured(trace: RecordedTrace) -> Numbers:
    """Measure what the live server did; ValueError where it answered nothing."""
    answered, taken_by = trace.answered, trace.taken_by
    if not answered.any():
        raise ValueError(
            f"the recording of task {trace.task} has {len(answered)} requests and no answer"
        )
    response_s = (trace.left_s - trace.arrived_s)[answered]
    p50_s, p95_s, p99_s = np.quantile(response_s, (0.5, 0.95, 0.99)).tolist()
    by = np.bincount(taken_by[answered], minlength=len(trace.variants)) / answered.sum()
    accuracy = float(by @ trace.accuracy)
    if len(trace.worth):
        worth, own = trace.worth[answered], trace.accuracy[taken_by[answered]]
        accuracy = float(np.where(np.isnan(worth), own, worth).mean())
    return Numbers(
        mean_s=float(response_s.mean()),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        accuracy=accuracy,
        rejected=float((taken_by < 0).mean()),
        dropped=float((~answered & (taken_by >= 0)).mean()),
        shares=dict(zip(trace.variants, by.tolist(), strict=True)),
        queries=len(answered),
    )


def simulated(result: TaskResult) -> Numbers:
    """The same of a simulation."""
    same = ["p50_s", "p95_s", "p99_s", "rejected", "dropped", "shares", "queries"]
    return Numbers(
        mean_s=result.response_time_s.mean,
        accuracy=result.accuracy.mean,
        **{name: getattr(result, name) for name in same},
    )


@contextmanager
def arriving(
    deployment: Deployment,
    task: str,
    arrived_s: Floats,
    told_rate_per_s: float | None,
    node: str | None = None,
) -> Iterator[Scenario]:
    """The file's fleet and policy under requests of these times, while the block runs.

    The times go through a file of their own, as any trace's do. What the file's workload said to
    the live policy, its rate, it says to this one. ValueError as `scenario_of`.
    """
    with TemporaryDirectory(prefix="inferway-trace-") as name:
        file = Path(name, "arrivals.csv")
        np.savetxt(file, arrived_s, fmt="%.9f")
        arrivals = TraceArrivals(process="trace", file=file)
        told = replace(deployment, workload={task: Workload(arrivals=arrivals)})
        scenario = scenario_of(told, task, node)
        options = dict(scenario.options)
        if options.get("rate") is None and told_rate_per_s is not None:
            options["rate"] = told_rate_per_s
        # What was served did not rehearse a fall of accuracy, and knew all rates of the file.
        targets = tuple(told_targets(deployment, node)) if scenario.targets else ()
        yield replace(scenario, options=options, drift=None, targets=targets)


def replayed(
    deployment: Deployment, trace: RecordedTrace, node: str | None = None
) -> AbstractContextManager[Scenario]:
    """The file's fleet and policy under the requests of a trace; see `arriving`."""
    return arriving(deployment, trace.task, trace.arrived_s, trace.told_rate_per_s, node)


def calibrated(scenario: Scenario, trace: RecordedTrace) -> Scenario:
    """The scenario with service times as the requests of a trace had them.

    A server is busy for as long as the live one was, handing over included, and predicts by how
    long its model ran, as the live one did. A variant that answered none keeps its profile; a size
    of batch that did not come about keeps its part of it.
    """
    service, batches, measured_s = list(scenario.service), list(scenario.batches), {}
    for k, variant in enumerate(scenario.fleet.variants):
        own = _runs(trace, variant)
        if len(own) == 0:
            continue
        own = own[:: -(-len(own) // MOST_SAMPLES)]
        batch = batches[k] if batches else None
        known = {1: service[k].mean_s}
        if batch is not None:
            known |= dict(zip(batch.sizes, batch.service_s, strict=True))
        rule = rule_of(batch)
        size = np.array([rule.rounded(together) for together in trace.together[own].tolist()])
        known_s = np.array([known[one] for one in size.tolist()])
        # A finish may be noted in the same tick of the clock as the one before it.
        occupied_s, model_s = np.maximum(trace.occupied_s[own], 1e-9), trace.model_s[own]
        mean_s, predicted_s = {}, {}
        for one, file_s in known.items():
            seen = size == one
            if seen.any():
                mean_s[one] = float(occupied_s[seen].mean())
                median_s, slow_s = np.quantile(model_s[seen], (0.5, 0.95)).tolist()
            else:
                mean_s[one] = file_s * float(occupied_s.sum() / known_s.sum())
                median_s, slow_s = file_s * np.quantile(model_s / known_s, (0.5, 0.95))
            predicted_s[one] = float(median_s), float(slow_s)
        around = occupied_s / np.array([mean_s[one] for one in size.tolist()])
        samples_s = tuple((mean_s[1] * around).tolist())
        service[k] = ServiceTime("empirical", mean_s[1], samples_s=samples_s)
        if batch is not None:
            batches[k] = replace(batch, service_s=tuple(mean_s[one] for one in batch.sizes))
        measured_s[variant] = predicted_s
    fleet = scenario.fleet
    if fleet.devices is not None:  # what the server itself took is in the times
        none = fleet.devices._replace(overhead_s=np.zeros(len(fleet.devices.names)))
        fleet = replace(fleet, devices=none)
    return replace(
        scenario,
        fleet=fleet,
        service=tuple(service),
        batches=tuple(batches),
        measured_s=measured_s,
    )


def departures(scenario: Scenario, trace: RecordedTrace) -> list[str]:
    """List what of a trace the twin cannot follow, a sentence each, with the number of requests."""
    own = np.isfinite(trace.deadline_s)
    if scenario.deadline_s is not None:
        own &= np.abs(trace.deadline_s - scenario.deadline_s) > _SAME_DEADLINE_S
    withdrawn = int((~trace.answered & (trace.taken_by >= 0)).sum())
    found = [
        (int(own.sum()), "had a deadline other than the file's, and have the file's here"),
        (trace.floors, "had an accuracy floor, and have none here"),
        (trace.pins, "were pinned to a variant, and go where the policy sends them here"),
        (int((trace.rows > 1).sum()), "had several rows, and count as one here"),
        (trace.urgent, "had a priority, and wait in order here"),
        (withdrawn, "left without an answer, as clients who go or deadlines that pass make them"),
        (trace.again, "were asked again: of their times, only the last answer's count here"),
        (trace.begun, "were at the servers when the recording began, and are not here"),
    ]
    names, total = scenario.fleet.variants, len(trace.arrived_s)
    unmeasured = ", ".join(variant for variant in names if len(_runs(trace, variant)) == 0)
    recorded = dict(zip(trace.variants, trace.count.tolist(), strict=True))
    fleet = dict(zip(names, scenario.fleet.count.tolist(), strict=True))
    others = [
        (unmeasured, f"no answer came from {unmeasured}: the profile stands there"),
        *((True, sentence) for sentence in _drift(trace)),
        (trace.marks, f"servers fell sick or returned {trace.marks} times, and stay well here"),
        (
            trace.policy != scenario.policy,
            f"the recording is of policy {trace.policy}, and the file names {scenario.policy}",
        ),
        (
            recorded != fleet,
            f"the recording is of {_written(recorded)}, and the file has {_written(fleet)}",
        ),
    ]
    return [f"{count} of {total} requests {what}" for count, what in found if count] + [
        sentence for holds, sentence in others if holds
    ]


def _drift(trace: RecordedTrace) -> list[str]:
    """Variants that took another time in the second half of the recording than in the first."""
    half = len(trace.arrived_s) // 2
    changes = []
    for variant in trace.variants:
        own = _runs(trace, variant)
        after = own >= half
        if min(after.sum(), (~after).sum()) < _FEW:
            continue
        # Batches of another size take another time, on the same machine as well.
        occupied_s, together = trace.occupied_s[own], trace.together[own]
        mean_s = np.bincount(together, occupied_s) / np.maximum(1, np.bincount(together))
        pace = occupied_s / mean_s[together]
        change = float(pace[after].mean() / pace[~after].mean()) - 1.0
        if abs(change) > _STEADY:
            changes.append(f"{variant} {change:+.0%}")
    if not changes:
        return []
    return [
        "this machine was not the same all the time: from the first half of the recording to the "
        f"second, the mean service time changed by {', '.join(changes)}"
    ]


def _runs(trace: RecordedTrace, variant: str) -> Ints:
    if variant not in trace.variants:
        return np.empty(0, np.int64)
    own = (trace.together > 0) & (trace.taken_by == trace.variants.index(variant))
    return np.flatnonzero(own)


def _written(count: dict[str, int]) -> str:
    return " + ".join(f"{number} {variant}" for variant, number in count.items())
