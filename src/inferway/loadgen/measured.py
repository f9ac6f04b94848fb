"""The gain of a network as it was measured, slot by slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from inferway.loadgen.network_record import NetworkRecord

if TYPE_CHECKING:
    from inferway.deployment import Deployment
    from inferway.network import DeliveryNetwork

Float = NDArray[np.float64]
Count = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class MeasuredGain:
    """What requests cost less than repositories alone would have let them cost.

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
        return {
            "first_slot": self.first_slot,
            "offered": self.offered.tolist(),
            "answered": self.answered.tolist(),
            "rejected": self.rejected.tolist(),
            "failed": self.failed.tolist(),
            "gain_ms": self.gain_ms.tolist(),
            "latency_s": self.latency_s.tolist(),
            "inaccuracy": self.inaccuracy.tolist(),
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
    from inferway.placement.gain import minimal
    from inferway.placement.serving import serve

    least = minimal(network).astype(np.uint8)
    types = len(network.requests.task)
    options = network.options
    found = np.zeros((slots, types))
    for one in range(slots):
        requests = np.bincount(record.type[slot == one], minlength=types).astype(np.float64)
        cost = options.cost * serve(network, requests, least)
        total = np.add.reduceat(cost, options.first[:-1])  # every type has an option
        found[one] = total / np.where(requests > 0, requests, 1.0)
    return found
