"""Record of a network's requests and answers, one row per request."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.record import Record, Summary, named, summary

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.network import DeliveryNetwork

Float = NDArray[np.float64]
Count = NDArray[np.int64]

UNNAMED: Final = "not named"
"""Stands for the node of answers that do not say where they come from."""


@dataclass(frozen=True, kw_only=True)
class NetworkRecord(Record):
    """A network's requests in the order of their intended times; see `Record`.

    `task` of the record itself is the file's kind of task, empty where there are several.

    Attributes
    ----------
    slot_s
        Length of a slot, seconds.
    kinds
        The file's tasks, whether counted or not.
    kind
        Index of the request's, in `kinds`.
    tasks
        All tasks, as they are served: digits-0, digits-1, ...
    asked
        Index of the request's, in `tasks`.
    type
        Its request type, as an index of `inferway.network.Requests`.
    nodes
        Names of the network's nodes, and of others that answers named.
    entry
        Index of the node where the request entered.
    node
        Index of the node that answered; -1 where no answer said it.
    paths
        Paths that answers named, the entry first, as ``edge-1,metro,cloud``.
    path
        Index of the answer's; -1 where it named none.
    degradations
        Sentences with which answers said that they are degraded.
    degraded
        Index of the answer's; -1 where it is not degraded.
    began_s
        When the times of the record began, seconds since 1970.
    """

    slot_s: float
    kinds: tuple[str, ...]
    kind: NDArray[np.int32]
    tasks: tuple[str, ...]
    asked: NDArray[np.int32]
    type: NDArray[np.int32]
    nodes: tuple[str, ...]
    entry: NDArray[np.int32]
    node: NDArray[np.int32]
    paths: tuple[str, ...]
    path: NDArray[np.int32]
    degradations: tuple[str, ...]
    degraded: NDArray[np.int32]
    began_s: float = math.nan

    @property
    def slot(self) -> NDArray[np.int64]:
        """The slot in which each request was due, from 0."""
        return np.asarray(np.floor(self.intended_s / self.slot_s).astype(np.int64))

    @property
    def hops(self) -> NDArray[np.int16]:
        """Links between the entry and the node that answered; -1 where no path was named."""
        counts = np.array([*(one.count(",") for one in self.paths), -1], np.int16)
        return np.asarray(counts[self.path])

    def to_frame(self) -> dict[str, NDArray[Any]]:
        """Return the columns by name, as `Record.to_frame` does; nodes and paths as names."""
        columns = super().to_frame()
        del columns["asked"], columns["kind"]
        return columns | {
            "kind": named(self.kinds, self.kind),
            "task": named(self.tasks, self.asked),
            "entry": named(self.nodes, self.entry),
            "node": named(self.nodes, self.node),
            "path": named(self.paths, self.path),
            "hops": self.hops,
            "degraded": named(self.degradations, self.degraded),
            "slot": self.slot,
        }


@dataclass(frozen=True, eq=False)
class MeasuredGain:
    """Reduction of the requests' cost below that of repositories alone.

    Attributes
    ----------
    ntag_ms
        Time-averaged gain per request ([SiSalem23], eq. 23), in the unit of the cost: the mean over
        slots of the mean over a slot's answered requests; NaN without answers.
    slot_s
        Length of a slot, seconds.
    first_slot
        Number of the slot that the series begin with.
    offered, answered, rejected, failed
        (T,) requests of each slot: due, answered, refused by a server, and the rest. Only the
        answered ones have a gain.
    unknown
        Answered requests whose variant the file does not have; they are in no mean.
    gain_ms, latency_s, inaccuracy
        (T,) means over the answered requests of each slot; NaN without any. Inaccuracy is that of
        the variants' profiles, 0..1.
    """

    ntag_ms: float
    slot_s: float
    first_slot: int
    offered: Count
    answered: Count
    rejected: Count
    failed: Count
    unknown: int
    gain_ms: Float
    latency_s: Float
    inaccuracy: Float

    @property
    def time_s(self) -> Float:
        """(T,) when each slot begins."""
        return np.asarray((self.first_slot + np.arange(len(self.offered))) * self.slot_s)

    def to_json(self) -> dict[str, Any]:
        """The series, for JSON."""
        series = (
            "offered", "answered", "rejected", "failed", "gain_ms", "latency_s", "inaccuracy",
        )  # fmt: skip
        return {"first_slot": self.first_slot} | {
            name: getattr(self, name).tolist() for name in series
        }


def measured_ntag(record: NetworkRecord, deployment: Deployment) -> MeasuredGain:
    """Put a record into the network twin's terms.

    A request's cost is eq. 6 of [SiSalem23] with the latency as measured, from when it was due
    to its answer, and the accuracy that the answering variant has by its profile. Its gain is what
    it costs less than requests of its type would in that slot if the repositories alone served all
    that was offered, as `inferway.placement.serving.serve` counts it for the minimal allocation: no
    queue, no time of the servers' own. Slots without a request count as 0, as in the twin.

    Departure: requests without an answer have no cost, so they are in no mean and stated apart.

    Parameters
    ----------
    record
        Of one run, or of a part of it; its slots are those from the first request to the last.
    deployment
        The file that was driven.

    Raises
    ------
    DeploymentError
        As `inferway.network.network_of`.
    """
    from inferway.network.layout import DEFAULT_ALPHA, network_of

    network = network_of(deployment)
    slot = record.slot
    first = int(slot.min()) if len(record) else 0
    slot = slot - first
    slots = int(slot.max()) + 1 if len(record) else 0
    accuracy = profile_accuracy(record, deployment)
    counted = record.answered & np.isfinite(accuracy)
    alpha = DEFAULT_ALPHA if deployment.cost is None else deployment.cost.alpha
    spent = 1000.0 * record.latency_s + alpha * 100.0 * (1.0 - accuracy)
    gain = _alone(network, record, slot, slots)[slot, record.type] - spent

    def by_slot(chosen: NDArray[np.bool_]) -> Count:
        return np.bincount(slot[chosen], minlength=slots)

    def mean(values: Float) -> Float:
        total = np.bincount(slot[counted], values[counted], slots)
        return np.asarray(total / np.where(number > 0, number, np.nan))

    number = by_slot(counted)
    gain_ms = mean(gain)
    offered = by_slot(np.ones(len(record), np.bool_))
    answered, rejected = by_slot(record.answered), by_slot(record.rejected)
    return MeasuredGain(
        ntag_ms=float(np.nansum(gain_ms) / slots) if number.any() else float("nan"),
        slot_s=record.slot_s,
        first_slot=first,
        offered=offered,
        answered=answered,
        rejected=rejected,
        failed=offered - answered - rejected,
        unknown=int(record.answered.sum() - counted.sum()),
        gain_ms=gain_ms,
        latency_s=mean(record.latency_s),
        inaccuracy=mean(1.0 - accuracy),
    )


def profile_accuracy(record: NetworkRecord, deployment: Deployment) -> Float:
    """(n,) accuracy of the answering variant by its profile; NaN where there is none."""
    table = np.full((len(record.kinds), len(record.variants) + 1), np.nan)
    for k, kind in enumerate(record.kinds):
        variants = deployment.tasks[kind].variants
        for v, name in enumerate(record.variants):
            if name in variants:
                table[k, v] = variants[name].accuracy
    return np.asarray(table[record.kind, record.variant])


def _alone(network: DeliveryNetwork, record: NetworkRecord, slot: Count, slots: int) -> Float:
    """(slots, R) mean cost of a request of each type if the repositories alone serve the slot."""
    from inferway.placement.objective import minimal
    from inferway.placement.serving import serve

    least = minimal(network).astype(np.uint8)
    options = network.options
    mean_cost = np.zeros((slots, len(network.requests.task)))
    for one, row in enumerate(mean_cost):
        requests = np.bincount(record.type[slot == one], minlength=len(row)).astype(np.float64)
        cost = options.cost * serve(network, requests, least)
        total = np.add.reduceat(cost, options.first[:-1])  # every type has an option
        row[:] = total / np.where(requests > 0, requests, 1.0)
    return mean_cost


@dataclass(frozen=True)
class NetworkSummary:
    """Summary of a network's requests.

    Attributes
    ----------
    whole
        All requests together.
    tasks, entries
        By the file's task, and by the node where requests entered; only those with requests.
    served
        Part of all answers that each variant gave at each node, in all 1; a variant is written
        TASK/VARIANT. Answers without a node's name are at `not named`.
    hops
        Number of answers by links between entry and answering node; without those that name no
        path.
    degraded
        Number of answers that said they are degraded, by sentence.
    gain
        By slot, in the network twin's terms.
    """

    whole: Summary
    tasks: dict[str, Summary]
    entries: dict[str, Summary]
    served: dict[str, dict[str, float]]
    hops: dict[int, int]
    degraded: dict[str, int]
    gain: MeasuredGain

    def to_json(self) -> dict[str, Any]:
        """The part of the document that is not by task."""
        gain, accuracy = self.gain, self.whole.profile_accuracy
        return {
            "ntag_ms": gain.ntag_ms,
            "latency_s": self.whole.mean_s,
            "inaccuracy": None if accuracy is None else 1.0 - accuracy,
            "slots": len(gain.offered),
            "slot_s": gain.slot_s,
            **self.whole.to_dict(),
            "unknown": gain.unknown,
            "entries": {name: one.to_dict() for name, one in self.entries.items()},
            "served": self.served,
            "hops": self.hops,
            "degraded": self.degraded,
            "series": gain.to_json(),
        }


def network_summary(record: NetworkRecord, deployment: Deployment) -> NetworkSummary:
    """Summarize a network's record.

    Raises
    ------
    DeploymentError
        As `measured_ntag`.
    """
    accuracy = profile_accuracy(record, deployment)

    def of(rows: NDArray[np.bool_]) -> Summary:
        known = accuracy[rows & record.answered]
        mean = float(known.mean()) if known.size and np.isfinite(known).all() else None
        return replace(summary(record.only(rows), interval=True), profile_accuracy=mean)

    answered = record.answered
    total = int(answered.sum())
    columns = (record.node[answered], record.kind[answered], record.variant[answered])
    unique, counts = np.unique(np.column_stack(columns), axis=0, return_counts=True)
    served: dict[str, dict[str, float]] = {}
    for (node, kind, variant), count in zip(unique.tolist(), counts.tolist(), strict=True):
        name = record.nodes[node] if node >= 0 else UNNAMED
        key = f"{record.kinds[kind]}/{record.variants[variant]}"
        served.setdefault(name, {})[key] = count / total
    hops = record.hops[answered]
    degraded = record.degraded[answered & (record.degraded >= 0)]
    sentences = np.bincount(degraded, minlength=len(record.degradations)).tolist()
    return NetworkSummary(
        whole=of(np.ones(len(record), np.bool_)),
        tasks={record.kinds[k]: of(record.kind == k) for k in np.unique(record.kind)},
        entries={record.nodes[k]: of(record.entry == k) for k in np.unique(record.entry)},
        served=served,
        hops=dict(sorted(Counter(hops[hops >= 0].tolist()).items())),
        degraded={
            sentence: count
            for sentence, count in zip(record.degradations, sentences, strict=True)
            if count
        },
        gain=measured_ntag(record, deployment),
    )
