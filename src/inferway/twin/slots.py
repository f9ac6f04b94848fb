"""The network twin: slot by slot, requests come, are served, and the policy moves models.

An allocation holds for a whole slot. Its requests are served as `inferway.placement.serving` says,
the gain is what this costs less than repositories alone, and the policy learns what was requested
and who served it before the next slot begins ([SiSalem23], Sec. III-D to III-F).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.network.layout import deployed
from inferway.placement.contract import (
    WRITTEN,
    Allocation,
    Float,
    Observation,
    PlacementPolicy,
    build_policy,
    expected_batches,
    policy_of,
)
from inferway.placement.exact import best_static
from inferway.placement.objective import minimal
from inferway.placement.regret import PSI, regret_bound
from inferway.placement.serving import serve, spent, tally
from inferway.placement.static import Written
from inferway.twin.result import NetworkResult, PartResult, Regret

if TYPE_CHECKING:
    from inferway.deployment import Deployment

Result = TypeVar("Result", bound=NetworkResult)


class SlotSums:
    """Sums over the slots of a network, by slot, by pair and by part."""

    def __init__(self, network: DeliveryNetwork, slots: int) -> None:
        self.network = network
        self.present: Float = np.zeros(
            len(network.pairs.node)
        )  # (P,) slots in which a pair was there
        # (R,) gain of each type, cost times requests.
        self.saved: Float = np.zeros(len(network.requests.task))
        # (T,) requests, bytes fetched, and CPU time of the policy's step, s.
        self.requests, self.moved, self.cpu = np.zeros((3, slots))
        self._used: Float = np.zeros(len(network.nodes))  # Bytes, summed over slots
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

    def result(
        self,
        form: type[Result],
        name: str,
        slots: int,
        *,
        parts: tuple[Float, Float, Float],
        gain: Float,
        **more: Any,
    ) -> Result:
        """Sum up the slots; `parts` are answers, seconds, inaccuracy by tier, by task, in all."""
        network, requests, moved = self.network, self.requests[:slots], self.moved[:slots]
        (by_tier, by_task, whole), busy = parts, requests > 0
        answered = float(whole[0]) or np.nan
        saved = np.bincount(network.requests.task, self.saved, len(network.tasks))
        with np.errstate(invalid="ignore"):
            ntag = (saved / by_task[:, 0]).tolist()
        used: list[float | None] = []
        for k in range(len(network.tiers)):
            own = network.limited & (network.tier == k)
            held = (self._used[own] / network.budget[own]).mean() / slots if own.any() else None
            used.append(None if held is None else float(held))
        tiers = [name or "network" for name in network.tiers]
        return form(
            policy=name,
            slots=slots,
            slot_s=network.slot_s,
            ntag_ms=float((gain[busy] / requests[busy]).sum() / slots),
            mu_bytes_per_slot=float(moved.sum() / slots),
            latency_s=float(whole[1]) / answered,
            inaccuracy=float(whole[2]) / answered,
            # Without the first, which loads compiled code.
            cpu_s_per_slot=float(self.cpu[1:slots].mean() if slots > 1 else self.cpu[0]),
            tiers=_parts(tiers, by_tier, self._fetched_by_tier / slots, "used", used),
            tasks=_parts(network.tasks, by_task, self._fetched_by_task / slots, "ntag_ms", ntag),
            requests=requests,
            gain=gain,
            moved=moved,
            network=network,
            presence=self.present / slots,
            **more,
        )


def _parts(
    names: Sequence[str], sums: Float, fetched: Float, more: str, values: list[Any]
) -> dict[str, PartResult]:
    """Means of each part from its sums, with one value that is told of such parts alone."""
    with np.errstate(invalid="ignore"):  # parts that served nothing have no mean
        share, means = sums[:, 0] / sums[:, 0].sum(), sums[:, 1:] / sums[:, :1]
    keys = ("share", "latency_s", "inaccuracy", "mu_bytes_per_slot", more)
    rows = zip(share.tolist(), *means.T.tolist(), fetched.tolist(), values, strict=True)
    return {
        name: PartResult(**dict(zip(keys, row, strict=True)))
        for name, row in zip(names, rows, strict=True)
    }


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
    the best static allocation (a mixed-integer program, up to a minute). Progress is called after
    each slot, with 1. DeploymentError where the
    file has no network, or one that cannot be used; ValueError for a number of slots that is not
    positive, an unknown policy or option.
    """
    if slots < 1:
        raise ValueError(f"the twin runs one slot or more, not {slots}")
    network, demand = deployed(deployment)
    demand = replace(demand, seed=deployment.seed if seed is None else seed)
    name, built = placement_of(
        deployment, network, demand, slots=slots, policy=policy, options=options
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
    policy: str | None,
    options: dict[str, Any],
) -> tuple[str, PlacementPolicy]:
    """Name and make the placement policy of a run; parameters and errors as `simulate_slots`."""
    name = policy_of(deployment, policy)
    if name == WRITTEN:
        return name, Written(deployment, network)
    options = placement_options(deployment, name, options)
    batches = expected_batches(demand, slots) if name in HINDSIGHT else None
    return name, build_policy(
        name, network, seed=demand.seed, batches=batches, folder=deployment.folder, **options
    )


def placement_options(deployment: Deployment, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Give a placement policy's options: the file's, where it names this policy, and these."""
    spec = deployment.placement
    if spec is None or spec.policy != name:
        return options
    written = {k: v for k, v in spec.options.items() if v is not None and k != "slot"}
    return {**written, **options}


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
    sums, least = SlotSums(network, slots), minimal(network).astype(np.uint8)
    gain: Float = np.zeros(slots)
    served, load = np.zeros((2, len(network.options.pair)))
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
            progress(1)
    by_tier, by_task = tally(network, served)
    return sums.result(
        NetworkResult,
        name,
        slots,
        parts=(by_tier, by_task, by_tier.sum(axis=0)),
        gain=gain[:slots],
        served=served,
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
        bound=regret_bound(network).constant * float(np.sqrt(result.slots)),
        gap=optimum.gap,
    )
