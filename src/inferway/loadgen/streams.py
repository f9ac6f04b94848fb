"""Streams of requests to one server or a network's nodes: given ones, or a deployment's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.loadgen.access import (
    ASK_S,
    OPEN,
    Access,
    AddressError,
    DriveError,
    ask,
    server_at,
    signature,
)
from inferway.loadgen.generator import Progress, Reply, SendPlan, carry_out, sentence_of
from inferway.loadgen.labels import LabeledFiles, check, judge
from inferway.loadgen.message import Inputs, count_of, encode, head, inputs_of
from inferway.loadgen.network_record import NetworkRecord
from inferway.loadgen.record import Record
from inferway.profiling.score import DEFAULT
from inferway.protocol import Signature
from inferway.protocol.inference import AnswerError, Parameters, decode

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.profiling.score import Score

URL: Final = "http://127.0.0.1:8000"  # Where `inferway serve` listens unless told otherwise
CONNECTIONS: Final = 512  # Greatest number of connections unless told otherwise
GRACE_S: Final = 10.0  # How long answers are waited for after the last send, seconds
_ITEMS: Final = 0x17E5  # Tells this use of the seed from others

Told = Callable[[str, float], None]


class SendSettings(TypedDict, total=False):
    """Settings of sending; see `replay`."""

    access: Access
    binary: bool
    connections: int
    grace_s: float


@dataclass(frozen=True)
class Stream:
    """An open-loop stream of requests for one task.

    Attributes
    ----------
    task
        The task's name.
    times_s
        Shape (N,): when each request is due, seconds from the start.
    images
        Shape (M, ...): distinct inputs without their batch axis; by name where there are several.
    labels
        Shape (M,): their true classes, if known; (M, ...) where a score says what is right.
    item
        Shape (N,): which input each request sends; in turn if not given.
    variant
        Pins all requests to one variant.
    parameters
        Sent with each request, say `{"deadline_ms": 50}`.
    groups
        Shape (M,): inputs of one number are alike, as pictures of one person.
    score
        Compares answers with labels, all of their outputs; by default the class of the first
        output is compared.
    """

    task: str
    times_s: ArrayLike
    images: NDArray[Any] | Mapping[str, NDArray[Any]]
    labels: ArrayLike | None = None
    item: ArrayLike | None = None
    variant: str | None = None
    parameters: Parameters | None = None
    groups: ArrayLike | None = None
    score: Score | None = None

    def validated(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return times and items; DriveError where the stream does not fit together."""
        times, count = np.asarray(self.times_s, np.float64), count_of(self.images)
        given = np.arange(len(times)) % max(count, 1) if self.item is None else self.item
        items = np.asarray(given, np.int64)
        labels = count if self.labels is None else len(np.asarray(self.labels))
        for fails, wrong in (
            (
                not np.all(np.isfinite(times)) or np.any(times < 0),
                "has a time that is negative or not finite",
            ),
            (
                len(items) != len(times),
                f"has {len(times)} times but {len(items)} items: one each, please",
            ),
            (
                len(items) and (items.min() < 0 or items.max() >= count),
                f"names an item outside its {count} inputs",
            ),
            (labels != count, f"has {count} inputs but {labels} labels"),
            (self.score is not None and self.labels is None, "has a score and no labels"),
        ):
            if fails:
                raise DriveError(f"the stream for the task {self.task!r} {wrong}")
        return times, items


def spoken(told: Told | None) -> Progress | None:
    """Turn numbers of requests into a sentence and the part that is done, 0..1."""
    if told is None:
        return None
    return lambda due, ended, planned: told(
        f"{due} of {planned} requests sent, {due - ended} open", due / planned
    )


def replay(
    url: str,
    streams: Sequence[Stream],
    *,
    access: Access = OPEN,
    binary: bool = True,
    connections: int = CONNECTIONS,
    grace_s: float = GRACE_S,
    progress: Progress | None = None,
) -> list[Record]:
    """Send streams of requests to a server at their times, from a process of its own.

    Requests are sent when they are due whatever the answers do, so latency counts from the
    intended time.

    Parameters
    ----------
    url
        The server, as `http://127.0.0.1:8000`; nothing is sent anywhere else.
    streams
        One for each task; they run at the same time.
    access
        The key that the server asks for, and who signed its certificate.
    binary
        Tensors as raw bytes (the binary tensor extension), else as JSON.
    connections
        Greatest number of connections; a request that finds all in use waits, and its wait counts.
    grace_s
        How long to wait for answers after the last request is due, seconds.
    progress
        Called about ten times a second with how many requests are due, ended, and planned.

    Returns
    -------
    records
        One per stream. After Ctrl-C they hold what was due until then and say `interrupted`.

    Raises
    ------
    DriveError
        When no server answers there, it is not ready, lacks a task, asks for a key or has a
        certificate that is not trusted, or when inputs do not fit.
    KeyboardInterrupt
        Where Ctrl-C comes before any request is due.
    """
    address = server_at(url)
    bodies: list[bytes] = []
    parts, kept = [], list[Signature | None]()
    for index, stream in enumerate(streams):
        times, items = stream.validated()
        parts.append((times, np.full(len(times), index), items, items + len(bodies)))
        asked, scored = signature(url, stream.task, access=access), stream.score is not None
        kept.append(asked if scored else None)
        bodies += encode(
            stream.task,
            asked,
            stream.images,
            parameters=stream.parameters,
            binary=binary,
            every=scored,
        )
    due_s, owner, item, body = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(due_s, kind="stable")
    plan = SendPlan(
        addresses=[address],
        heads=[head(address, stream.task, stream.variant) for stream in streams],
        target=[0] * len(streams),
        bodies=bodies,
        due_s=due_s[order],
        head=owner[order],
        body=body[order],
        connections=connections,
        grace_s=grace_s,
        kept=kept,
    )
    outcome = carry_out(plan, access, progress)
    records = []
    for index, stream in enumerate(streams):
        rows = np.flatnonzero(plan.head[: len(outcome)] == index)
        sent = item[order][rows].astype(np.int32)
        columns: dict[str, Any] = outcome.of_record(rows)
        if stream.score is not None:
            judged = judge(stream.score, np.asarray(stream.labels)[sent], rows, outcome.outputs)
            columns |= {"scored": stream.score.name, "score": judged.score, "label": judged.true}
            if stream.score.classes is not None:
                columns["predicted_class"] = judged.answered
        elif stream.labels is None:
            columns["label"] = np.full(len(sent), -1, np.int32)
        else:
            columns["label"] = np.asarray(stream.labels, np.int32)[sent]
        if stream.groups is not None:
            columns["group"] = np.asarray(stream.groups, np.int64)[sent]
        records.append(Record(task=stream.task, intended_s=plan.due_s[rows], item=sent, **columns))
    return records


def drive(
    url: str,
    task: str,
    times_s: ArrayLike,
    images: NDArray[Any],
    labels: ArrayLike | None = None,
    *,
    item: ArrayLike | None = None,
    variant: str | None = None,
    parameters: Parameters | None = None,
    progress: Progress | None = None,
    **settings: Unpack[SendSettings],
) -> Record:
    """Send one task's requests at their times; see `Stream`, and `replay` for the settings.

    >>> record = drive("http://127.0.0.1:8000", "digits", times_s, images, labels)  # doctest: +SKIP
    """
    stream = Stream(task, times_s, images, labels, item, variant, parameters)
    return replay(url, [stream], progress=progress, **settings)[0]


def run(
    deployment: Deployment,
    url: str = URL,
    *,
    duration_s: float = 30.0,
    seed: int | None = None,
    labeled: LabeledFiles | None = None,
    progress: Told | None = None,
    **settings: Unpack[SendSettings],
) -> dict[str, Record]:
    """Send the workload of a deployment's file to a running server.

    Tasks without data get images where they are of a zoo, with labels, of the half of its test set
    that its accuracies are from; others get random tensors of their signature, as the server tells
    it. A request of the data is made of each task first, to see that its answers can be scored.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    url
        The server; nothing is sent anywhere else.
    duration_s
        How long to send, seconds.
    seed
        Of arrivals and inputs; the file's if not given.
    labeled
        The user's own inputs, drawn evenly, and what the answers are measured by.
    progress
        Called with what is being done and the part of it that is done, 0..1.
    settings
        `access`, `binary`, `connections` and `grace_s`, as in `replay`.

    Returns
    -------
    records
        By task. After Ctrl-C they hold what was due until then and say `interrupted`.

    Raises
    ------
    DriveError
        When the file has no workload, nothing is due within the duration, or the server cannot be
        driven.
    DataError, ScoreError
        When labeled data do not fit what the server takes, or their labels not what it answers.
    """
    if not deployment.workload:
        raise DriveError(
            f"{deployment.path} has no `workload`: say there how requests arrive, for example "
            "workload: {TASK: {arrivals: {process: poisson, rate: 100/s}}}"
        )
    from inferway.dispatch.escalation_bounds import full_load
    from inferway.site.fleet import fleet_of
    from inferway.workload.arrivals import times

    chosen = deployment.seed if seed is None else seed
    access = settings.get("access", OPEN)
    streams, drawn = [], dict[str, NDArray[np.int64]]()
    for index, (name, workload) in enumerate(deployment.workload.items()):
        task = deployment.tasks[name]
        words = np.random.SeedSequence((chosen, index)).generate_state(3).tolist()
        capacity_per_s = full_load(fleet_of(deployment, name), task.accuracy_target)
        times_s = times(
            workload.arrivals, horizon_s=duration_s, capacity_per_s=capacity_per_s, seed=words[0]
        )
        if len(times_s):
            asked, score = signature(url, name, access=access), None
            if labeled is not None and name in labeled.files:
                inputs, score = labeled.inputs(name, asked), labeled.score
                _try(url, name, asked, inputs, labeled.score, settings)
            else:
                inputs = inputs_of(task, asked, words[1])
            inputs, rows, item = inputs.drawn(np.random.default_rng(words[2]), len(times_s))
            drawn[name] = rows
            streams.append(
                Stream(
                    name,
                    times_s,
                    inputs.images,
                    inputs.labels,
                    item=item,
                    groups=rows if inputs.groups is None else inputs.groups,
                    score=score,
                )
            )
    if not streams:
        raise DriveError(f"no request is due within {duration_s:g} s: drive for longer")
    records = replay(url, streams, progress=spoken(progress), **settings)
    # Items are those of all inputs, not of those that were drawn.
    return {
        one.task: replace(one, item=drawn[one.task][one.item].astype(np.int32)) for one in records
    }


def _try(
    url: str,
    task: str,
    asked: Signature,
    inputs: Inputs,
    score: Score,
    settings: SendSettings,
) -> None:
    """Ask for one answer to labeled data, and see whether it can be scored.

    DriveError when the request is refused as wrong, ScoreError when the score does not fit.
    """
    address, access = server_at(url), settings.get("access", OPEN)
    one = inputs.part(np.zeros(1, np.int64)).images
    (rest,) = encode(task, asked, one, binary=settings.get("binary", True), every=True)
    lines, _, content = rest.partition(b"\r\n\r\n")
    status, headers, body = ask(
        address,
        f"{address.model_path(task)}/infer",
        access,
        body=content,
        headers=dict(line.split(": ", 1) for line in lines.decode().split("\r\n")),
        within_s=max(ASK_S, settings.get("grace_s", GRACE_S)),
    )
    failed = f"the first request of the data for the task {task!r} failed"
    if status == 200:
        json_length = Reply.headed(status, headers, body).json_length
        try:
            outputs = decode(asked, 1, body, None if json_length < 0 else json_length)
        except AnswerError as error:
            raise DriveError(f"{failed}: the answer {error}") from None
        assert inputs.labels is not None
        check(score, task, inputs.labels, outputs)
    elif 400 <= status < 500 and status != 429:
        raise DriveError(f"{failed}: {access.hidden(sentence_of(body))}")


def drive_network(
    deployment: Deployment,
    addresses: Mapping[str, str],
    *,
    duration_s: float,
    seed: int | None = None,
    access: Access = OPEN,
    binary: bool = True,
    connections: int = CONNECTIONS,
    grace_s: float = GRACE_S,
    with_slots: bool = False,
    labeled: LabeledFiles | None = None,
    progress: Told | None = None,
) -> NetworkRecord:
    """Send the workload of a file with a `network` to its nodes, each request where it enters.

    The requests are those of `inferway.network.demand.requests_of`. Inputs are as in
    `inferway.loadgen.run`, with a node in the server's place.

    Parameters
    ----------
    deployment
        From `inferway.load`.
    addresses
        URLs by node; nodes where nothing enters need none.
    duration_s
        How long to send, seconds.
    seed
        Of the requests and inputs; the file's if not given.
    access, binary, connections, grace_s
        As in `inferway.loadgen.replay`; the connections are those to each node.
    with_slots
        Whether to wait for the end of a slot of live nodes, so that the record's slots are theirs:
        a multiple of the slot's length on the wall clock, which theirs must agree with.
    labeled
        The user's own inputs, drawn evenly, and what the answers are measured by.
    progress
        Called with what is being done and the part of it that is done, 0..1.

    Returns
    -------
    record
        After Ctrl-C it holds what was due until then and says `interrupted`.

    Raises
    ------
    DriveError
        When nothing is due within the duration, or a node that requests enter at has no address or
        cannot be driven.
    DeploymentError
        When the file has no network, or one that cannot be used.
    DataError, ScoreError
        When labeled data do not fit what a node takes, or their labels not what it answers.
    """
    from inferway.network import deployed
    from inferway.network.demand import requests_of

    chosen = deployment.seed if seed is None else seed
    network, demand = deployed(deployment)
    trace = requests_of(network, replace(demand, seed=chosen), duration_s)
    if not len(trace.time_s):
        raise DriveError(f"no request is due within {duration_s:g} s: drive for longer")
    entered, place = np.unique(trace.entry, return_inverse=True)
    names = [network.nodes[node] for node in entered]
    if missing := [name for name in names if name not in addresses]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise AddressError(
            f"requests enter at {missing[0]}{more}, and nothing says where that node listens: give "
            "`--addresses FILE.json`, or `address` of the node in the deployment file"
        )
    urls = [addresses[name] for name in names]
    # Of each kind of task, its signature and the inputs that are sent.
    kinds = tuple(deployment.tasks)
    counts = [one.count for one in deployment.tasks.values()]
    kind_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)[trace.task]
    rng = np.random.default_rng([chosen, _ITEMS])
    item, body = np.empty((2, len(kind_of)), np.int64)
    bodies: list[bytes] = []
    inputs: dict[int, Inputs] = {}
    drawn: dict[int, NDArray[np.int64]] = {}
    scores: dict[int, Score] = {}
    kept: dict[int, Signature] = {}
    settings: SendSettings = {"access": access, "binary": binary, "grace_s": grace_s}
    for kind in np.unique(kind_of).tolist():
        rows = np.flatnonzero(kind_of == kind)
        places, first = np.unique(place[rows], return_index=True)
        asked = _signature(
            [urls[one] for one in places],
            [network.tasks[one] for one in trace.task[rows[first]]],
            access,
        )
        name = kinds[kind]
        if labeled is not None and name in labeled.files:
            tests = labeled.inputs(name, asked)
            scores[kind], kept[kind] = labeled.score, asked
            task = network.tasks[trace.task[rows[0]]]
            _try(urls[place[rows[0]]], task, asked, tests, labeled.score, settings)
        else:
            tests = inputs_of(deployment.tasks[name], asked, chosen)
        inputs[kind], drawn[kind], item[rows] = tests.drawn(rng, len(rows))
        body[rows] = len(bodies) + item[rows]
        bodies += encode(name, asked, inputs[kind].images, binary=binary, every=kind in kept)
    servers = [server_at(url) for url in urls]
    # A head for each pair of a server and a task.
    pair, head_of = np.unique(place * len(network.tasks) + trace.task, return_inverse=True)
    target, tasks = (part.tolist() for part in np.divmod(pair, len(network.tasks)))
    first_kind = np.cumsum([0, *counts])
    plan = SendPlan(
        addresses=servers,
        heads=[head(servers[s], network.tasks[k]) for s, k in zip(target, tasks, strict=True)],
        target=target,
        bodies=bodies,
        due_s=trace.time_s,
        head=head_of.astype(np.int64),
        body=body,
        connections=connections,
        grace_s=grace_s,
        every_s=network.slot_s if with_slots else 0.0,
        kept=[kept.get(int(np.searchsorted(first_kind, k, "right")) - 1) for k in tasks],
    )
    outcome = carry_out(plan, access, spoken(progress))
    count, said = len(outcome), outcome.columns["said"]
    columns: dict[str, Any] = outcome.of_record(slice(None))
    label, group = np.full(count, -1, np.int32), np.empty(count, np.int64)
    score = np.full(count, np.nan)
    for kind, one in inputs.items():
        rows = np.flatnonzero(kind_of[:count] == kind)
        sent = item[rows]
        item[rows] = drawn[kind][sent]
        # Inputs of several kinds are not alike.
        group[rows] = (item[rows] if one.groups is None else one.groups[sent]) * len(kinds) + kind
        if one.labels is None:
            continue
        if kind in scores:
            judged = judge(scores[kind], one.labels[sent], rows, outcome.outputs)
            label[rows], score[rows] = judged.true, judged.score
            if scores[kind].classes is not None:
                columns["predicted_class"][rows] = judged.answered
        else:
            label[rows] = one.labels[sent]
            answered = rows[columns["status"][rows] == 200]
            score[answered] = columns["predicted_class"][answered] == label[answered]
    nodes, node = _indexed(outcome.nodes, said, network.nodes)
    paths, path = _indexed(outcome.paths, said)
    degradations, degraded = _indexed(outcome.degradations, said)
    return NetworkRecord(
        task="" if len(inputs) > 1 else kinds[next(iter(inputs))],
        intended_s=trace.time_s[:count],
        item=item[:count].astype(np.int32),
        label=label,
        scored=labeled.score.name if scores and labeled is not None else DEFAULT,
        score=score,
        group=group,
        **columns,
        slot_s=network.slot_s,
        kinds=kinds,
        kind=kind_of[:count],
        tasks=network.tasks,
        asked=trace.task[:count],
        type=trace.type[:count],
        nodes=nodes,
        entry=trace.entry[:count],
        node=node,
        paths=paths,
        path=path,
        degradations=degradations,
        degraded=degraded,
        began_s=outcome.began_s,
    )


def _signature(urls: list[str], tasks: list[str], access: Access) -> Signature:
    """Ask each server for its task, all of one kind: all must say the same."""
    first, *others = (
        signature(url, task, access=access) for url, task in zip(urls, tasks, strict=True)
    )
    for url, task, other in zip(urls[1:], tasks[1:], others, strict=True):
        if other != first:
            raise DriveError(
                f"{urls[0]} and {url} disagree on what the task {task!r} takes: {first.inputs} "
                f"and {other.inputs}"
            )
    return first


def _indexed(
    said: tuple[str, ...], by: NDArray[np.int32], names: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Number the distinct headers that answers had, after `names`; -1 where they said nothing."""
    index = {name: k for k, name in enumerate(names)}
    number = [index.setdefault(one, len(index)) if one else -1 for one in said]
    return tuple(index), np.array([*number, -1], np.int32)[by]
