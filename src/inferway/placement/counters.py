"""The greedy rule that OLAG and the conference's greedy share: counters of what could have gained.

A counter phi belongs to a node, a model and a request type, that is, to a service option. It counts
requests that the node could have served with the model at less cost than the repository: by q. When
a node chooses, every model weighs ([SiSalem23] and [SiSalem21], Sec. VI)

    w_m = 1 / (s_m R) * sum over types of q_m * min(phi_m, L_m),

and the heaviest that fits is taken. Then ``min(phi, L)`` of it is subtracted from its own counter
and from those of all models of lower q, and the weighing starts again, until nothing that fits
weighs anything. With `equal`, it is subtracted from those of equal q too. Replicas of a model have
equal q: without it, they keep their counters, and a model that serves all is taken again.

What a counter counts can be read in two ways. ``reaching`` counts the requests that come to the
node, those that it serves included. ``forwarded``, the papers' words taken literally, leaves out
what the node serves: then a model that serves all requests has nothing to its credit and is
replaced. Counters carry over from slot to slot, or start at 0 in each (`carry`).

At one node, `Counted` is the whole network's rule on counters of what reaches the node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.agent import resume
from inferway.placement.contract import (
    Allocation,
    Float,
    Hops,
    Observation,
    Offset,
    batch_of,
    load_of,
)
from inferway.placement.crossing import NodeData
from inferway.placement.infida import InfidaState
from inferway.placement.layout import Layout, layout_of
from inferway.placement.messages import Letter
from inferway.site.compiled import entry
from inferway.unreadable import UNREADABLE, fault


class Counting:
    """Counters of all nodes, and the allocations that follow from them."""

    forwarded = False  # What is counted, see above
    carry = True  # Counters keep what a slot left in them
    equal = False  # Models that gain as much as the chosen one lose what it serves
    fractional = None

    def __init__(self, network: DeliveryNetwork) -> None:
        self.network = network
        self._layout = layout_of(network)
        options = network.options
        self._by_pair, self._ranges = options_by_pair(options.pair, len(network.pairs.node))
        last = np.repeat(options.cost[options.first[1:] - 1], np.diff(options.first))
        self.gain: Float = last - options.cost
        """(O,) what a request gains over the repository, the papers' q."""
        self._type = np.repeat(np.arange(len(options.first) - 1), np.diff(options.first))
        self.count: Float = np.zeros(len(options.pair))
        """(O,) the counters."""
        self.allocation: Allocation = (network.pairs.pinned > 0).astype(np.uint8)

    @classmethod
    def build(
        cls, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> Self:
        """Make the policy, which draws nothing and needs no `batches`."""
        return cls(network)

    def step(self, observation: Observation) -> Allocation:
        """Count a slot's requests, and choose every node's models anew.

        ValueError for arrays of another shape or with impossible numbers.
        """
        requests = batch_of(self.network, observation.requests)
        load = load_of(self.network, observation.load)
        if not self.carry:
            self.count[:] = 0.0
        _count(self._layout, self.network.options.hop, requests, load, self.forwarded, self.count)
        choose(
            self._layout,
            self._by_pair,
            self._ranges,
            self._type,
            self.gain,
            self.count,
            self.equal,
            self.allocation,
        )
        return self.allocation


def options_by_pair(
    pair: NDArray[np.integer[Any]], pairs: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Options sorted by their pair, and the range of each of so many pairs in them."""
    order = np.argsort(pair, kind="stable").astype(np.int64)
    ranges = np.searchsorted(pair[order], np.arange(pairs + 1))
    return order, ranges.astype(np.int64)


@entry
def _count(
    layout: Layout, hop: Hops, requests: Float, load: Float, forwarded: bool, count: Float
) -> None:
    """Add a slot: each option gets the requests that came to its node, or left it."""
    farthest = 0
    for o in range(len(hop)):
        farthest = max(farthest, hop[o] + 1)
    served = np.zeros(farthest + 1)
    for rho in range(len(requests)):
        if requests[rho] <= 0.0:
            continue
        start, end = layout.option_first[rho], layout.option_first[rho + 1]
        served[:] = 0.0
        for o in range(start, end):
            served[hop[o] + 1] += load[o]
        for h in range(farthest):  # now: served before hop h
            served[h + 1] += served[h]
        for o in range(start, end):
            gone = served[hop[o] + 1] if forwarded else served[hop[o]]
            count[o] += max(0.0, requests[rho] - gone)


@entry
def choose(
    layout: Layout,
    by_pair: Offset,
    ranges: Offset,
    type_of: Offset,
    gain: Float,
    count: Float,
    equal: bool,
    x: Allocation,
) -> None:
    """Allocate each node's budget to the heaviest models, and use the counters up."""
    for v in range(len(layout.rest)):
        start, end = layout.first[v], layout.first[v + 1]
        left = layout.budget[v]
        weight = np.zeros(end - start)
        for p in range(start, end):
            x[p] = not layout.free[p]
            weight[p - start] = _weight(layout, by_pair, ranges, gain, count, p)
        while True:
            best = -1
            for p in range(start, end):
                fits = x[p] == 0 and layout.size[p] <= left and weight[p - start] > 0.0
                if fits and (best < 0 or weight[p - start] > weight[best - start]):
                    best = p
            if best < 0:
                break
            x[best] = 1
            left -= layout.size[best]
            task = layout.task[layout.model[best]]
            for i in range(ranges[best], ranges[best + 1]):
                chosen = by_pair[i]
                used = min(count[chosen], layout.capacity[best])
                count[chosen] -= used
                for p in range(start, end):
                    if layout.task[layout.model[p]] != task or p == best:
                        continue
                    for j in range(ranges[p], ranges[p + 1]):
                        o = by_pair[j]
                        below = gain[o] < gain[chosen] or (equal and gain[o] == gain[chosen])
                        if type_of[o] == type_of[chosen] and below:
                            count[o] = max(0.0, count[o] - used)
            for p in range(start, end):
                if layout.task[layout.model[p]] == task:
                    weight[p - start] = _weight(layout, by_pair, ranges, gain, count, p)


@entry
def _weight(
    layout: Layout, by_pair: Offset, ranges: Offset, gain: Float, count: Float, p: int
) -> float:
    """w_m without 1 / R, which changes no choice."""
    total = 0.0
    for i in range(ranges[p], ranges[p + 1]):
        o = by_pair[i]
        total += gain[o] * min(count[o], layout.capacity[p])
    return total / layout.size[p]


class Greedy(Counting):
    """The conference's greedy heuristic ([SiSalem21], Sec. VI), by what was forwarded.

    Its counters "keep track of the number of times a request is forwarded upstream": taken
    literally, as here, a node credits no model that it has.
    """

    forwarded = True


class Olag(Counting):
    """OLAG, the online load-aware greedy heuristic of [SiSalem23], Sec. VI: the strong reading.

    Departures from the text's letter: once a model is chosen, what it serves is subtracted from the
    counters of models of equal gain too, which its replicas are (the text says lower gain: then a
    model that serves all is bought again, as often as it fits); counters start at 0 in each slot;
    and they count the requests that reach a node, not those that it forwards.
    """

    carry, equal = False, True


class OlagLiteral(Counting):
    """OLAG by the text's ``<``, its counters carried over; they count what reaches a node, too."""


_Name = tuple[str | int, ...]
"""How it is counted, task, path, and the node's pair."""


class Counters(NamedTuple):
    """A node's counters, and what each number is of.

    Attributes
    ----------
    of
        JSON: ``reaching`` or ``forwarded``, and for each request type its task, the nodes of its
        path, and those of the node's pairs that are its options.
    counts
        (c,) the counters, in this order.
    """

    of: str
    counts: Float


class Counted:
    """OLAG or greedy at one node: `Counting` on the node's own counters."""

    needs_letters = False
    agent = None

    def __init__(self, whole: Counting, data: NodeData) -> None:
        self._data = data
        self._forwarded, self._carry, self._equal = whole.forwarded, whole.carry, whole.equal
        crossings = [crossing for crossing in data.crossings.values() if len(crossing.pair)]
        self._types = [crossing.type for crossing in crossings]
        lengths = [len(crossing.pair) for crossing in crossings]
        self._first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        nothing = np.zeros(0, np.int64)
        pair = np.concatenate([nothing, *(crossing.pair for crossing in crossings)])
        option = np.concatenate([nothing, *(crossing.option for crossing in crossings)])
        self._gain = whole.gain[option]
        self._type_of = np.repeat(np.array(self._types, np.int64), lengths)
        self._by_pair, self._ranges = options_by_pair(pair, len(data.layout.size))
        self.count: Float = np.zeros(len(pair))
        """The counters, by crossing and option."""
        self.state = without_fractions(data, (data.layout.pinned > 0).astype(np.uint8))
        network = whole.network
        named = []
        for crossing in crossings:
            path = network.requests.path[crossing.type]
            route = network.paths.node[network.paths.first[path] : network.paths.first[path + 1]]
            task = network.tasks[network.requests.task[crossing.type]]
            named.append([task, [network.nodes[v] for v in route], crossing.pair.tolist()])
        self._of = json.dumps(["forwarded" if self._forwarded else "reaching", named])

    @property
    def x(self) -> Allocation:
        """(p,) what is to run here."""
        return self.state.x

    @property
    def counters(self) -> Counters:
        """The counters; they go on changing."""
        return Counters(self._of, self.count)

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Take a saved allocation and saved counters up.

        Round trips may have changed since, and with them which options are worth counting: each
        counter goes to the same type and pair, and those of none are left out.
        """
        del closed
        count = np.zeros_like(self.count) if counters is None else self._taken_up(counters)
        resume(self.state, state)
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
        del arrived, slot
        if not self._carry:
            self.count[:] = 0.0
        for i, rho in enumerate(self._types):
            came = reached.get(rho, 0.0)
            if came > 0.0 and self._forwarded and rho in load:
                came = max(0.0, came - float(np.sum(load[rho])))
            self.count[self._first[i] : self._first[i + 1]] += came
        return []

    def step(self) -> list[Letter]:
        """Choose anew by the counters."""
        self.state.slot[:] += 1
        choose(
            self._data.layout,
            self._by_pair,
            self._ranges,
            self._type_of,
            self._gain,
            self.count,
            self._equal,
            self.state.x,
        )
        return []

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


def without_fractions(data: NodeData, x: Allocation) -> InfidaState:
    """A state of the same form for policies without a fractional one, which is 0."""
    pairs = len(data.layout.size)
    slot = np.zeros(2, np.int64)
    return InfidaState(np.zeros(pairs), np.zeros(1), np.zeros(1), np.array(x, np.uint8), slot)


def _names(of: str) -> list[_Name]:
    try:
        how, types = json.loads(of)
        return [(how, task, *path, pair) for task, path, pairs in types for pair in pairs]
    except (*UNREADABLE, TypeError) as error:
        reason = fault(error)
        raise ValueError(f"the saved counters do not say what they count: {reason}") from error
