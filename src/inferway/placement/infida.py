"""INFIDA: every node moves its allocation a little each slot, without knowing the future.

[SiSalem23], Algorithm 1, on the loads that were observed: potential available capacities (eq. 7),
subgradient (eq. 18), mirror ascent and projection (Algorithm 2), rounding. This is the central
computation; `inferway.placement.agent` runs the same kernels at each node alone.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from inferway.deployment.units import Count, PositiveNumber
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.ascent import RATE, ascend, initial, steepness
from inferway.placement.contract import Allocation, Float, Observation, batch_of, load_of
from inferway.placement.layout import Layout, layout_of
from inferway.placement.objective import contribution
from inferway.placement.rounding import couple_node, fill_node, round_node, scratch_for, word
from inferway.site.compiled import entry, jit


class Refresh(NamedTuple):
    """A period in slots that goes from `start` to `target` over `stretch` slots, linearly."""

    start: float = 1.0
    target: float = 1.0
    stretch: float = 0.0

    def period(self, slot: int) -> float:
        """Slots between two changes of the integral allocation, at a slot counted from 0."""
        done = 1.0 if self.stretch <= 0 else min(1.0, slot / self.stretch)
        return self.start + (self.target - self.start) * done

    def due(self, slot: int, last: int) -> bool:
        """Tell whether the allocation may change after `slot`, having changed last after `last`."""
        return slot - last >= int(self.period(slot))


def refresh_of(value: int | Refresh | tuple[float, float, float]) -> Refresh:
    """Read a refresh period: slots, or (first period, last one, slots that the change takes).

    ValueError for a period below one slot.
    """
    found = Refresh(value, value) if isinstance(value, int) else Refresh(*value)
    if min(found.start, found.target) < 1 or found.stretch < 0:
        raise ValueError(f"a refresh period is one slot or more, not {value}")
    return found


class InfidaState(NamedTuple):
    """All that INFIDA remembers; saving and restoring it continues the run exactly.

    Attributes
    ----------
    y
        (P,) fractional allocation.
    spread
        (V,) fractional allocation of each model that no request type can use.
    steep
        (V,) sum over slots of the squared dual norm of each node's subgradient.
    x
        (P,) integral allocation.
    slot
        (2,) slots seen, and the one after which the allocation last changed.
    """

    y: Float
    spread: Float
    steep: Float
    x: Allocation
    slot: np.ndarray[tuple[int], np.dtype[np.int64]]


class Infida:
    """INFIDA on a whole network.

    The learning rate is the paper's constant eta, in size per cost and request, or tunes itself.
    ``coupled`` rounding keeps the random numbers from slot to slot and always keeps the budgets;
    ``fresh`` is the paper's DepRound, where `residual` says what becomes of the one model that does
    not fit wholly: ``elastic`` budgets may be exceeded by less than it, ``strict`` ones are filled
    with what gains most and still fits. ValueError for an unknown or impossible option.
    """

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        learning_rate: float | None = None,
        refresh: int | Refresh | tuple[float, float, float] = 1,
        rounding: Literal["coupled", "fresh"] = "coupled",
        residual: Literal["elastic", "strict"] = "elastic",
    ) -> None:
        if rounding not in ("coupled", "fresh"):
            raise ValueError(f"rounding is coupled or fresh, not {rounding!r}")
        if residual not in ("elastic", "strict"):
            raise ValueError(f"the residual model's budget is elastic or strict, not {residual!r}")
        if learning_rate is not None and not learning_rate > 0:
            raise ValueError(f"the learning rate must be positive, not {learning_rate}")
        self.network = network
        self._layout = layout_of(network)
        self._seed = seed
        self._rate = 0.0 if learning_rate is None else float(learning_rate)
        self._refresh = refresh_of(refresh)
        self._fresh = rounding == "fresh"
        self._strict = residual == "strict"
        pairs, nodes = len(network.pairs.node), len(network.nodes)
        self.state = InfidaState(
            y=np.empty(pairs),
            spread=np.empty(nodes),
            steep=np.zeros(nodes),
            x=np.zeros(pairs, np.uint8),
            slot=np.zeros(2, np.int64),
        )
        self.gradient = np.zeros(pairs)
        """(P,) subgradient of the last slot."""
        initial(self._layout, self.state.y, self.state.spread)
        self._round(0)

    @classmethod
    def build(
        cls,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        batches: Float | None = None,
        learning_rate: Annotated[
            PositiveNumber | None, Field(description="Step size; if not given, it tunes itself.")
        ] = None,
        refresh: Annotated[
            Count, Field(description="Slots between two changes of the integral allocation.")
        ] = 1,
        rounding: Annotated[
            Literal["coupled", "fresh"],
            Field(
                description="Whether successive roundings share their random numbers, so that few "
                "models move."
            ),
        ] = "coupled",
        residual: Literal["elastic", "strict"] = "elastic",
    ) -> Infida:
        """Make the policy; it needs no `batches`, the future's least of all.

        In Python `refresh` may also be all that `Infida` takes.
        """
        return cls(
            network,
            seed=seed,
            learning_rate=learning_rate,
            refresh=refresh,
            rounding=rounding,
            residual=residual,
        )

    @property
    def allocation(self) -> Allocation:
        """(P,) the integral allocation."""
        return self.state.x

    @property
    def fractional(self) -> Float:
        """(P,) the fractional allocation."""
        return self.state.y

    def step(self, observation: Observation) -> Allocation:
        """Take in a slot, learn from it, and round if a refresh is due.

        ValueError for arrays of another shape or with impossible numbers.
        """
        requests = batch_of(self.network, observation.requests)
        load = load_of(self.network, observation.load)
        state = self.state
        state.slot[0] += 1
        due = self._refresh.due(int(state.slot[0]), int(state.slot[1]))
        if due:
            state.slot[1] = state.slot[0]
        _advance(self._layout, requests, load, self._rate, self.gradient, *state[:3])
        if due:
            self._round(int(state.slot[0]))
        return state.x

    def _round(self, slot: int) -> None:
        layout, state = self._layout, self.state
        if self._fresh:
            round_all(layout, state.y, self.gradient, self._seed, slot, self._strict, state.x)
        else:
            couple_all(layout, state.y, self._seed, state.x)


@entry
def _advance(
    layout: Layout,
    requests: Float,
    load: Float,
    rate: float,
    g: Float,
    y: Float,
    spread: Float,
    steep: Float,
) -> None:
    subgradient_of_loads(layout, requests, load, y, g)
    for v in range(len(spread)):
        learn_node(layout, v, g, rate, y, spread, steep)


@jit
def subgradient_of_loads(layout: Layout, requests: Float, load: Float, y: Float, g: Float) -> None:
    """Write eq. 18 at y, with the capacities of eq. 7 that the loads leave."""
    pair, cost = layout.pair, layout.cost
    # What was taken from each pair that served anything; few did.
    number = np.full(len(g), -1, np.int32)
    count = 0
    for o in range(len(pair)):
        if load[o] > 0.0 and number[pair[o]] < 0:
            number[pair[o]] = count
            count += 1
    taken = np.zeros(count)
    for o in range(len(pair)):
        if load[o] > 0.0:
            taken[number[pair[o]]] += load[o]
    g[:] = 0.0
    for rho in range(len(requests)):
        r = requests[rho]
        if r <= 0.0:
            continue
        start = layout.option_first[rho]
        worst = layout.option_first[rho + 1] - 1
        served = 0.0
        for o in range(start, worst):
            p = pair[o]
            used = taken[number[p]] if number[p] >= 0 else 0.0
            served += y[p] * left_for(room_at(layout, p), used, load[o], r)
            if served >= r:
                worst = o
                break
        for o in range(start, worst):
            p = pair[o]
            used = taken[number[p]] if number[p] >= 0 else 0.0
            capacity = left_for(room_at(layout, p), used, load[o], r)
            g[p] += contribution(capacity, cost[worst], cost[o])


@jit
def room_at(layout: Layout, p: int) -> float:
    """Requests per slot that a pair serves if it is allocated."""
    return layout.capacity[p] * max(layout.pinned[p], 1.0)


@jit
def left_for(room: float, taken: float, own: float, wanted: float) -> float:
    """Potential available capacity, eq. 7: what other types left of a pair, or what is wanted."""
    return min(max(room - (taken - own), 0.0), wanted)


@jit
def learn_node(
    layout: Layout, v: int, g: Float, rate: float, y: Float, spread: Float, steep: Float
) -> None:
    """Mirror ascent and projection at one node; `rate` 0 is the rate that tunes itself."""
    start, end = layout.first[v], layout.first[v + 1]
    top = steepness(start, end, layout.size, layout.free, g)
    if top <= 0.0:
        return
    steep[v] += top * top
    if layout.budget[v] >= layout.total[v] or layout.budget[v] <= 0.0:
        return
    eta = rate if rate > 0.0 else RATE / np.sqrt(steep[v])
    spread[v] = ascend(layout, v, g, eta, y, spread[v])


@entry
def learn_all(layout: Layout, g: Float, rate: float, y: Float, spread: Float, steep: Float) -> None:
    """`learn_node` at every node of the layout."""
    for v in range(len(spread)):
        learn_node(layout, v, g, rate, y, spread, steep)


@entry
def round_all(
    layout: Layout, y: Float, g: Float, seed: int, slot: int, strict: bool, x: Allocation
) -> None:
    """DepRound at every node, with words of the slot and the node."""
    for v in range(len(layout.rest)):
        _fresh_at(layout, v, y, g, word(word(seed, slot), v), strict, x)


@entry
def couple_all(layout: Layout, y: Float, seed: int, x: Allocation) -> None:
    """Coupled rounding at every node, with the node's permanent word."""
    scratch = scratch_for(layout.first)
    for v in range(len(layout.rest)):
        couple_node(layout, v, y, word(seed, v), scratch, x)


@entry
def round_one(
    layout: Layout,
    node: int,
    y: Float,
    g: Float,
    seed: int,
    slot: int,
    fresh: bool,
    strict: bool,
    x: Allocation,
) -> None:
    """Round the only node of a layout, whose number in the network is `node`."""
    if fresh:
        _fresh_at(layout, 0, y, g, word(word(seed, slot), node), strict, x)
    else:
        couple_node(layout, 0, y, word(seed, node), scratch_for(layout.first), x)


@jit
def _fresh_at(
    layout: Layout, v: int, y: Float, g: Float, draw: int, strict: bool, x: Allocation
) -> None:
    start, end = layout.first[v], layout.first[v + 1]
    used = round_node(start, end, y, layout.size, layout.free, draw, strict, x)
    if strict:
        fill_node(start, end, layout.size, layout.free, g, layout.budget[v] - used, x)


PSI = 1.0 - 1.0 / math.e
"""The share of the best static gain that INFIDA is held to."""


def regret_constant(network: DeliveryNetwork) -> float:
    """A of ``(1 - 1/e)-regret <= A sqrt(T)``, in the unit of the options' costs times requests.

    After Lemmas F.2, F.3 and F.5: with R request types, the greatest capacity L, the greatest cost
    difference D to a repository, sizes s between their least and greatest, and budgets b,

        A = PSI R L D / s_min sqrt(s_max V M) sqrt(2 sum_v b_v log(S_v / b_v)),

    where S_v is what all models take together and b_v at most that. Nodes whose allocation is fixed
    are left out of the sum, and all models are counted, useful or not. The bound is for the worst
    adversary and loose by orders of magnitude; it is shown for its shape.

    Raises
    ------
    ValueError
        Where placement has nothing to decide.
    """
    layout, options = layout_of(network), network.options
    free = layout.free
    if not free.any():
        raise ValueError("no pair is left to placement, so there is no regret to bound")
    last = options.cost[options.first[1:] - 1]
    difference = float((last - options.cost[options.first[:-1]]).max())
    size, capacity = layout.size[free], layout.capacity[free]
    budget = np.minimum(layout.budget, layout.total)
    spent = budget[budget > 0]
    spread = float(spent @ np.log(layout.total[budget > 0] / spent))
    models = len(network.nodes) * len(network.models.task)
    lipschitz = len(last) * float(capacity.max()) * difference / float(size.min())
    return PSI * lipschitz * math.sqrt(float(size.max()) * models) * math.sqrt(2.0 * spread)
