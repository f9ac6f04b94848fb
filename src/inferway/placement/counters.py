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
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferway.network.delivery import DeliveryNetwork
from inferway.placement.contract import (
    Allocation,
    Float,
    Hops,
    Observation,
    Offset,
    batch_of,
    load_of,
)
from inferway.placement.layout import Layout, layout_of
from inferway.placement.static import Static
from inferway.site.compiled import entry


class Counting(Static):
    """Counters of all nodes, and the allocations that follow from them."""

    forwarded = False  # What is counted, see above
    carry = True  # Counters keep what a slot left in them
    equal = False  # Models that gain as much as the chosen one lose what it serves

    def __init__(
        self, network: DeliveryNetwork, *, seed: int = 0, batches: Float | None = None
    ) -> None:
        self.network = network
        self._layout = layout_of(network)
        options = network.options
        self._by_pair, self._ranges = options_by_pair(options.pair, len(network.pairs.node))
        last = np.repeat(options.cost[options.first[1:] - 1], np.diff(options.first))
        # (O,) what a request gains over the repository, the papers' q; and the counters.
        self.gain: Float = last - options.cost
        self._type = np.repeat(np.arange(len(options.first) - 1), np.diff(options.first))
        self.count: Float = np.zeros(len(options.pair))
        self.allocation = (network.pairs.pinned > 0).astype(np.uint8)

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
