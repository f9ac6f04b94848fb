"""OLAG or greedy at one node: the whole network's rule on counters of what reaches the node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from inferway.placement.agent import resume
from inferway.placement.contract import Allocation, Float
from inferway.placement.counters import Counting, choose, options_by_pair
from inferway.placement.crossing import NodeData
from inferway.placement.infida import InfidaState
from inferway.placement.messages import Letter
from inferway.unreadable import UNREADABLE, fault

_Name = tuple[str | int, ...]
"""How it is counted, task, path, and the node's pair."""


class Counters(NamedTuple):
    """What a node has counted, and what each number is of.

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
