"""What both simulations of a network add up slot by slot: who served, what was fetched and held."""

from __future__ import annotations

from typing import Any

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float
from inferway.twin.result import PartResult


class SlotSums:
    """Sums over the slots of a network, by slot, by pair and by part."""

    def __init__(self, network: DeliveryNetwork, slots: int) -> None:
        self.network = network
        self.present: Float = np.zeros(len(network.pairs.node))
        """(P,) slots in which a pair was there."""
        self.saved: Float = np.zeros(len(network.requests.task))
        """(R,) gain of each type, cost times requests."""
        self.requests: Float = np.zeros(slots)
        self.moved: Float = np.zeros(slots)
        """(T,) bytes fetched."""
        self.cpu: Float = np.zeros(slots)
        """(T,) CPU time of the policy's step, s."""
        self._used: Float = np.zeros(len(network.nodes))  # bytes, summed over slots
        self._fetched_by_tier: Float = np.zeros(len(network.tiers))
        self._fetched_by_task: Float = np.zeros(len(network.tasks))

    def hold(self, allocation: Float | Allocation) -> None:
        """Take in what is there in a slot, (P,)."""
        pairs = self.network.pairs
        there = np.flatnonzero(allocation)
        self._used += np.bincount(pairs.node[there], pairs.size[there], len(self.network.nodes))
        self.present += allocation

    def fetch(self, slot: int, fetched: Any) -> None:
        """Take in which pairs were fetched for a slot, (p,)."""
        network, pairs = self.network, self.network.pairs
        size = pairs.size[fetched]
        self.moved[slot] += size.sum()
        tier, task = network.tier[pairs.node[fetched]], network.models.task[pairs.model[fetched]]
        self._fetched_by_tier += np.bincount(tier, size, len(network.tiers))
        self._fetched_by_task += np.bincount(task, size, len(network.tasks))

    def cpu_s_per_slot(self, slots: int) -> float:
        """The mean without the first, which loads compiled code."""
        return float(self.cpu[1:slots].mean() if slots > 1 else self.cpu[0])

    def tasks(self, sums: Float, slots: int) -> dict[str, PartResult]:
        """Results of tasks from (N, 3) answers, seconds and inaccuracy."""
        network = self.network
        parts = _means(sums, self._fetched_by_task, slots)
        saved = np.bincount(network.requests.task, self.saved, len(sums))
        with np.errstate(invalid="ignore"):
            ntag = (saved / sums[:, 0]).tolist()
        return {
            name: PartResult(**part, ntag_ms=gain, used=None)
            for name, part, gain in zip(network.tasks, parts, ntag, strict=True)
        }

    def tiers(self, sums: Float, slots: int) -> dict[str, PartResult]:
        """Results of tiers from (K, 3) answers, seconds and inaccuracy."""
        network = self.network
        parts = _means(sums, self._fetched_by_tier, slots)
        limited = np.isfinite(network.budget) & (network.budget > 0) & ~network.repository
        found = {}
        for k, (name, part) in enumerate(zip(network.tiers, parts, strict=True)):
            own = limited & (network.tier == k)
            held = (
                float((self._used[own] / network.budget[own]).mean() / slots) if own.any() else None
            )
            found[name or "network"] = PartResult(**part, ntag_ms=None, used=held)
        return found


def _means(sums: Float, fetched: Float, slots: int) -> list[dict[str, float]]:
    """Means of each part from its sums."""
    with np.errstate(invalid="ignore"):  # parts that served nothing have no mean
        share = sums[:, 0] / sums[:, 0].sum()
        means = sums[:, 1:] / sums[:, :1]
    names = ("share", "latency_s", "inaccuracy", "mu_bytes_per_slot")
    rows = np.column_stack([share, means, fetched / slots]).tolist()
    return [dict(zip(names, row, strict=True)) for row in rows]
