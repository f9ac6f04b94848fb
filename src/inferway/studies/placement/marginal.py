"""INFIDA on what is really served: marginals in place of the subgradient (ours).

Eq. 18 ([SiSalem23]) is a subgradient of eq. 16 at the fractional allocation, with the potential
available capacities of eq. 7, which count an instance's room for each request type alone. Here
component p is what the slot's requests would have gained, as they are served, by the copy p that
did not run, or what they would have lost without it where it ran. Step, projection and rounding are
INFIDA's. It sees the whole network, so that no node can run it by itself, and no bound on its
regret is known: the marginals are those of an integral point.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import (
    Allocation,
    Float,
    Index,
    Mask,
    Observation,
    Offset,
    batch_of,
)
from inferway.placement.infida import Infida, learn_all, round_state
from inferway.placement.layout import layout_of
from inferway.placement.serving import fill
from inferway.site.compiled import entry, jit


class TaskPart(NamedTuple):
    """A task's part of a network: types of other tasks share no instance with it."""

    types: Offset  # (r,) its request types
    pairs: Offset  # (p,) its useful pairs
    first: Offset  # (r + 1,) of each type its first option
    pair: Index  # (o,) of each option its place in `pairs`
    cost: Float  # (o,)
    capacity: Float  # (p,) of one instance
    pinned: Float  # (p,)
    free: Mask  # (p,) whether placement decides
    kind: Offset  # (p,) equal for copies of a variant on a node


def task_parts(network: DeliveryNetwork) -> list[TaskPart]:
    """Take a network apart by tasks; a task without useful pairs has no part."""
    options, pairs, models = network.options, network.pairs, network.models
    free = layout_of(network).free
    of_kind = np.stack([pairs.node, models.task[pairs.model], models.variant[pairs.model]])
    kind = np.ravel(np.unique(of_kind, axis=1, return_inverse=True)[1]).astype(np.int64)
    parts = []
    for task in range(len(network.tasks)):
        own = np.flatnonzero(models.task[pairs.model] == task)
        types = np.flatnonzero(network.requests.task == task)
        if not own.size:
            continue
        # Copies of a kind follow one another.
        own = own[np.argsort(kind[own], kind="stable")]
        place = np.full(len(pairs.node), -1, np.int32)
        place[own] = np.arange(len(own))
        here = [np.arange(options.first[rho], options.first[rho + 1]) for rho in types]
        at = np.concatenate(here)
        parts.append(
            TaskPart(
                types=types,
                pairs=own,
                first=np.concatenate([[0], np.cumsum([len(one) for one in here])]).astype(np.int64),
                pair=place[options.pair[at]],
                cost=options.cost[at],
                capacity=pairs.capacity[own],
                pinned=pairs.pinned[own],
                free=free[own],
                kind=kind[own],
            )
        )
    return parts


def marginals(
    network: DeliveryNetwork, parts: list[TaskPart], requests: Float, allocation: Allocation
) -> Float:
    """Compute what each pair's copy gains, or would gain, of a slot's requests.

    Parameters
    ----------
    network
        The inference delivery network.
    parts
        Of `task_parts`.
    requests
        (R,) requests of each type.
    allocation
        (P,) what ran.

    Returns
    -------
    g
        (P,) costs times requests, at least 0; 0 where placement has nothing to decide.
    """
    g = np.zeros(len(network.pairs.node))
    for part in parts:
        g[part.pairs] = _of_task(part, requests[part.types], allocation[part.pairs])
    return g


class Marginal(Infida):
    """INFIDA with `marginals` in place of eq. 18; options as INFIDA's."""

    def __init__(self, network: DeliveryNetwork, **options: Any) -> None:
        super().__init__(network, **options)
        self._parts = task_parts(network)

    def step(self, observation: Observation) -> Allocation:
        """Take in a slot, learn from it, and round if a refresh is due; errors as INFIDA's."""
        requests = batch_of(self.network, observation.requests)
        state, own, layout = self.state, self._options, self._layout
        state.slot[0] += 1
        self.gradient[:] = marginals(self.network, self._parts, requests, state.x)
        learn_all(layout, self.gradient, own.rate, state.y, state.spread, state.steep)
        if own.refresh.due(int(state.slot[0]), int(state.slot[1])):
            state.slot[1] = state.slot[0]
            round_state(layout, 0, own, state, self.gradient, int(state.slot[0]))
        return state.x


@entry
def _of_task(part: TaskPart, requests: Float, x: Allocation) -> Float:
    load = np.empty(len(part.cost))
    g = np.zeros(len(x))
    now = _cost(part, requests, x, load)
    for p in range(len(x)):
        if not part.free[p]:
            continue
        if p > 0 and part.kind[p] == part.kind[p - 1] and x[p] == x[p - 1]:
            g[p] = g[p - 1]
            continue
        x[p] = 1 - x[p]
        other = _cost(part, requests, x, load)
        x[p] = 1 - x[p]
        g[p] = max(other - now if x[p] > 0 else now - other, 0.0)
    return g


@jit
def _cost(part: TaskPart, requests: Float, x: Allocation, load: Float) -> float:
    fill(part.first, part.pair, part.capacity, part.pinned, x, requests, load)
    total = 0.0
    for o in range(len(load)):
        total += part.cost[o] * load[o]
    return total
