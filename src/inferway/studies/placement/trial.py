"""One point of a placement study: a policy on a network for some slots, and how it is drawn.

The papers do not give INFIDA's learning rate: it tunes itself here, in all studies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.experiments.curves import Curve, Look, line
from inferway.network import DeliveryNetwork, Demand
from inferway.placement import PlacementPolicy, build_policy
from inferway.placement.table import expected_batches
from inferway.studies import Point, Results, grid
from inferway.studies.placement.setting import MODELS, Scenario, scenario
from inferway.twin.result import NetworkResult
from inferway.twin.slots import run_slots

CODE = ("site", "network", "placement", "workload", "catalog/published.py", "twin/slots.py",
        "twin/result.py", "studies/placement/setting.py",
        "studies/placement/trial.py")  # fmt: skip
"""What the rows depend on."""
TUNED = "The learning rate, which the paper does not give, tunes itself."
"""A departure of most studies."""


class PaperPolicy(NamedTuple):
    """A policy in a study: one reading of the papers."""

    look: Look
    policy: str
    """Its name in `inferway.placement.POLICIES`."""
    options: Mapping[str, Any] = {}
    """What differs from its defaults."""
    seconds: float = 0.2
    """About how long it takes to decide in hindsight."""

    @property
    def label(self) -> str:
        """In legends and claims."""
        return self.look.label


POLICIES: Mapping[str, PaperPolicy] = {
    "infida": PaperPolicy(Look("INFIDA", 0, "-"), "infida", {"rounding": "fresh"}),
    "infida-coupled": PaperPolicy(Look("INFIDA, coupled (ours)", 6, "--"), "infida"),
    "infida-offline": PaperPolicy(Look("INFIDA-offline", 2, "-."), "infida-offline", seconds=2.0),
    "static-greedy": PaperPolicy(Look("static greedy", 1, "-."), "static-greedy", seconds=3.0),
    "static-greedy-served": PaperPolicy(
        Look("static greedy, until served", 4, "-."),
        "static-greedy",
        {"stop": "all-served"},
        seconds=2.0,
    ),
    "olag": PaperPolicy(Look("OLAG", 3, "--"), "olag"),
    "olag-literal": PaperPolicy(Look("OLAG (literal)", 3, ":"), "olag-literal"),
    "greedy": PaperPolicy(Look("greedy (forwarded)", 5, ":"), "greedy"),
    "exact": PaperPolicy(Look("MILP", -1, "-"), "exact", {"time_limit_s": 60.0}, seconds=10.0),
}
"""By name. ``static-greedy`` ends where nothing gains, ``static-greedy-served`` once no request
reaches the cloud. ``olag`` is the strong reading; in ``olag-literal`` replicas of the chosen model
keep their counters, as the text's letter says, and ``greedy`` counts what a node forwards."""


def curves(results: Results, policies: Sequence[str], column: str, **axis: Any) -> list[Curve]:
    """One curve per policy: means over trials, and twice their errors where there are several."""
    drawn = []
    for policy in policies:
        curve = line(results.where(policy=policy), column, POLICIES[policy].look, **axis)
        known = any(map(math.isfinite, curve.error))
        drawn.append(curve if known else replace(curve, error=()))
    return drawn


def course(look: Look, y: Sequence[float], slots: int) -> Curve:
    """A dense curve of equal parts of a run, against the middle of each."""
    x = (np.arange(len(y)) + 0.5) * slots / len(y)
    return Curve(look.label, x.tolist(), list(y), (), (), look.color, look.dash, markers=False)


def mean_series(results: Results, column: str, **label: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """Mean over the trials of a column of lists, entry by entry; one NaN without rows."""
    rows = [row[column] for row in results.where(**label).rows]
    return np.asarray(np.mean(rows, axis=0)) if rows else np.array([np.nan])


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
    """Run a policy of `POLICIES` on one of the papers' networks.

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
) -> tuple[NetworkResult, PlacementPolicy]:
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


def _popular(built: Scenario, policy: PlacementPolicy, copies: int) -> dict[str, Any]:
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
