"""Loads and unloads of each node to come to what placement wants, and their durations.

What comes or goes next, `Moves` say, as in the live node. Departures: no load fails or is cut
short, what comes or goes is announced at once, and nothing else moves until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

import numpy as np

from inferway.placement.contract import Allocation, Float
from inferway.placement.moves import Load, Moves, Rest, Unload
from inferway.twin.network.pools import NodePool
from inferway.twin.network.terrain import Terrain

_ROUNDING = 1e-9


class BudgetError(AssertionError):
    """A node that holds more than its budget: the twin itself is wrong."""


class MoveClock(Protocol):
    """Whose time it is, and who calls later."""

    now_s: float

    def after(self, wait_s: float, call: Callable[[Any], None], argument: Any) -> None:
        """Call a function in so many seconds."""


class Mover:
    """Moves of one node, one at a time, in the order of `inferway.placement.moves`.

    Parameters
    ----------
    terrain, node
        Where.
    running
        The node's pairs that take requests; the mover changes them.
    refresh
        Called with a task when copies of it have come or go; returns the pool that was replaced.
    clock
        The engine.
    told_s
        How long after it has been said what is to run the first copies may go: by then everybody
        has heard that they are offered no more, and what was sent meanwhile has come.
    load_s
        How long a copy of so many bytes takes until it can serve, s.
    moved
        Told a pair when it begins to load.
    """

    def __init__(
        self,
        terrain: Terrain,
        node: int,
        running: set[int],
        *,
        refresh: Callable[[int], NodePool | None],
        clock: MoveClock,
        told_s: float,
        load_s: Callable[[float], float],
        moved: Callable[[int], None],
    ) -> None:
        pairs = terrain.network.pairs
        self._refresh, self._after = refresh, clock.after
        self._clock, self._told_s = clock, told_s
        self._look_s = inf
        """When the mover looks again by itself; inf for never."""
        self._load_s, self._moved = load_s, moved
        self._here = here = range(int(pairs.first[node]), int(pairs.first[node + 1]))
        size = {p: float(pairs.size[p]) for p in here}
        self._task = {p: int(terrain.network.models.task[pairs.model[p]]) for p in here}
        ground = terrain.nodes[node]
        self._name = ground.name
        kind = {
            p: (model.task, model.variant)
            for model in map(terrain.models.__getitem__, terrain.at[node])
            for p in model.pairs
        }
        self._moves = Moves[int, tuple[int, str]](
            size=size.__getitem__,
            kind=kind.__getitem__,
            order=int,
            budget=inf if ground.repository else ground.budget,
            pinned=[p for p in here if pairs.pinned[p] > 0],
            running=running,
        )
        self.most = 0.0
        """The greatest number of bytes held at once."""

    def toward(self, allocation: Allocation) -> None:
        """Go on towards a (P,) allocation of the network."""
        self._want(allocation)
        self._go_on()

    def begin(self, allocation: Allocation) -> None:
        """Have it all there at once."""
        self._want(allocation)
        self._moves.running.update(self._moves.wanted)
        self._check()

    @property
    def used(self) -> float:
        """Bytes held: copies that serve, that begin to and that end to."""
        return self._moves.used_bytes

    def _want(self, allocation: Allocation) -> None:
        now_s = self._clock.now_s
        wanted = [p for p in self._here if allocation[p]]
        self._moves.want(wanted, now_s, stay_until_s=now_s + self._told_s)

    def _go_on(self) -> None:
        moves, clock = self._moves, self._clock
        # One at a time, as live: the next move waits for the end of the last.
        while not moves.loading and not moves.leaving:
            match moves.next(clock.now_s):
                case Load(pair=p):
                    moves.load(p)
                    self._check()
                    self._moved(p)
                    load_s = self._load_s(moves.size(p))
                    if load_s > 0.0:
                        self._after(load_s, self._loaded, p)
                    else:
                        self._arrive(p)
                case Unload(pair=p):
                    moves.unload(p)
                    before = self._announce(p)
                    if before is not None and before.in_flight:
                        before.gone = lambda p=p: self._left(p)
                    else:
                        moves.gone(p)
                case Rest(until_s=until_s):
                    if until_s < self._look_s:
                        self._look_s = until_s
                        self._after(until_s - clock.now_s, self._look, None)
                    return

    def _announce(self, p: int) -> NodePool | None:
        self._moves.taken_up()
        return self._refresh(self._task[p])

    def _arrive(self, p: int) -> None:
        self._moves.loaded(p)
        self._announce(p)

    def _look(self, _: Any) -> None:
        self._look_s = inf
        self._go_on()

    def _loaded(self, p: Any) -> None:
        self._arrive(p)
        self._go_on()

    def _left(self, p: int) -> None:
        self._moves.gone(p)
        self._go_on()

    def _check(self) -> None:
        used = self.used
        self.most = max(self.most, used)
        budget = self._moves.budget
        if used > budget * (1 + _ROUNDING):
            raise BudgetError(
                f"node {self._name} holds {used:.0f} bytes, over its budget of {budget:.0f}"
            )


def present(network_pairs: int, running: Sequence[set[int]]) -> Float:
    """(P,) 1 where a pair's copy takes requests."""
    found = np.zeros(network_pairs)
    for pairs in running:
        found[list(pairs)] = 1.0
    return found
