"""A network's record in a few numbers: by task, by entry node, by who answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.measured import MeasuredGain, measured_ntag, profile_accuracy
from inferway.loadgen.network_record import NetworkRecord
from inferway.loadgen.summary import Summary, summary

if TYPE_CHECKING:
    from inferway.deployment import Deployment

UNNAMED = "not named"
"""Stands for the node of answers that do not say where they come from."""


@dataclass(frozen=True)
class NetworkSummary:
    """What a network's requests met.

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
        return replace(summary(record.only(rows)), profile_accuracy=mean)

    asked, entered = np.unique(record.kind).tolist(), np.unique(record.entry).tolist()
    hops = record.hops[record.answered]
    number, counts = np.unique(hops[hops >= 0], return_counts=True)
    return NetworkSummary(
        whole=of(np.ones(len(record), np.bool_)),
        tasks={record.kinds[k]: of(record.kind == k) for k in asked},
        entries={record.nodes[k]: of(record.entry == k) for k in entered},
        served=_served(record),
        hops=dict(zip(number.tolist(), counts.tolist(), strict=True)),
        degraded=_degraded(record),
        gain=measured_ntag(record, deployment),
    )


def _served(record: NetworkRecord) -> dict[str, dict[str, float]]:
    rows = record.answered
    columns = (record.node[rows], record.kind[rows], record.variant[rows])
    unique, counts = np.unique(np.column_stack(columns), axis=0, return_counts=True)
    found: dict[str, dict[str, float]] = {}
    for (node, kind, variant), count in zip(unique.tolist(), counts.tolist(), strict=True):
        name = record.nodes[node] if node >= 0 else UNNAMED
        here = found.setdefault(name, {})
        here[f"{record.kinds[kind]}/{record.variants[variant]}"] = count / int(rows.sum())
    return found


def _degraded(record: NetworkRecord) -> dict[str, int]:
    rows = record.answered & (record.degraded >= 0)
    counts = np.bincount(record.degraded[rows], minlength=len(record.degradations))
    found: Mapping[str, int] = dict(zip(record.degradations, counts.tolist(), strict=True))
    return {sentence: count for sentence, count in found.items() if count}
