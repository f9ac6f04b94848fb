"""INFIDA: every node moves its allocation a little each slot, without knowing the future.

[SiSalem23], Algorithm 1, on the loads that were observed: potential available capacities (eq. 7),
subgradient (eq. 18), mirror ascent and projection (Algorithm 2), rounding. This is the central
computation; `inferway.placement.agent` runs the same kernels at each node alone.

With the map ``sum_m s_m y_m log y_m`` a step of rate eta along a subgradient g multiplies y_m by
``exp(eta g_m / s_m)``; the projection scales and caps. Two departures:

* Models that no request type can use start equal and never get a gradient, so they stay equal: they
  share one number per node, and memory and time follow the useful pairs only. This is exact.
* No y falls below `FLOOR`. A model that was of no use for hours would otherwise need hours to come
  back, or underflow and never come back at all. (The paper, too, drops what is nearly 0.)

The learning rate needs no tuning: AdaGrad-norm at each node,

    eta_v(t) = RATE / sqrt(sum over slots up to t of max_m (g_m / s_m)^2),

has no unit of its own, follows the scale of costs, request rates and sizes, and shrinks as
1/sqrt(t) where gradients stay as large, as the regret bound asks (M. Streeter and H. B. McMahan,
arXiv:1002.4862). The norm is the dual one of Lemma F.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from inferway.deployment.errors import parsed
from inferway.deployment.units import Count, PositiveNumber
from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import Allocation, Float, Observation, batch_of, load_of
from inferway.placement.delays import (
    DELAYS,
    Delays,
    Measured,
    MeasuredDelays,
    check_delays,
)
from inferway.placement.layout import Layout, data_of, layout_of
from inferway.placement.objective import contribution
from inferway.placement.rounding import couple_node, fill_node, round_node, scratch_for, word
from inferway.placement.waiting import unhurried
from inferway.site.compiled import entry, jit

FLOOR: Final = 1e-6  # Least fractional allocation
RATE: Final = 32.0  # Of the tuning-free rate: the largest change of any log y in the first step
_STEEPEST: Final = 600.0  # Largest exponent that stays finite with room for the projection


class Refresh(NamedTuple):
    """A period in slots that goes from `start` to `target` over `stretch` slots, linearly."""

    start: float = 1.0
    target: float = 1.0
    stretch: float = 0.0

    def due(self, slot: int, last: int) -> bool:
        """Tell whether the allocation may change after `slot`, having changed last after `last`.

        Slots are counted from 0.
        """
        done = 1.0 if self.stretch <= 0 else min(1.0, slot / self.stretch)
        return slot - last >= int(self.start + (self.target - self.start) * done)


Refreshing = int | Literal["dynamic"] | Refresh | tuple[float, float, float]
DYNAMIC: Final = Refresh(1.0, 32.0, 60.0)  # The paper's, an hour of slots of a minute (Sec. VI-B)


def refresh_of(value: Refreshing) -> Refresh:
    """Read a refresh period: slots, or (first period, last one, slots that the change takes).

    ``dynamic`` is `DYNAMIC`. ValueError for a period below one slot, and for anything else.
    """
    if value == "dynamic":
        return DYNAMIC
    if not isinstance(value, int | tuple):
        raise ValueError(f"a refresh period is a number of slots, or dynamic, not {value!r}")
    found = Refresh(value, value) if isinstance(value, int) else Refresh(*value)
    if min(found.start, found.target) < 1 or found.stretch < 0:
        raise ValueError(f"a refresh period is one slot or more, not {value}")
    return found


class InfidaOptions(NamedTuple):
    """Options of INFIDA, checked."""

    seed: int
    rate: float  # 0 for the one that tunes itself
    refresh: Refresh
    fresh: bool  # Whether each rounding draws anew
    strict: bool  # Whether the budget holds for the one model that does not fit wholly


def options_of(
    seed: int,
    learning_rate: float | None,
    refresh: Refreshing,
    rounding: str,
    residual: str,
) -> InfidaOptions:
    """Check the options of `Infida`; ValueError for one that is unknown or impossible."""
    for holds, sentence in (
        (rounding in ("coupled", "fresh"), f"rounding is coupled or fresh, not {rounding!r}"),
        (
            residual in ("elastic", "strict"),
            f"the residual model's budget is elastic or strict, not {residual!r}",
        ),
        (
            learning_rate is None or learning_rate > 0,
            f"the learning rate must be positive, not {learning_rate}",
        ),
    ):
        if not holds:
            raise ValueError(sentence)
    rate = 0.0 if learning_rate is None else float(learning_rate)
    return InfidaOptions(seed, rate, refresh_of(refresh), rounding == "fresh", residual == "strict")


class InfidaState(NamedTuple):
    """All that INFIDA remembers; saving and restoring it continues the run exactly."""

    y: Float  # (P,) fractional allocation
    spread: Float  # (V,) fractional allocation of each model that no request type can use
    steep: Float  # (V,) sum over slots of the squared dual norm of each node's subgradient
    x: Allocation  # (P,) integral allocation
    # (2,) slots seen, and the one after which the allocation last changed.
    slot: np.ndarray[tuple[int], np.dtype[np.int64]]


def first_state(layout: Layout) -> InfidaState:
    """Begin with the least of the mirror map, equal shares of every node's budget."""
    pairs, nodes = len(layout.size), len(layout.rest)
    x, slot = np.zeros(pairs, np.uint8), np.zeros(2, np.int64)
    state = InfidaState(np.empty(pairs), np.empty(nodes), np.zeros(nodes), x, slot)
    initial(layout, state.y, state.spread)
    return state


class Infida:
    """INFIDA on a whole network.

    The learning rate is the paper's constant eta, in size per cost and request, or tunes itself.
    ``coupled`` rounding keeps the random numbers from slot to slot and always keeps the budgets;
    ``fresh`` is the paper's DepRound, where `residual` says what becomes of the one model that does
    not fit wholly: ``elastic`` budgets may be exceeded by less than it, ``strict`` ones are filled
    with what gains most and still fits. With `waiting`, capacities L are what copies serve before
    one more request costs those that queue a service time (`inferway.placement.waiting`); what is
    proven holds for these. With `delays` other than the file's, costs change as nodes
    `measure` them (the paper's footnote 4). ValueError for an unknown or impossible option.
    """

    def __init__(
        self,
        network: DeliveryNetwork,
        *,
        seed: int = 0,
        learning_rate: float | None = None,
        refresh: Refreshing = 1,
        rounding: Literal["coupled", "fresh"] = "coupled",
        residual: Literal["elastic", "strict"] = "elastic",
        waiting: bool = False,
        delays: Delays = "file",
    ) -> None:
        check_delays(delays, waiting=waiting)
        self._options = options_of(seed, learning_rate, refresh, rounding, residual)
        self.network, self._layout = network, layout_of(network)
        if waiting:
            pairs, models = network.pairs, network.models
            columns = pairs.node, models.task[pairs.model], models.variant[pairs.model]
            kinds = zip(*(column.tolist() for column in columns), strict=True)
            self._layout = unhurried(self._layout, list(kinds))
        self._delays: list[MeasuredDelays] = []
        if delays != "file":
            waits = delays == "sojourns"
            self._delays = [MeasuredDelays(data, waits=waits) for data in data_of(network)]
        self._by_file = self._layout
        # (O,) options by type in the order of their costs, where these are measured.
        self._order: NDArray[np.int64] | None = None
        self.state = first_state(self._layout)
        self.gradient = np.zeros(len(network.pairs.node))  # (P,) subgradient of the last slot
        round_state(self._layout, 0, self._options, self.state, self.gradient, 0)

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
            Count | Literal["dynamic"],
            BeforeValidator(parsed(refresh_of)),
            Field(
                description="Slots between two changes of the integral allocation; `dynamic` goes "
                "from 1 to 32 over the first 60 slots."
            ),
        ] = 1,
        rounding: Annotated[
            Literal["coupled", "fresh"],
            Field(
                description="Whether successive roundings share their random numbers, so that few "
                "models move."
            ),
        ] = "coupled",
        residual: Annotated[
            Literal["elastic", "strict"],
            Field(
                description="With rounding `fresh`, whether the one model that does not fit wholly "
                "may exceed the budget, or what gains most and fits takes its place."
            ),
        ] = "elastic",
        waiting: Annotated[
            bool,
            Field(
                description="Whether capacities are those up to which requests hardly wait for "
                "busy copies."
            ),
        ] = False,
        delays: Annotated[Delays, DELAYS] = "file",
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
            waiting=waiting,
            delays=delays,
        )

    def measure(self, measured: Sequence[Measured]) -> None:
        """Take in how long all took at each node in the slot that has ended, before `step`.

        Links are taken to be as the file says them: in a twin they are.
        """
        if not self._delays:
            return
        first, own = self.network.pairs.first, []
        for v, (delays, one) in enumerate(zip(self._delays, measured, strict=True)):
            delays.take(one, self.state.x[first[v] : first[v + 1]])
            own.append(delays.own_ms())
        filed = self._by_file
        cost = filed.cost + np.concatenate(own)[filed.pair]
        type_of = np.repeat(np.arange(len(filed.option_first) - 1), np.diff(filed.option_first))
        order = np.lexsort((cost, type_of))
        self._order = order
        self._layout = filed._replace(pair=filed.pair[order], cost=cost[order])

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
        if self._order is not None:
            load = load[self._order]
        state, own = self.state, self._options
        state.slot[0] += 1
        subgradient_of_loads(self._layout, requests, load, state.y, self.gradient)
        learn_all(self._layout, self.gradient, own.rate, state.y, state.spread, state.steep)
        if own.refresh.due(int(state.slot[0]), int(state.slot[1])):
            state.slot[1] = state.slot[0]
            round_state(self._layout, 0, own, state, self.gradient, int(state.slot[0]))
        return state.x


@entry
def initial(layout: Layout, y: Float, spread: Float) -> None:
    """Write `first_state`."""
    for v in range(len(spread)):
        total = layout.total[v]
        share = 1.0 if total <= layout.budget[v] else layout.budget[v] / total
        spread[v] = share
        for p in range(layout.first[v], layout.first[v + 1]):
            y[p] = share if layout.free[p] else 1.0


@jit
def ascend(layout: Layout, v: int, g: Float, rate: float, y: Float, spread: float) -> float:
    """Step and project one node's pairs in place; return the new `spread`.

    The budget must be less than what all models take together.
    """
    start, end = layout.first[v], layout.first[v + 1]
    size, free, budget, rest = layout.size, layout.free, layout.budget[v], layout.rest[v]
    # Gradients are never negative, so before capping the budget is overspent at scale 1. Most often
    # what is above 1 there is above 1 at the end, and Newton's method starts close to its root.
    above = rest if spread >= 1.0 else 0.0
    below = 0.0 if spread >= 1.0 else rest * spread
    for p in range(start, end):
        if free[p]:
            if g[p] > 0.0:
                y[p] *= np.exp(min(_STEEPEST, rate * g[p] / size[p]))
            if y[p] >= 1.0:
                above += size[p]
            else:
                below += size[p] * y[p]
    if above < budget and below > 0.0:
        scale = (budget - above) / below
    else:
        spent = rest * spread
        for p in range(start, end):
            if free[p]:
                spent += size[p] * y[p]
        scale = budget / spent
    capped = -1.0
    while True:
        above = rest if scale * spread >= 1.0 else 0.0
        below = 0.0 if scale * spread >= 1.0 else rest * spread
        for p in range(start, end):
            if free[p]:
                if scale * y[p] >= 1.0:
                    above += size[p]
                else:
                    below += size[p] * y[p]
        if above <= capped or below <= 0.0:
            break
        capped = above
        scale = max(scale, (budget - above) / below)
    for p in range(start, end):
        if free[p]:
            y[p] = max(FLOOR, min(1.0, scale * y[p]))
    return max(FLOOR, min(1.0, scale * spread))


@entry
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


@entry
def learn_all(layout: Layout, g: Float, rate: float, y: Float, spread: Float, steep: Float) -> None:
    """Mirror ascent and projection at every node; `rate` 0 is the rate that tunes itself."""
    for v in range(len(spread)):
        top = 0.0  # the dual norm of the node's subgradient
        for p in range(layout.first[v], layout.first[v + 1]):
            if layout.free[p]:
                top = max(top, g[p] / layout.size[p])
        if top <= 0.0:
            continue
        steep[v] += top * top
        if 0.0 < layout.budget[v] < layout.total[v]:
            eta = rate if rate > 0.0 else RATE / np.sqrt(steep[v])
            spread[v] = ascend(layout, v, g, eta, y, spread[v])


def round_state(
    layout: Layout, node: int, options: InfidaOptions, state: InfidaState, g: Float, slot: int
) -> None:
    """Round at every node of a layout, of which the first is the network's `node`."""
    if options.fresh:
        round_all(layout, node, state.y, g, options.seed, slot, options.strict, state.x)
    else:
        couple_all(layout, node, state.y, options.seed, state.x)


@entry
def round_all(
    layout: Layout, node: int, y: Float, g: Float, seed: int, slot: int, strict: bool, x: Allocation
) -> None:
    """DepRound at every node, with words of the slot and the node."""
    for v in range(len(layout.rest)):
        start, end = layout.first[v], layout.first[v + 1]
        draw = word(word(seed, slot), node + v)
        used = round_node(start, end, y, layout.size, layout.free, draw, strict, x)
        if strict:
            fill_node(start, end, layout.size, layout.free, g, layout.budget[v] - used, x)


@entry
def couple_all(layout: Layout, node: int, y: Float, seed: int, x: Allocation) -> None:
    """Coupled rounding at every node, with the node's permanent word."""
    scratch = scratch_for(layout.first)
    for v in range(len(layout.rest)):
        couple_node(layout, v, y, word(seed, node + v), scratch, x)
