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
from inferway.placement.contract import Allocation, Observation, Policy
from inferway.placement.exact import best_static
from inferway.placement.gain import minimal
from inferway.placement.infida import PSI, regret_constant
from inferway.placement.serving import serve, spent, tally
from inferway.placement.table import build_policy, expected_batches, policy_of
from inferway.placement.written import WRITTEN, Written
from inferway.twin.result import Float, NetworkResult, PartResult, Regret

if TYPE_CHECKING:
    from inferway.deployment import Deployment


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

    Parameters
    ----------
    deployment
        A file with `network` and `workload`, from `inferway.load`.
    slots
        How many slots.
    seed
        Of the requests and of what the policy draws; the file's if not given. The network stays
        what the file's own seed makes it.
    policy
        Another policy than the file's, with its defaults and `options`; ``written`` is what the
        file lists under `instances`.
    regret
        Compare with the best static allocation (a mixed-integer program, up to a minute).
    stop
        Ends it after the slot that runs once it is set.
    progress
        Called with the number of slots done.
    options
        The policy's own, over those of the file.

    Raises
    ------
    DeploymentError
        Where the file has no network, or one that cannot be used.
    ValueError
        For a number of slots that is not positive, an unknown policy or option.
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
) -> tuple[str, Policy]:
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
    policy: Policy,
    *,
    slots: int,
    name: str = "",
    stop: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
) -> NetworkResult:
    """Run a policy; see `simulate_slots` and `NetworkResult`.

    Raises
    ------
    KeyboardInterrupt
        Where `stop` was set before the first slot.
    """
    ledger = _Ledger(network, slots)
    least = minimal(network).astype(np.uint8)
    load = np.empty(len(network.options.pair))
    before = policy.allocation.copy()
    for slot in range(slots):
        if stop is not None and stop.is_set():
            ledger.end(slot)
            break
        requests = demand.counts(slot).astype(np.float64)
        ledger.alone(slot, requests, serve(network, requests, least, out=load))
        ledger.moved(slot, before, policy.allocation)
        ledger.served(slot, serve(network, requests, policy.allocation, out=load))
        before[:] = policy.allocation
        start = time.thread_time()
        policy.step(Observation(requests, load))
        ledger.cpu[slot] = time.thread_time() - start
        if progress is not None:
            progress(slot + 1)
    return ledger.result(name, policy)


class _Ledger:
    """What a run adds up."""

    def __init__(self, network: DeliveryNetwork, slots: int) -> None:
        self._network = network
        self._slots = slots
        options, pairs = network.options, network.pairs
        self._served: Float = np.zeros(len(options.pair))
        self._saved: Float = np.zeros(len(options.first) - 1)  # gain of each type
        self._present = np.zeros(len(pairs.node), np.int32)
        self._used: Float = np.zeros(len(network.nodes))  # bytes, summed over slots
        self._fetched_by_tier: Float = np.zeros(len(network.tiers))
        self._fetched_by_task: Float = np.zeros(len(network.tasks))
        self._gain: Float = np.zeros(slots)
        self._count: Float = np.zeros(slots)
        self._moved: Float = np.zeros(slots)
        self.cpu: Float = np.zeros(slots)

    def end(self, slots: int) -> None:
        """End after so many slots; KeyboardInterrupt where there was none."""
        if not slots:
            raise KeyboardInterrupt
        self._slots = slots
        self._gain, self._count = self._gain[:slots], self._count[:slots]
        self._moved, self.cpu = self._moved[:slots], self.cpu[:slots]

    def alone(self, slot: int, requests: Float, load: Float) -> None:
        """Take in a slot's requests, and who would serve them without placement."""
        self._count[slot] = requests.sum()
        cost = spent(self._network, load)
        self._saved += cost
        self._gain[slot] = cost.sum()

    def moved(self, slot: int, before: Allocation, now: Allocation) -> None:
        """Take in what was fetched for a slot, and what is there in it."""
        network, pairs = self._network, self._network.pairs
        came = np.flatnonzero((now > before) & (pairs.pinned == 0))
        size = pairs.size[came]
        self._moved[slot] = size.sum()
        tier, task = network.tier[pairs.node[came]], network.models.task[pairs.model[came]]
        self._fetched_by_tier += np.bincount(tier, size, len(network.tiers))
        self._fetched_by_task += np.bincount(task, size, len(network.tasks))
        here = np.flatnonzero(now)
        self._used += np.bincount(pairs.node[here], pairs.size[here], len(network.nodes))
        self._present += now

    def served(self, slot: int, load: Float) -> None:
        """Take in who served a slot's requests."""
        cost = spent(self._network, load)
        self._saved -= cost
        self._gain[slot] -= cost.sum()
        self._served += load

    def result(self, name: str, policy: Policy) -> NetworkResult:
        """Sum up."""
        network, slots = self._network, self._slots
        busy = self._count > 0
        by_tier, by_task = tally(network, self._served)
        whole = by_tier.sum(axis=0)
        requests = float(whole[0]) or np.nan
        return NetworkResult(
            policy=name,
            slots=slots,
            slot_s=network.slot_s,
            ntag_ms=float((self._gain[busy] / self._count[busy]).sum() / slots),
            mu_bytes_per_slot=float(self._moved.sum() / slots),
            latency_s=float(whole[1]) / requests,
            inaccuracy=float(whole[2]) / requests,
            cpu_s_per_slot=float(self.cpu[1:].mean() if slots > 1 else self.cpu[0]),
            tiers=self._tiers(by_tier),
            tasks=self._tasks(by_task),
            requests=self._count,
            gain=self._gain,
            moved=self._moved,
            network=network,
            served=self._served,
            presence=self._present / slots,
            fractional=policy.fractional,
        )

    def _parts(self, sums: Float, fetched: Float) -> list[dict[str, float]]:
        """Means of each part from its sums."""
        with np.errstate(invalid="ignore"):  # parts that served nothing have no mean
            share = sums[:, 0] / sums[:, 0].sum()
            means = sums[:, 1:] / sums[:, :1]
        names = ("share", "latency_s", "inaccuracy", "mu_bytes_per_slot")
        rows = np.column_stack([share, means, fetched / self._slots]).tolist()
        return [dict(zip(names, row, strict=True)) for row in rows]

    def _tasks(self, sums: Float) -> dict[str, PartResult]:
        network = self._network
        parts = self._parts(sums, self._fetched_by_task)
        saved = np.bincount(network.requests.task, self._saved, len(sums))
        with np.errstate(invalid="ignore"):
            ntag = (saved / sums[:, 0]).tolist()
        return {
            name: PartResult(**part, ntag_ms=gain, used=None)
            for name, part, gain in zip(network.tasks, parts, ntag, strict=True)
        }

    def _tiers(self, sums: Float) -> dict[str, PartResult]:
        network = self._network
        parts = self._parts(sums, self._fetched_by_tier)
        limited = np.isfinite(network.budget) & (network.budget > 0) & ~network.repository
        found = {}
        for k, (name, part) in enumerate(zip(network.tiers, parts, strict=True)):
            own = limited & (network.tier == k)
            used = (
                (self._used[own] / network.budget[own]).mean() / self._slots if own.any() else None
            )
            found[name or "network"] = PartResult(
                **part, ntag_ms=None, used=None if used is None else float(used)
            )
        return found


def regret_of(
    network: DeliveryNetwork, demand: Demand, result: NetworkResult, *, time_limit_s: float = 60.0
) -> Regret:
    """Compare a run with the best static allocation for the mean requests, served as the run was.

    Raises
    ------
    RuntimeError
        Where the solver finds no allocation within the time.
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
