"""One point of a placement study: a policy on a network for some slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.experiments.grid import grid
from inferway.experiments.runner import Point
from inferway.network import DeliveryNetwork, Demand
from inferway.placement import Policy, build_policy
from inferway.placement.table import expected_batches
from inferway.studies.placement.look import POLICIES
from inferway.studies.placement.setting import MODELS, Scenario, scenario
from inferway.twin.result import NetworkResult
from inferway.twin.slots import run_slots

CODE = ("site", "network", "placement", "workload", "catalog/paper.py", "twin/slots.py",
        "twin/result.py", "studies/placement/setting.py", "studies/placement/trial.py",
        "studies/placement/look.py")  # fmt: skip
"""What the rows depend on."""

_LATE = 4  # the last quarter of the slots counts as settled


def simulated(
    system: str,
    alpha: float,
    rate_per_s: float,
    sliding: bool,
    policy: str,
    slots: int,
    seed: int,
    copies: int = 3,
    options: Mapping[str, Any] | None = None,
    series: bool = False,
) -> dict[str, Any]:
    """Run a policy of `inferway.studies.placement.look` on one of the papers' networks.

    Returns
    -------
    dict
        See `summary`.
    """
    built = scenario(
        system, alpha=alpha, rate_per_s=rate_per_s, sliding=sliding, seed=seed, copies=copies
    )
    result, _ = run_policy(built.network, built.demand, policy, slots, seed, options)
    return summary(result, series=series)


def run_policy(
    network: DeliveryNetwork,
    demand: Demand,
    policy: str,
    slots: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> tuple[NetworkResult, Policy]:
    """Run a policy by its name in the studies; also what it has become."""
    look = POLICIES[policy]
    built = build_policy(
        look.policy,
        network,
        seed=seed,
        batches=expected_batches(demand, slots) if look.policy in HINDSIGHT else None,
        **{**look.options, **(options or {})},
    )
    return run_slots(network, demand, built, slots=slots, name=policy), built


def summary(result: NetworkResult, *, series: bool = False) -> dict[str, Any]:
    """A run as a row.

    ``late_ms`` is the gain per request in the last quarter, ``cost_ms`` the mean cost less that of
    accuracy and latency nowhere: the gain of repositories alone is 0. With `series`, ``gain`` and
    ``moved`` list every slot.
    """
    late = slice(-max(1, result.slots // _LATE), None)
    row: dict[str, Any] = {
        "ntag_ms": result.ntag_ms,
        "late_ms": float(result.gain[late].sum() / result.requests[late].sum()),
        "mu_mib": result.mu_bytes_per_slot / 2**20,
        "latency_ms": 1000 * result.latency_s,
        "inaccuracy": 100 * result.inaccuracy,
        "cpu_ms": 1000 * result.cpu_s_per_slot,
        **{f"served by {name}": part.share for name, part in result.tiers.items()},
    }
    if series:
        row["gain"] = (result.gain / result.requests).tolist()
        row["moved"] = (result.moved / 2**20).tolist()
    return row


def allocated(
    system: str, alpha: float, rate_per_s: float, slots: int, seed: int, copies: int
) -> dict[str, Any]:
    """INFIDA's fractional allocation of the most popular task's models, per tier (Fig. 5).

    Returns
    -------
    dict
        The numbers of `summary`; for each tier but the cloud ``y of TIER``, a list by model, least
        accurate first, the replicas of each beside each other: the mean over the nodes on the
        task's paths; and ``repository``, the variant that the cloud runs.
    """
    built = scenario(
        system, alpha=alpha, rate_per_s=rate_per_s, sliding=False, seed=seed, copies=copies
    )
    result, policy = run_policy(built.network, built.demand, "infida", slots, seed)
    return {**summary(result), **_popular(built, policy, copies)}


def _popular(built: Scenario, policy: Policy, copies: int) -> dict[str, Any]:
    network = built.network
    fractional = policy.fractional
    assert fractional is not None  # INFIDA has one
    spread: np.ndarray[Any, Any] = policy.state.spread  # type: ignore[attr-defined]
    options, pairs, models = network.options, network.pairs, network.models
    types = np.flatnonzero(network.requests.task == 0)
    first = network.paths.first
    nodes = np.unique(
        np.concatenate(
            [network.paths.node[first[q] : first[q + 1]] for q in network.requests.path[types]]
        )
    )
    ids = {
        (entry.name, copy): copies * rank + copy
        for rank, entry in enumerate(MODELS)
        for copy in range(copies)
    }
    row: dict[str, Any] = {}
    for k, tier in enumerate(network.tiers):
        here = nodes[(network.tier[nodes] == k) & ~network.repository[nodes]]
        if not here.size:
            continue
        y = np.repeat(spread[here][:, None], len(ids), axis=1)
        for place, node in enumerate(here):
            for p in range(pairs.first[node], pairs.first[node + 1]):
                model = pairs.model[p]
                if models.task[model] == 0:
                    name = network.variants[models.variant[model]]
                    y[place, ids[name, int(models.copy[model])]] = fractional[p]
        row[f"y of {tier}"] = y.mean(axis=0).tolist()
    last = options.model[options.first[types[0] + 1] - 1]
    return {**row, "repository": network.variants[models.variant[last]]}


def seconds(policy: str, slots: int) -> float:
    """About how long a point takes on one core."""
    look = POLICIES[policy]
    return look.seconds + slots * 0.0015


def every(settings: Any, arguments: Mapping[str, Any] | None = None, **axes: Any) -> list[Point]:
    """Points of `simulated`, labeled by what varies, for as many slots and trials as are set."""

    def cost(policy: str, **_: Any) -> float:
        return seconds(policy, settings.slots)

    of_all = {"slots": settings.slots, **(arguments or {})}
    return grid(simulated, of_all, cost, **axes, trial=range(settings.trials))
