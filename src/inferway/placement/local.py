"""One node's part of a placement policy, from what it measures itself.

INFIDA is an `inferway.placement.agent.Agent`, which exchanges letters with its neighbors. OLAG and
greedy count what reaches the node (`inferway.placement.counters`), and need nobody. The policies in
hindsight, what a file lists and the repositories alone never change: there a node keeps its part of
the network's allocation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.agent import Agent
from inferway.placement.contract import Allocation, Float
from inferway.placement.counters import Counted, Counters, Counting, without_fractions
from inferway.placement.crossing import NodeData, data_of
from inferway.placement.infida import Infida, InfidaState, room_at
from inferway.placement.messages import Letter
from inferway.placement.table import POLICIES, WRITTEN, Written, build_policy, policy_class

if TYPE_CHECKING:
    from inferway.deployment import Deployment


class LocalPolicy(Protocol):
    """A node's part of a placement policy; p are the node's pairs."""

    @property
    def x(self) -> Allocation:
        """(p,) what is to run here."""

    @property
    def agent(self) -> Agent | None:
        """Agent that exchanges messages with the neighbors; None where there is nothing to say."""

    @property
    def needs_letters(self) -> bool:
        """Tell whether there is an agent. Whoever carries its letters closes and steps the
        agent.
        """

    @property
    def state(self) -> InfidaState:
        """State to be saved; it goes on changing."""

    @property
    def counters(self) -> Counters | None:
        """Counters to be saved; they go on changing. None where nothing is counted."""

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Go on from a saved state, as `inferway.placement.agent.Agent.restore`.

        Parameters
        ----------
        state
            Of a policy at the same node.
        closed
            The last slot that has ended.
        counters
            As they were saved with it; None where there are none: they begin at 0.

        Raises
        ------
        ValueError
            Where the state is not of a node with these pairs, or the counters are none. Nothing has
            changed then.
        """

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Take in what the node measured in the slot that has ended.

        Parameters
        ----------
        arrived
            Requests of each type that enters here.
        reached
            Requests of each type that came to the node: those that entered and those that came
            by a hop to be served here or passed on.
        load
            For each type, (k,) requests that its options here served; see `loads_of`.
        slot
            The slot's number, equal at all nodes; the next one if not given.
        """

    def step(self) -> list[Letter]:
        """End the slot: from now on `x` is to run."""


class Learned:
    """INFIDA at one node."""

    needs_letters = True
    counters = None

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    @property
    def x(self) -> Allocation:
        """(p,) what is to run here."""
        return self.agent.allocation

    @property
    def state(self) -> InfidaState:
        """The agent's."""
        return self.agent.state

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Go on from a saved state; from the beginning where another policy has saved it."""
        del counters
        # Nobody else has a fractional state, and from zeros no ascent leads anywhere.
        learned = bool(state.y.any() or state.spread.any())
        self.agent.restore(state if learned else self.state, closed=closed)

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Begin the letters about a slot."""
        del reached
        return self.agent.close_slot(dict(arrived), dict(load), slot=slot)

    def step(self) -> list[Letter]:
        """Learn from the answers that came."""
        return self.agent.step()


class Fixed:
    """An allocation that never changes, whatever was saved.

    Parameters
    ----------
    data
        The node's own data.
    x
        (p,) its allocation.
    """

    needs_letters = False
    agent = counters = None

    def __init__(self, data: NodeData, x: Allocation) -> None:
        self.state = without_fractions(data, x)

    @property
    def x(self) -> Allocation:
        """(p,) what is to run here."""
        return self.state.x

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Nothing: the file says what runs."""
        del state, closed, counters

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Nothing follows."""
        del arrived, reached, load, slot
        return []

    def step(self) -> list[Letter]:
        """Nothing changes."""
        self.state.slot[:] += 1
        return []


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
        return _fixed(own, network, Written(deployment, network).allocation)
    folder = None if deployment is None else deployment.folder
    found = policy_class(name, folder)
    if name not in POLICIES:
        raise ValueError(
            f"placement policy {name} decides for the whole network at once, and a node knows its "
            "own part alone: `inferway place` and `inferway simulate` run it"
        )
    # Built whole even where one node's part follows alone: it says what options are wrong.
    whole = build_policy(name, network, seed=seed, batches=batches, **options)
    if found is Infida:
        return Learned(Agent(own, seed=seed, **options))
    if isinstance(whole, Counting):
        return Counted(whole, own)
    return _fixed(own, network, whole.allocation)


def variants_of(network: DeliveryNetwork, node: int) -> tuple[str, ...]:
    """(p,) names of the variants that the node's pairs are copies of."""
    start, end = network.pairs.first[node : node + 2]
    numbers = network.models.variant[network.pairs.model[start:end]]
    return tuple(network.variants[number] for number in numbers)


def loads_of(
    data: NodeData,
    variants: Sequence[str],
    served: Mapping[tuple[int, str], float],
    running: Allocation,
) -> dict[int, Float]:
    """Tell how many requests each option served, from the counts of each variant.

    Copies of a variant answer in turn, and nobody counts by copy. So requests are put down to the
    copies that ran, the first ones up to their capacity and what is left over to the last, and
    types that share a copy fill it in proportion (`inferway.placement.serving`).

    Parameters
    ----------
    data
        The node's own data.
    variants
        (p,) of `variants_of`.
    served
        Requests of each type that each variant served here. A variant that is no option of the
        type, since the repository costs less, is passed over.
    running
        (p,) what ran, above 0; where no copy of a variant did any more, all count.

    Returns
    -------
    load
        For each type through the node, (k,) requests.
    """
    layout = data.layout
    loads = {rho: np.zeros(len(crossing.pair)) for rho, crossing in data.crossings.items()}
    shared: dict[tuple[int, str], list[int]] = {}
    for rho, variant in served:
        if rho in loads and len(loads[rho]):
            task = int(layout.task[data.crossings[rho].pair[0]])
            shared.setdefault((task, variant), []).append(rho)
    for (task, variant), types in shared.items():
        total = sum(served[rho, variant] for rho in types)
        copies = [
            p
            for p, name in enumerate(variants)
            if name == variant and layout.task[layout.model[p]] == task
        ]
        copies = [p for p in copies if running[p] or layout.pinned[p] > 0] or copies
        left = total
        for p in copies:
            taken = left if p == copies[-1] else min(left, room_at(layout, p))
            left -= taken
            for rho in types:
                here = data.crossings[rho].pair == p
                if taken > 0:
                    loads[rho][here] += served[rho, variant] * (taken / total)
    return loads


def _fixed(data: NodeData, network: DeliveryNetwork, allocation: Allocation) -> Fixed:
    start, end = network.pairs.first[data.node : data.node + 2]
    return Fixed(data, allocation[start:end])
