"""Loads and unloads of each node to come to what placement wants, and their durations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from inferway.placement.contract import Allocation, Float
from inferway.placement.moves import Load, next_move
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
        self._running, self._refresh, self._after = running, refresh, clock.after
        self._clock, self._told_s = clock, told_s
        self._heard_s = 0.0
        self._waiting = False
        self._load_s, self._moved = load_s, moved
        here = range(int(pairs.first[node]), int(pairs.first[node + 1]))
        self._size = {p: float(pairs.size[p]) for p in here}
        self._task = {p: int(terrain.network.models.task[pairs.model[p]]) for p in here}
        self._pinned = {p for p in here if pairs.pinned[p] > 0}
        ground = terrain.nodes[node]
        self._name, self._budget = ground.name, np.inf if ground.repository else ground.budget
        self._here = here
        self._wanted: Sequence[int] = ()
        self._loading: set[int] = set()
        self._leaving: set[int] = set()
        self.most = 0.0
        """The greatest number of bytes held at once."""

    def toward(self, allocation: Allocation) -> None:
        """Go on towards a (P,) allocation of the network."""
        self._wanted = [p for p in self._here if allocation[p]]
        self._heard_s = self._clock.now_s + self._told_s
        self._go_on()

    def begin(self, allocation: Allocation) -> None:
        """Have it all there at once."""
        self._wanted = [p for p in self._here if allocation[p]]
        self._running.update(self._wanted)
        self._check()

    @property
    def used(self) -> float:
        """Bytes held: copies that serve, that begin to and that end to."""
        return sum(self._size[p] for p in {*self._running, *self._loading, *self._leaving})

    def _go_on(self) -> None:
        # One at a time, as live: the next move waits for the end of the last.
        while not self._loading and not self._leaving:
            move = next_move(
                self._running,
                self._loading,
                self._leaving,
                self._wanted,
                self._size,
                self._budget,
                self._pinned,
            )
            if move is None:
                return
            p = move.pair
            if isinstance(move, Load):
                self._loading.add(p)
                self._check()
                self._moved(p)
                load_s = self._load_s(self._size[p])
                if load_s > 0.0:
                    self._after(load_s, self._loaded, p)
                else:
                    self._arrive(p)
            else:
                if (wait_s := self._heard_s - self._clock.now_s) > 0.0:
                    if not self._waiting:
                        self._waiting = True
                        self._after(wait_s, self._heard, None)
                    return
                self._running.discard(p)
                self._leaving.add(p)
                before = self._refresh(self._task[p])
                if before is not None and before.in_flight:
                    before.gone = lambda p=p: self._left(p)
                else:
                    self._leaving.discard(p)

    def _arrive(self, p: int) -> None:
        self._loading.discard(p)
        self._running.add(p)
        self._refresh(self._task[p])

    def _heard(self, _: Any) -> None:
        self._waiting = False
        self._go_on()

    def _loaded(self, p: Any) -> None:
        self._arrive(p)
        self._go_on()

    def _left(self, p: int) -> None:
        self._leaving.discard(p)
        self._go_on()

    def _check(self) -> None:
        used = self.used
        self.most = max(self.most, used)
        if used > self._budget * (1 + _ROUNDING):
            raise BudgetError(
                f"node {self._name} holds {used:.0f} bytes, over its budget of {self._budget:.0f}"
            )


def present(network_pairs: int, running: Sequence[set[int]]) -> Float:
    """(P,) 1 where a pair's copy takes requests."""
    found = np.zeros(network_pairs)
    for pairs in running:
        found[list(pairs)] = 1.0
    return found
