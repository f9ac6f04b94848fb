"""The network twin: slot by slot, requests come, are served, and the policy moves models.

An allocation holds for a whole slot. Its requests are served as `inferway.placement.serving` says,
the gain is what this costs less than repositories alone, and the policy learns what was requested
and who served it before the next slot begins ([SiSalem23], Sec. III-D to III-F).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.network.layout import deployed
from inferway.placement.contract import Allocation, Float, Observation, PlacementPolicy
from inferway.placement.exact import best_static
from inferway.placement.infida import PSI, regret_constant
from inferway.placement.objective import minimal
from inferway.placement.serving import serve, spent, tally
from inferway.placement.table import WRITTEN, Written, build_policy, expected_batches, policy_of
from inferway.twin.result import NetworkResult, PartResult, Regret

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class SlotSums:
    """Sums over the slots of a network, by slot, by pair and by part."""

    def __init__(self, network: DeliveryNetwork, slots: int) -> None:
        self.network = network
        # (P,) slots in which a pair was there.
        self.present: Float = np.zeros(len(network.pairs.node))
        # (R,) gain of each type, cost times requests.
        self.saved: Float = np.zeros(len(network.requests.task))
        self.requests: Float = np.zeros(slots)
        self.moved: Float = np.zeros(slots)  # (T,) bytes fetched
        self.cpu: Float = np.zeros(slots)  # (T,) CPU time of the policy's step, s
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


def simulate_slots(
    deployment: Deployment,
    *,
    slots: int,
    seed: int | None = None,
    policy: str | None = None,
    regret: bool = False,
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> NetworkResult:
    """Run a deployment's placement policy on its network.

    The seed is that of the requests and of what the policy draws; the network stays what the file's
    own seed makes it. Another policy than the file's has its defaults and these options;
    ``written`` is what the file lists under `instances`. With `regret`, the run is compared with
    the best static allocation (a mixed-integer program, up to a minute). DeploymentError where the
    file has no network, or one that cannot be used; ValueError for a number of slots that is not
    positive, an unknown policy or option.
    """
    if slots < 1:
        raise ValueError(f"the twin runs one slot or more, not {slots}")
    network, demand = deployed(deployment)
    chosen = deployment.seed if seed is None else seed
    demand = replace(demand, seed=chosen)
    name, built = placement_of(
        deployment, network, demand, slots=slots, seed=chosen, policy=policy, options=options
    )
    result = run_slots(network, demand, built, slots=slots, name=name, stop=stop, progress=progress)
    if not regret or result.slots < slots:
        return result
    return replace(result, regret=regret_of(network, demand, result))


def placement_of(
    deployment: Deployment,
    network: DeliveryNetwork,
    demand: Demand,
    *,
    slots: int,
    seed: int,
    policy: str | None,
    options: dict[str, Any],
) -> tuple[str, PlacementPolicy]:
    """Name and make the placement policy of a run; parameters and errors as `simulate_slots`."""
    spec = deployment.placement
    name = policy_of(deployment, policy)
    if spec is not None and spec.policy == name:
        written = {k: v for k, v in spec.options.items() if v is not None and k != "slot"}
        options = {**written, **options}
    if name == WRITTEN:
        return name, Written(deployment, network)
    batches = expected_batches(demand, slots) if name in HINDSIGHT else None
    return name, build_policy(
        name, network, seed=seed, batches=batches, folder=deployment.folder, **options
    )


def run_slots(
    network: DeliveryNetwork,
    demand: Demand,
    policy: PlacementPolicy,
    *,
    slots: int,
    name: str = "",
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> NetworkResult:
    """Run a policy; see `simulate_slots` and `NetworkResult`.

    KeyboardInterrupt where `stop` was set before the first slot.
    """
    sums = SlotSums(network, slots)
    gain: Float = np.zeros(slots)
    served: Float = np.zeros(len(network.options.pair))
    least = minimal(network).astype(np.uint8)
    load = np.empty(len(network.options.pair))
    before = policy.allocation.copy()
    for slot in range(slots):
        if stop is not None and stop.is_set():
            if not slot:
                raise KeyboardInterrupt
            slots = slot
            break
        requests = demand.counts(slot).astype(np.float64)
        sums.requests[slot] = requests.sum()
        alone = spent(network, serve(network, requests, least, out=load))
        sums.fetch(slot, np.flatnonzero((policy.allocation > before) & (network.pairs.pinned == 0)))
        sums.hold(policy.allocation)
        cost = spent(network, serve(network, requests, policy.allocation, out=load))
        sums.saved += alone
        sums.saved -= cost
        gain[slot] = alone.sum() - cost.sum()
        served += load
        before[:] = policy.allocation
        start = time.thread_time()
        policy.step(Observation(requests, load))
        sums.cpu[slot] = time.thread_time() - start
        if progress is not None:
            progress(slot + 1)
    gain, count, moved = gain[:slots], sums.requests[:slots], sums.moved[:slots]
    busy = count > 0
    by_tier, by_task = tally(network, served)
    whole = by_tier.sum(axis=0)
    answered = float(whole[0]) or np.nan
    return NetworkResult(
        policy=name,
        slots=slots,
        slot_s=network.slot_s,
        ntag_ms=float((gain[busy] / count[busy]).sum() / slots),
        mu_bytes_per_slot=float(moved.sum() / slots),
        latency_s=float(whole[1]) / answered,
        inaccuracy=float(whole[2]) / answered,
        cpu_s_per_slot=sums.cpu_s_per_slot(slots),
        tiers=sums.tiers(by_tier, slots),
        tasks=sums.tasks(by_task, slots),
        requests=count,
        gain=gain,
        moved=moved,
        network=network,
        served=served,
        presence=sums.present / slots,
        fractional=policy.fractional,
    )


def regret_of(
    network: DeliveryNetwork, demand: Demand, result: NetworkResult, *, time_limit_s: float = 60.0
) -> Regret:
    """Compare a run with the best static allocation for the mean requests, served as the run was.

    RuntimeError where the solver finds no allocation within the time.
    """
    optimum = best_static(
        network, expected_batches(demand, result.slots), time_limit_s=time_limit_s
    )
    least = minimal(network).astype(np.uint8)
    best = np.zeros(result.slots)
    for slot in range(result.slots):
        requests = demand.counts(slot).astype(np.float64)
        saved = serve(network, requests, least) - serve(network, requests, optimum.allocation)
        best[slot] = network.options.cost @ saved
    total, own = float(best.sum()), float(result.gain.sum())
    return Regret(
        best=best,
        discounted=PSI * total - own,
        plain=total - own,
        bound=regret_constant(network) * float(np.sqrt(result.slots)),
        gap=optimum.gap,
    )
