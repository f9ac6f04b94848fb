"""A placement computed at once, for the mean requests of the slots to come.

INFIDA is run as its offline version ([SiSalem23], Prop. V.1.1). Policies that only learn online are
run over the slots, and the best of the allocations that they held is kept.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.deployment.policies import HINDSIGHT
from inferway.network.delivery import DeliveryNetwork
from inferway.network.layout import deployed
from inferway.placement.contract import (
    Allocation,
    Float,
    Observation,
    PlacementPolicy,
    build_policy,
    expected_batches,
)
from inferway.placement.exact import Exact, relaxation
from inferway.placement.serving import serve
from inferway.placement.static import Horizon, average_gain, horizon_of, served_of

if TYPE_CHECKING:
    from inferway.deployment import Deployment

SLOTS = 60  # An hour, in slots of a minute


@dataclass(frozen=True)
class Placed:
    """One tier under a placement."""

    share: float  # Of all requests
    used: float | None  # Mean share of the budgets in use; None where there is none
    copies: dict[str, int]  # Of each variant, of all tasks and on all nodes together

    def to_json(self) -> dict[str, Any]:
        """By name."""
        return dict(vars(self))


@dataclass(frozen=True, eq=False)
class Placement:
    """Placement of variants on nodes.

    Attributes
    ----------
    policy, slots
        What chose it, and for how many slots.
    network
        Where.
    allocation
        (P,) 1 where a useful pair's model is on its node.
    gain_ms
        Cost per request less than what repositories alone would cost, over all slots.
    bound_ms
        No static allocation gains more; None where it was not asked for.
    proven
        Whether the allocation is proven to be the best; None where nobody tried.
    latency_s, inaccuracy
        Means over requests: seconds, and 0..1.
    in_time
        Part of the requests that round trip and service time leave within their deadlines, as if
        nobody waited; None where no task has one.
    served
        (O,) mean requests per slot that each option serves.
    tiers
        The same by tier; of a network without tiers, all of it as ``network``.
    seconds
        Time that the policy took.
    """

    policy: str
    slots: int
    network: DeliveryNetwork
    allocation: Allocation
    gain_ms: float
    bound_ms: float | None
    proven: bool | None
    latency_s: float
    inaccuracy: float
    in_time: float | None
    served: Float
    tiers: dict[str, Placed]
    seconds: float
    _written: dict[str, Any]

    @property
    def gap(self) -> float | None:
        """Greatest distance of the gain from the best, as a share of the bound."""
        if self.bound_ms is None:
            return None
        return 0.0 if self.bound_ms <= 0 else max(0.0, 1.0 - self.gain_ms / self.bound_ms)

    @property
    def nodes(self) -> dict[str, dict[str, int]]:
        """Instances by node, as TASK/VARIANT: COUNT; pinned ones count, repositories are not in."""
        network = self.network
        pairs, models = network.pairs, network.models
        running = (self.allocation > 0) | (pairs.pinned > 0)
        nodes: dict[str, dict[str, int]] = {}
        for p in np.flatnonzero(running & ~network.repository[pairs.node]):
            model = pairs.model[p]
            key = f"{network.tasks[models.task[model]]}/{network.variants[models.variant[model]]}"
            counts = nodes.setdefault(network.nodes[pairs.node[p]], {})
            counts[key] = counts.get(key, 0) + 1
        return nodes

    @property
    def yaml(self) -> str:
        """The section `nodes` of the deployment file with this placement's instances."""
        from ruamel.yaml import YAML

        nodes, described = self.nodes, self._written.get("nodes", {})
        # A node that the file describes stays described: this section takes the place of that one.
        section = {
            name: {
                **{k: v for k, v in self._words(name, described).items() if k != "instances"},
                **({"instances": nodes[name]} if name in nodes else {}),
            }
            for name in self.network.nodes
            if name in nodes or name in described
        }
        writer = YAML()
        writer.default_flow_style = None
        writer.width = 100
        writer.representer.ignore_aliases = lambda data: True
        text = io.StringIO()
        writer.dump({"nodes": section}, text)
        return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())

    def _words(self, name: str, described: dict[str, Any]) -> dict[str, Any]:
        """A node's entry in the file, in its own words."""
        from inferway.deployment.units import SIZE

        if name in described:
            return dict(described[name])
        written, network = self._written["network"], self.network
        place = network.nodes.index(name)
        words = dict(written.get("others", {}))
        for tier in written.get("tree", ()):
            if tier["tier"] == network.tiers[network.tier[place]]:
                words = {k: v for k, v in tier.items() if k not in ("tier", "nodes", "rtt")}
        if isinstance(words.get("budget"), list):
            sizes = [part["size"] for part in words["budget"]]
            own = network.budget[place]
            words["budget"] = next(size for size in sizes if SIZE.parse(size) == own)
        return words

    def to_json(self) -> dict[str, Any]:
        """As `inferway place FILE --json` prints it under ``network``."""
        return {
            "policy": self.policy,
            "slots": self.slots,
            "ntag_ms": self.gain_ms,
            "bound_ms": self.bound_ms,
            "gap": self.gap,
            "proven": self.proven,
            "latency_s": self.latency_s,
            "inaccuracy": self.inaccuracy,
            **({} if self.in_time is None else {"in_time": self.in_time}),
            "seconds": self.seconds,
            "tiers": {name: tier.to_json() for name, tier in self.tiers.items()},
            "nodes": self.nodes,
        }


def place(
    deployment: Deployment,
    *,
    policy: str | None = None,
    slots: int = SLOTS,
    seed: int | None = None,
    time_limit_s: float = 60.0,
    bound: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> Placement:
    """Compute a placement offline.

    Parameters
    ----------
    deployment
        A file with `network` and `workload`, from `inferway.load`.
    policy
        One of `inferway.placement.POLICIES`; the file's by default, or INFIDA.
    slots
        How many slots from the start of the workload it is for. Their mean requests count.
    seed
        Of what the policy draws; the file's by default.
    time_limit_s
        When `exact` stops with the best that it has found.
    bound
        Bound the gain of every static allocation, by the LP relaxation; `exact` always does better.
    progress
        Called with the number of slots done, where the policy runs over them.
    options
        The policy's own.

    Raises
    ------
    DeploymentError
        Where the file has no network, or one that cannot be used.
    ValueError
        For a number of slots that is not positive, an unknown policy or option.
    RuntimeError
        Where `exact` finds nothing within the time.
    """
    from inferway.deployment.source import read

    if slots < 1:
        raise ValueError(f"a placement is for one slot or more, not {slots}")
    network, demand = deployed(deployment)
    written = None if deployment.placement is None else deployment.placement.policy
    name = policy or written or "infida"
    name = "infida-offline" if name == "infida" else name
    if name == "exact":
        options = {"time_limit_s": time_limit_s, **options}
    batches = expected_batches(demand, slots)
    horizon = horizon_of(network, batches)
    start = time.perf_counter()
    chosen = build_policy(
        name,
        network,
        seed=deployment.seed if seed is None else seed,
        batches=batches if name in HINDSIGHT else None,
        folder=deployment.folder,
        **options,
    )
    allocation = chosen.allocation
    if name not in HINDSIGHT:
        allocation = _best_held(network, horizon, chosen, batches, progress)
    seconds = time.perf_counter() - start
    limit, proven = None, None
    if isinstance(chosen, Exact):
        limit, proven = chosen.optimum.bound, chosen.optimum.proven
    elif bound:
        limit = relaxation(network, batches)
    served, alone = served_of(network, horizon, allocation), served_of(network, horizon)
    total = float(served.sum())
    each = 1.0 / total if total else np.nan
    return Placement(
        policy=name,
        slots=slots,
        network=network,
        allocation=allocation,
        gain_ms=each * float(network.options.cost @ (alone - served)),
        bound_ms=None if limit is None else each * limit,
        proven=proven,
        latency_s=each * float(network.latency_s @ served),
        inaccuracy=each * float(network.inaccuracy @ served),
        in_time=_in_time(deployment, network, served),
        served=served,
        tiers=_tiers(network, allocation, served),
        seconds=seconds,
        _written=read(deployment.path).data,
    )


def _in_time(deployment: Deployment, network: DeliveryNetwork, served: Float) -> float | None:
    named = deployment.named()
    deadlines_s = [named[name].deadline_s for name in network.tasks]
    total = float(served.sum())
    if not total or all(one is None for one in deadlines_s):
        return None
    limit_s = np.array([np.inf if one is None else one for one in deadlines_s])
    of_type = limit_s[network.requests.task]
    timely = network.latency_s <= np.repeat(of_type, np.diff(network.options.first))
    return float(served[timely].sum()) / total


def _best_held(
    network: DeliveryNetwork,
    horizon: Horizon,
    policy: PlacementPolicy,
    batches: Float,
    progress: Callable[[int], None] | None,
) -> Allocation:
    best = before = policy.allocation.copy()
    most = average_gain(network, horizon, best)
    for slot, requests in enumerate(batches):
        policy.step(Observation(requests, serve(network, requests, policy.allocation)))
        if not np.array_equal(policy.allocation, before):
            before = policy.allocation.copy()
            gained = average_gain(network, horizon, before)
            if gained > most:
                best, most = before, gained
        if progress is not None:
            progress(slot + 1)
    return best


def _tiers(network: DeliveryNetwork, allocation: Allocation, served: Float) -> dict[str, Placed]:
    pairs, models = network.pairs, network.models
    total = max(float(served.sum()), 1.0)
    running = ((allocation > 0) | (pairs.pinned > 0)) & ~network.repository[pairs.node]
    used = np.bincount(pairs.node, running * pairs.size, len(network.nodes))
    found = {}
    for k, name in enumerate(network.tiers):
        own = network.tier == k
        variants = models.variant[pairs.model[running & own[pairs.node]]]
        counted = np.bincount(variants, minlength=len(network.variants))
        budgets = own & network.limited
        found[name or "network"] = Placed(
            share=float(served[own[network.options.node]].sum()) / total,
            used=float((used[budgets] / network.budget[budgets]).mean()) if budgets.any() else None,
            copies={network.variants[v]: int(counted[v]) for v in np.flatnonzero(counted)},
        )
    return found
