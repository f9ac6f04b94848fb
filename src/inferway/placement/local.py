"""One node's part of every placement policy, from what it measures itself.

INFIDA is an `inferway.placement.agent.Agent` and exchange an
`inferway.placement.exchange_agent.ExchangeAgent`; both write letters to their neighbors. OLAG and
greedy count what reaches the node, and need nobody. The policies in hindsight, what a file lists
and the repositories alone never change: there a node keeps its part of the network's allocation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from inferway.deployment.policies import PLACEMENT
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.agent import Agent, Counters, LocalPolicy
from inferway.placement.contract import WRITTEN, Allocation, Float, build_policy, policy_class
from inferway.placement.counters import Counting, choose, options_by_pair
from inferway.placement.exchange import ExchangePolicy
from inferway.placement.infida import Infida, InfidaState, room_at
from inferway.placement.layout import NodeData, data_of
from inferway.placement.letters import Letter
from inferway.placement.static import Written
from inferway.unreadable import UNREADABLE, fault

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class Counted(LocalPolicy):
    """OLAG or greedy at one node: `Counting` on the node's own counters."""

    def __init__(self, whole: Counting, data: NodeData) -> None:
        super().__init__(data, (data.layout.pinned > 0).astype(np.uint8))
        self._whole, network = whole, whole.network
        crossings = [crossing for crossing in data.crossings.values() if len(crossing.pair)]
        self._types = [crossing.type for crossing in crossings]
        self._lengths = np.array([len(crossing.pair) for crossing in crossings], np.int64)
        self._type_of = np.repeat(np.array(self._types, np.int64), self._lengths)
        nothing = np.zeros(0, np.int64)
        pair = np.concatenate([nothing, *(crossing.pair for crossing in crossings)])
        option = np.concatenate([nothing, *(crossing.option for crossing in crossings)])
        self._gain = whole.gain[option]
        self._by_pair, self._ranges = options_by_pair(pair, len(data.layout.size))
        self.count: Float = np.zeros(len(pair))  # The counters, by crossing and option
        named = [
            [
                network.tasks[network.requests.task[crossing.type]],
                list(network.path(network.requests.path[crossing.type])),
                crossing.pair.tolist(),
            ]
            for crossing in crossings
        ]
        self._of = json.dumps(["forwarded" if whole.forwarded else "reaching", named])

    @property
    def counters(self) -> Counters:  # type: ignore[override]
        """The counters; they go on changing."""
        return Counters(self._of, self.count)

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Take a saved allocation and saved counters up.

        Round trips may have changed since, and with them which options are worth counting: each
        counter goes to the same type and pair, and those of none are left out.
        """
        count = np.zeros_like(self.count) if counters is None else self._taken_up(counters)
        self.resume(state)
        self.count[:] = count

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Count."""
        served = load if self._whole.forwarded else {}
        came = [
            max(0.0, reached.get(rho, 0.0) - float(np.sum(served.get(rho, 0.0))))
            for rho in self._types
        ]
        if not self._whole.carry:
            self.count[:] = 0.0
        self.count += np.repeat(np.array(came, np.float64), self._lengths)
        return []

    def step(self) -> list[Letter]:
        """Choose anew by the counters."""
        choose(
            self.data.layout,
            self._by_pair,
            self._ranges,
            self._type_of,
            self._gain,
            self.count,
            self._whole.equal,
            self.state.x,
        )
        return super().step()

    def _taken_up(self, counters: Counters) -> Float:
        names, saved = _names(counters.of), counters.counts
        if saved.shape != (len(names),):
            raise ValueError(f"{saved.size} counters were saved, with names for {len(names)}")
        if not np.all((saved >= 0.0) & (saved < np.inf)):
            raise ValueError("a counter was saved that is below 0 or no number")
        if counters.of == self._of:
            return saved
        by_name = dict(zip(names, saved.tolist(), strict=True))
        return np.array([by_name.get(name, 0.0) for name in _names(self._of)])


def _names(of: str) -> list[tuple[str | int, ...]]:
    """How each number is counted, its task, its path, and the node's pair."""
    try:
        how, types = json.loads(of)
        return [(how, task, *path, pair) for task, path, pairs in types for pair in pairs]
    except (*UNREADABLE, TypeError) as error:
        reason = fault(error)
        raise ValueError(f"the saved counters do not say what they count: {reason}") from error


def local_policy(
    name: str,
    network: DeliveryNetwork,
    node: int,
    *,
    seed: int = 0,
    batches: Float | None = None,
    deployment: Deployment | None = None,
    data: NodeData | None = None,
    **options: Any,
) -> LocalPolicy:
    """Make a node's part of a placement policy by the policy's name.

    Parameters
    ----------
    name
        One of `inferway.placement.POLICIES`, or ``written``.
    network
        The inference delivery network, the same at all nodes.
    node
        The node's number in it.
    seed, batches, options
        As of `inferway.placement.build_policy`, equal at all nodes.
    deployment
        The file, for ``written``.
    data
        The node's, where it has been cut out already.

    Raises
    ------
    ValueError
        For an unknown name or option, a wrong value, or where `batches` or the file are needed and
        missing.
    """
    own = data_of(network)[node] if data is None else data
    if name == WRITTEN:
        if deployment is None:
            raise ValueError("what a file lists runs: give the deployment")
        allocation = Written(deployment, network).allocation
    else:
        found = policy_class(name, None if deployment is None else deployment.folder)
        if name not in PLACEMENT:
            raise ValueError(
                f"placement policy {name} decides for the whole network at once, and a node knows "
                "its own part alone: `inferway place` and `inferway simulate` run it"
            )
        # Built whole even where one node's part follows alone: it says what options are wrong.
        whole = build_policy(name, network, seed=seed, batches=batches, **options)
        if found is Infida:
            return Agent(own, seed=seed, **options)
        if isinstance(whole, ExchangePolicy):
            return whole.part(own)
        if isinstance(whole, Counting):
            return Counted(whole, own)
        allocation = whole.allocation
    start, end = network.pairs.first[node : node + 2]
    return LocalPolicy(own, allocation[start:end])


def loads_of(
    data: NodeData, served: Mapping[tuple[int, str], float], running: Allocation
) -> dict[int, Float]:
    """Tell how many requests each option served, from the counts of each type and variant.

    Copies of a variant answer in turn, and nobody counts by copy. So requests are put down to the
    copies that ran, the first ones up to their capacity and what is left over to the last, and
    types that share a copy fill it in proportion (`inferway.placement.serving`). A variant that is
    no option of the type, since the repository costs less, is passed over. `running`, (p,), is
    above 0 for what ran; where no copy of a variant did any more, all count. For each type through
    the node it returns (k,) requests.
    """
    layout = data.layout
    loads = {rho: np.zeros(len(crossing.pair)) for rho, crossing in data.crossings.items()}
    shared: dict[tuple[int, str], list[int]] = {}
    for rho, variant in served:
        if rho in loads and len(loads[rho]):
            task = int(layout.task[data.crossings[rho].pair[0]])
            shared.setdefault((task, variant), []).append(rho)
    for (task, variant), types in shared.items():
        left = total = sum(served[rho, variant] for rho in types)
        copies = [
            p
            for p, name in enumerate(data.variants)
            if name == variant and layout.task[layout.model[p]] == task
        ]
        copies = [p for p in copies if running[p] or layout.pinned[p] > 0] or copies
        for p in copies:
            taken = left if p == copies[-1] else min(left, room_at(layout, p))
            left -= taken
            for rho in types:
                if taken > 0:
                    on_it = data.crossings[rho].pair == p
                    loads[rho][on_it] += served[rho, variant] * (taken / total)
    return loads
