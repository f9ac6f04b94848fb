"""The network twin: slot by slot, requests come, are served, and the policy moves models.

An allocation holds for a whole slot. Its requests are served as `inferway.placement.serving` says,
the gain is what this costs less than repositories alone, and the policy learns what was requested
and who served it before the next slot begins (paper 000, Sec. III-D to III-F).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.demand import Demand
from inferway.network.deployed import deployed
from inferway.placement.bound import PSI, regret_constant
from inferway.placement.contract import Observation, Policy
from inferway.placement.exact import best_static
from inferway.placement.gain import minimal
from inferway.placement.serving import serve
from inferway.placement.table import HINDSIGHT, build_policy
from inferway.twin.network_result import Float, NetworkResult, PartResult, Regret

if TYPE_CHECKING:
    from inferway.deployment import Deployment

__all__ = ["expected_batches", "run_slots", "simulate_slots"]

DEFAULT_POLICY = "infida"


def simulate_slots(
    deployment: Deployment,
    *,
    slots: int,
    seed: int | None = None,
    policy: str | None = None,
    regret: bool = False,
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
    name = policy or (spec.policy if spec is not None else DEFAULT_POLICY)
    if spec is not None and spec.policy == name:
        written = {k: v for k, v in spec.options.items() if v is not None and k != "slot"}
        options = {**written, **options}
    batches = expected_batches(demand, slots) if name in HINDSIGHT else None
    built = build_policy(name, network, seed=chosen, batches=batches, **options)
    result = run_slots(network, demand, built, slots=slots, name=name, progress=progress)
    return replace(result, regret=regret_of(network, demand, result)) if regret else result


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
    progress: Callable[[int], None] | None = None,
) -> NetworkResult:
    """Run a policy; see `simulate_slots` and `NetworkResult`."""
    options, pairs = network.options, network.pairs
    least = minimal(network).astype(np.uint8)
    decided = pairs.pinned == 0
    served, anyway = np.zeros(len(options.pair)), np.zeros(len(options.pair))
    present = np.zeros(len(pairs.node))
    fetched = np.zeros(len(pairs.node))
    gain, count, moved = np.zeros(slots), np.zeros(slots), np.zeros(slots)
    cpu = np.zeros(slots)
    before = policy.allocation.copy()
    for slot in range(slots):
        requests = demand.counts(slot).astype(np.float64)
        allocation = policy.allocation
        came = (allocation > before) & decided
        load, alone = serve(network, requests, allocation), serve(network, requests, least)
        gain[slot] = options.cost @ (alone - load)
        count[slot] = requests.sum()
        moved[slot] = pairs.size[came].sum()
        served += load
        anyway += alone
        present += allocation
        fetched += came
        before = allocation.copy()
        start = time.thread_time()
        policy.step(Observation(requests, load))
        cpu[slot] = time.thread_time() - start
        if progress is not None:
            progress(slot + 1)
    latency, inaccuracy = network.latency_s, network.inaccuracy
    busy = count > 0
    total = float(served.sum())
    per_slot = fetched * pairs.size / slots

    def part(of_option: np.ndarray[Any, Any], of_pair: np.ndarray[Any, Any]) -> dict[str, Any]:
        answered = served * of_option
        number = float(answered.sum())
        return {
            "share": number / total if total else np.nan,
            "latency_s": float(latency @ answered) / number if number else np.nan,
            "inaccuracy": float(inaccuracy @ answered) / number if number else np.nan,
            "mu_bytes_per_slot": float(per_slot @ of_pair),
        }

    task_of = np.repeat(network.requests.task, np.diff(options.first))
    tasks = {}
    for task, task_name in enumerate(network.tasks):
        mine = task_of == task
        saved = float((options.cost * mine) @ (anyway - served))
        asked = float(served @ mine)
        its_pairs = network.models.task[pairs.model] == task
        tasks[task_name] = PartResult(
            **part(mine, its_pairs), ntag_ms=saved / asked if asked else np.nan, used=None
        )
    tiers = {}
    taken = np.bincount(
        pairs.node, weights=present * pairs.size / slots, minlength=len(network.nodes)
    )
    for tier, tier_name in enumerate(network.tiers):
        nodes = network.tier == tier
        limited = nodes & np.isfinite(network.budget) & (network.budget > 0) & ~network.repository
        used = float((taken[limited] / network.budget[limited]).mean()) if limited.any() else None
        found = part(nodes[options.node], nodes[pairs.node])
        tiers[tier_name or "network"] = PartResult(**found, ntag_ms=None, used=used)
    whole = part(np.ones(len(served)), np.ones(len(fetched)))
    return NetworkResult(
        policy=name,
        slots=slots,
        slot_s=network.slot_s,
        ntag_ms=float((gain[busy] / count[busy]).sum() / slots),
        mu_bytes_per_slot=whole["mu_bytes_per_slot"],
        latency_s=whole["latency_s"],
        inaccuracy=whole["inaccuracy"],
        cpu_s_per_slot=float(cpu[1:].mean() if slots > 1 else cpu[0]),
        tiers=tiers,
        tasks=tasks,
        requests=count,
        gain=gain,
        moved=moved,
        presence=present / slots,
        fractional=None if policy.fractional is None else policy.fractional.copy(),
    )


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
