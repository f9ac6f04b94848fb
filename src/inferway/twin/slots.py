"""The network twin: slot by slot, requests come, are served, and the policy moves models.

An allocation holds for a whole slot. Its requests are served as `inferway.placement.serving` says,
the gain is what this costs less than repositories alone, and the policy learns what was requested
and who served it before the next slot begins (paper 000, Sec. III-D to III-F).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.network.deployed import deployed
from inferway.placement.arrays import Allocation, Index
from inferway.placement.bound import PSI, regret_constant
from inferway.placement.contract import Observation, Policy
from inferway.placement.exact import best_static
from inferway.placement.gain import minimal
from inferway.placement.serving import serve
from inferway.placement.table import HINDSIGHT, build_policy
from inferway.twin.network_result import Float, NetworkResult, PartResult, Regret

if TYPE_CHECKING:
    from inferway.deployment import Deployment

__all__ = ["expected_batches", "policy_of", "run_slots", "simulate_slots"]

DEFAULT_POLICY = "infida"


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
        Another policy than the file's, with its defaults and `options`.
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
    spec = deployment.placement
    name = policy_of(deployment, policy)
    if spec is not None and spec.policy == name:
        written = {k: v for k, v in spec.options.items() if v is not None and k != "slot"}
        options = {**written, **options}
    batches = expected_batches(demand, slots) if name in HINDSIGHT else None
    built = build_policy(name, network, seed=chosen, batches=batches, **options)
    result = run_slots(network, demand, built, slots=slots, name=name, stop=stop, progress=progress)
    if not regret or result.slots < slots:
        return result
    return replace(result, regret=regret_of(network, demand, result))


def policy_of(deployment: Deployment, policy: str | None = None) -> str:
    """Name the placement policy that runs: the one asked for, the file's, or INFIDA."""
    written = None if deployment.placement is None else deployment.placement.policy
    return policy or written or DEFAULT_POLICY


def expected_batches(demand: Demand, slots: int) -> Float:
    """(T, R) mean requests of each type and slot: what policies in hindsight are given.

    The counts themselves differ in every slot by chance; their means repeat, and repeated slots are
    evaluated once.
    """
    return np.array([demand.expected(slot) for slot in range(slots)])


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
        self._fetched = np.zeros(len(pairs.node), np.int32)
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
        spent = self._spent(load)
        self._saved += spent
        self._gain[slot] = spent.sum()

    def moved(self, slot: int, before: Allocation, now: Allocation) -> None:
        """Take in what was fetched for a slot, and what is there in it."""
        pairs = self._network.pairs
        came = (now > before) & (pairs.pinned == 0)
        self._moved[slot] = pairs.size[came].sum()
        self._fetched += came
        self._present += now

    def served(self, slot: int, load: Float) -> None:
        """Take in who served a slot's requests."""
        spent = self._spent(load)
        self._saved -= spent
        self._gain[slot] -= spent.sum()
        self._served += load

    def _spent(self, load: Float) -> Float:
        options = self._network.options
        return np.asarray(np.add.reduceat(options.cost * load, options.first[:-1]))

    def result(self, name: str, policy: Policy) -> NetworkResult:
        """Sum up."""
        network, slots = self._network, self._slots
        busy = self._count > 0
        latency, inaccuracy = self._mean(network.latency_s), self._mean(network.inaccuracy)
        return NetworkResult(
            policy=name,
            slots=slots,
            slot_s=network.slot_s,
            ntag_ms=float((self._gain[busy] / self._count[busy]).sum() / slots),
            mu_bytes_per_slot=float(self._moved.sum() / slots),
            latency_s=latency,
            inaccuracy=inaccuracy,
            cpu_s_per_slot=float(self.cpu[1:].mean() if slots > 1 else self.cpu[0]),
            tiers=self._tiers(),
            tasks=self._tasks(),
            requests=self._count,
            gain=self._gain,
            moved=self._moved,
            network=network,
            served=self._served,
            presence=self._present / slots,
            fractional=None if policy.fractional is None else policy.fractional.copy(),
        )

    def _mean(self, of_option: Float) -> float:
        total = float(self._served.sum())
        return float(of_option @ self._served) / total if total else np.nan

    def _parts(
        self, of_option: Index, of_pair: Index, count: int
    ) -> tuple[Float, list[dict[str, float]]]:
        """Sum up by part, given each option's and each pair's; first the requests served."""
        network = self._network
        number: Float = np.bincount(of_option, self._served, count).astype(np.float64)
        with np.errstate(invalid="ignore"):  # parts that served nothing have no mean
            share = number / number.sum()
            latency = np.bincount(of_option, self._served * network.latency_s, count) / number
            inaccuracy = np.bincount(of_option, self._served * network.inaccuracy, count) / number
        fetched = np.bincount(of_pair, self._fetched * network.pairs.size, count) / self._slots
        names = ("share", "latency_s", "inaccuracy", "mu_bytes_per_slot")
        rows = np.column_stack([share, latency, inaccuracy, fetched]).tolist()
        return number, [dict(zip(names, row, strict=True)) for row in rows]

    def _tasks(self) -> dict[str, PartResult]:
        network = self._network
        options, names = network.options, network.tasks
        types = network.requests.task
        task = np.repeat(types, np.diff(options.first))
        of_pair = network.models.task[network.pairs.model]
        number, parts = self._parts(task, of_pair, len(names))
        saved = np.bincount(types, self._saved, len(names))
        with np.errstate(invalid="ignore"):
            ntag = (saved / number).tolist()
        return {
            name: PartResult(**part, ntag_ms=gain, used=None)
            for name, part, gain in zip(names, parts, ntag, strict=True)
        }

    def _tiers(self) -> dict[str, PartResult]:
        network = self._network
        pairs, tier = network.pairs, network.tier
        _, parts = self._parts(tier[network.options.node], tier[pairs.node], len(network.tiers))
        taken = np.bincount(pairs.node, self._present * pairs.size, len(network.nodes))
        limited = np.isfinite(network.budget) & (network.budget > 0) & ~network.repository
        found = {}
        for k, (name, part) in enumerate(zip(network.tiers, parts, strict=True)):
            own = limited & (tier == k)
            used = (taken[own] / network.budget[own]).mean() / self._slots if own.any() else None
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
