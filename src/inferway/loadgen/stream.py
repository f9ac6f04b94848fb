"""The requests for one task: when, which inputs, with which parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferway.loadgen.access import Access
from inferway.loadgen.addresses import server_at
from inferway.loadgen.error import DriveError
from inferway.loadgen.message import encode, head
from inferway.loadgen.metadata import signature
from inferway.loadgen.plan import Outcome, Plan
from inferway.loadgen.record import Record
from inferway.protocol.inference import Parameters


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
        Shape (M, ...): distinct inputs without their batch axis.
    labels
        Shape (M,): their true classes, if known.
    item
        Shape (N,): which input each request sends; in turn if not given.
    variant
        Pins all requests to one variant.
    parameters
        Sent with each request, say `{"deadline_ms": 50}`.
    """

    task: str
    times_s: ArrayLike
    images: NDArray[Any]
    labels: ArrayLike | None = None
    item: ArrayLike | None = None
    variant: str | None = None
    parameters: Parameters | None = None


@dataclass(frozen=True)
class _Merged:
    """Streams as one plan, and how to take its outcome apart again."""

    streams: Sequence[Stream]
    plan: Plan
    owner: NDArray[np.int64]
    item: NDArray[np.int64]

    def records(self, outcome: Outcome) -> list[Record]:
        """Split the outcome by stream."""
        count = len(outcome)
        return [
            self._record(stream, outcome, np.flatnonzero(self.owner[:count] == index))
            for index, stream in enumerate(self.streams)
        ]

    def _record(self, stream: Stream, outcome: Outcome, rows: NDArray[np.int64]) -> Record:
        item = self.item[rows].astype(np.int32)
        labels = np.full(len(stream.images), -1) if stream.labels is None else stream.labels
        return Record(
            stream.task,
            outcome.variants,
            self.plan.due_s[rows],
            outcome.sent_s[rows],
            outcome.done_s[rows],
            outcome.status[rows],
            outcome.variant[rows],
            outcome.predicted_class[rows],
            outcome.predicted_s[rows],
            item,
            np.asarray(labels, np.int32)[item],
            outcome.waited[rows],
            outcome.cpu_s,
            len(outcome),
            outcome.interrupted,
            outcome.reasons,
            outcome.reason[rows],
        )


def merge(
    url: str,
    streams: Sequence[Stream],
    *,
    access: Access,
    binary: bool,
    connections: int,
    grace_s: float,
) -> _Merged:
    """Encode several streams into one plan, in the order of time.

    The server is asked for each task's signature.

    Raises
    ------
    DriveError
        When the server does not answer or lacks a task, or a stream does not fit together.
    """
    address = server_at(url)
    if connections < 1:
        raise DriveError(f"connections is {connections}: at least one is needed to send anything")
    bodies: list[bytes] = []
    due, owner, item, body = [], [], [], []
    for index, stream in enumerate(streams):
        times, items = _validated(stream)
        due.append(times)
        owner.append(np.full(len(times), index))
        item.append(items)
        body.append(items + len(bodies))
        bodies += encode(
            stream.task,
            signature(url, stream.task, access=access),
            stream.images,
            parameters=stream.parameters,
            binary=binary,
        )
    order = np.argsort(np.concatenate(due), kind="stable")
    plan = Plan(
        addresses=[address],
        heads=[head(address, stream.task, stream.variant) for stream in streams],
        target=[0] * len(streams),
        bodies=bodies,
        due_s=np.concatenate(due)[order],
        head=np.concatenate(owner)[order],
        body=np.concatenate(body)[order],
        connections=connections,
        grace_s=grace_s,
    )
    return _Merged(streams, plan, plan.head, np.concatenate(item)[order])


def _validated(stream: Stream) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    times = np.asarray(stream.times_s, np.float64)
    count = len(stream.images)
    given = np.arange(len(times)) % max(count, 1) if stream.item is None else stream.item
    items = np.asarray(given, np.int64)
    where = f"the stream for the task {stream.task!r}"
    if not np.all(np.isfinite(times)) or np.any(times < 0):
        raise DriveError(f"{where} has a time that is negative or not finite")
    if len(items) != len(times):
        raise DriveError(f"{where} has {len(times)} times but {len(items)} items: one each, please")
    if len(items) and (items.min() < 0 or items.max() >= count):
        raise DriveError(f"{where} names an item outside its {count} inputs")
    if stream.labels is not None and len(np.asarray(stream.labels)) != count:
        raise DriveError(f"{where} has {count} inputs but {len(np.asarray(stream.labels))} labels")
    return times, items
