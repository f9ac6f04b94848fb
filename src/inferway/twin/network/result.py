"""Result of a run of the event twin of a network: the slot twin's numbers, and those of queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.twin.result import Float, NetworkResult, finite

if TYPE_CHECKING:
    import pandas as pd


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

    def to_json(self) -> dict[str, Any]:
        """By name, as `inferway simulate FILE --events --json` prints it."""
        return super().to_json() | {
            "events": True,
            "p50_s": finite(self.p50_s),
            "p95_s": finite(self.p95_s),
            "p99_s": finite(self.p99_s),
            "accuracy": finite(self.accuracy),
            "answered": self.answered,
            "lost": self.lost,
            "late": self.late,
            "retried": self.retried,
            "forwarded": finite(self.forwarded),
            "variants": self.variants,
            "letters": self.letters,
            "used_most": finite(self.used_most),
            "in_system": finite(self.in_system),
            "requests_per_cpu_s": finite(self.requests_per_cpu_s),
            "series": {
                "requests": self.requests.tolist(),
                "ntag_ms": [finite(one) for one in _each(self.gain, self.requests)],
                "latency_s": [finite(one) for one in self.latency_in],
                "lost": self.lost_in.tolist(),
                "moved_bytes": self.moved.tolist(),
            },
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per slot: requests, gain per request, bytes fetched, mean latency, lost."""
        frame = super().to_frame()
        frame["latency_s"] = self.latency_in
        frame["lost"] = self.lost_in
        return frame


def _each(total: Float, count: Float) -> Float:
    return np.asarray(total / np.where(count > 0, count, np.nan))
