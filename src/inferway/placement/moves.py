"""From what runs at a node to what is to run: one copy after another, never over the budget.

A copy takes memory from the moment that it begins to load until it has answered its last request
and gone. New copies are loaded before old ones go, as long as there is room for both. What fails is
tried again after longer and longer waits. The live node and the event twin drive the same `Moves`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

Pair = TypeVar("Pair", bound=Hashable)
Kind = TypeVar("Kind", bound=Hashable)

# What failed is tried again after these: each wait is twice the one before.
FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0


class Load(NamedTuple, Generic[Pair]):
    """Begin to load a copy."""

    pair: Pair


class Unload(NamedTuple, Generic[Pair]):
    """Take a copy out: it gets no more requests, and goes once it has answered its last."""

    pair: Pair


class Announce(NamedTuple):
    """Say which copies take requests, before anything else comes or goes."""


class Rest(NamedTuple):
    """Do nothing until a copy is loaded or gone, others are wanted, or it is that time, s."""

    until_s: float


class Failed(NamedTuple):
    """Failure to load: the reason, how often in a row, the wait, and when it is tried again, s."""

    reason: str
    times: int
    wait_s: float
    due_s: float


@dataclass
class Moves(Generic[Pair, Kind]):
    """The copies at a node, and which comes or goes next: without input, output and clock.

    Whoever drives it asks for the `next` move, does it, and says how it ended.
    """

    size: Callable[[Pair], float]  # Of a copy, its bytes
    kind: Callable[[Pair], Kind]  # What fails and is tried again with all its copies
    order: Callable[[Pair], Any]  # By what ties between copies are broken
    budget: float = math.inf  # Bytes for all copies, pinned ones included
    pinned: Sequence[Pair] = ()  # Copies that are always wanted, and never go
    # Copies that take requests, or will with the next announcement; that begin to and that end to;
    # and those that have not been announced yet.
    running: set[Pair] = field(default_factory=set)
    loading: set[Pair] = field(default_factory=set, init=False)
    leaving: set[Pair] = field(default_factory=set, init=False)
    fresh: set[Pair] = field(default_factory=set, init=False)
    announced: bool = field(default=True, init=False)  # Whether what runs has been announced
    wanted: Sequence[Pair] = field(default=(), init=False)  # Pinned ones in front
    failures: dict[Kind, Failed] = field(default_factory=dict, init=False)
    moved_bytes: float = field(default=0.0, init=False)  # Of copies loaded so far, but the pinned
    _stay_until_s: float = field(default=-math.inf, init=False)

    @property
    def used_bytes(self) -> float:
        """Bytes of the budget held by what runs, what is loading and what is not gone yet."""
        return math.fsum(self.size(copy) for copy in self._held())

    @property
    def done(self) -> bool:
        """Whether the wanted copies run, and no others are there."""
        return self.running == set(self.wanted) and not self.leaving

    def want(
        self, copies: Iterable[Pair], now_s: float, stay_until_s: float = -math.inf
    ) -> set[Kind]:
        """Have these copies run, and no others but the pinned; returns their kinds.

        Nothing goes before `stay_until_s`. Failures of what is not wanted any more are forgotten
        when their time has come.
        """
        self.wanted = (*self.pinned, *(copy for copy in copies if copy not in self.pinned))
        self._stay_until_s = stay_until_s
        asked = {self.kind(copy) for copy in self.wanted}
        self.failures = {
            kind: one for kind, one in self.failures.items() if kind in asked or one.due_s > now_s
        }
        return asked

    def next(self, now_s: float) -> Load[Pair] | Unload[Pair] | Announce | Rest:
        """Choose the next move.

        What has come is announced before anything goes: where it cannot be, the old stays. Before
        it is, only more copies of what is in memory already are loaded.
        """
        move = self._next(self.running, self.leaving, now_s)
        at_hand = self.announced or (
            isinstance(move, Load) and self.kind(move.pair) in map(self.kind, self._held())
        )
        staying = isinstance(move, Unload) and now_s < self._stay_until_s
        if isinstance(move, Load) and at_hand:
            return move
        if isinstance(move, Unload) and not self.fresh and not staying:
            return move
        if not self.announced:
            return Announce()
        missing = {self.kind(copy) for copy in self.wanted if copy not in self.running}
        due = [one.due_s for kind, one in self.failures.items() if kind in missing]
        until = [self._stay_until_s] if staying else []
        return Rest(min([*until, *(due_s for due_s in due if due_s > now_s)], default=math.inf))

    def successor(self, unload: Unload[Pair], now_s: float) -> Pair | None:
        """Tell for which load a copy goes; None where none comes."""
        running = set(self.running)
        following: Load[Pair] | Unload[Pair] | None = unload
        while isinstance(following, Unload):
            running.remove(following.pair)
            following = self._next(running, set(), now_s)
        return None if following is None else following.pair

    def load(self, copy: Pair) -> None:
        """Count a copy from now on: it begins to load."""
        self.loading.add(copy)

    def loaded(self, copy: Pair) -> None:
        """Have a copy take requests from the next announcement on."""
        self.loading.discard(copy)
        self.running.add(copy)
        self.fresh.add(copy)
        self.announced = False
        if copy not in self.pinned:
            self.moved_bytes += self.size(copy)

    def failed(self, kind: Kind, reason: str, now_s: float) -> Failed:
        """Leave a kind alone for a while: it could not be loaded."""
        times = self.failures[kind].times + 1 if kind in self.failures else 1
        wait_s = min(FIRST_S * 2.0 ** min(times - 1, 60), LONGEST_S)
        self.failures[kind] = Failed(reason, times, wait_s, now_s + wait_s)
        return self.failures[kind]

    def unload(self, copy: Pair) -> None:
        """Take a copy out with the next announcement; it counts until it is `gone`."""
        self.running.remove(copy)
        self.leaving.add(copy)
        self.announced = False

    def gone(self, copy: Pair) -> None:
        """Count a copy no more."""
        self.leaving.discard(copy)

    def taken_up(self) -> list[Pair]:
        """Say that what runs has been announced; returns what has come with that."""
        come = sorted(self.fresh, key=self.order)
        self.announced = True
        self.fresh.clear()
        for copy in come:
            self.failures.pop(self.kind(copy), None)
        return come

    def refused(self) -> list[Kind]:
        """Take out again what is fresh: it cannot be announced; returns its kinds."""
        kinds = list(dict.fromkeys(map(self.kind, sorted(self.fresh, key=self.order))))
        self.running -= self.fresh
        self.leaving |= self.fresh
        self.fresh.clear()
        return kinds

    def _held(self) -> set[Pair]:
        return {*self.running, *self.loading, *self.leaving}

    def _next(
        self, running: set[Pair], leaving: set[Pair], now_s: float
    ) -> Load[Pair] | Unload[Pair] | None:
        """Choose the next move; None where nothing is to be done until something changes.

        What fits is loaded, in the order of `wanted`. A copy that is not wanted goes when a load
        needs its room, or when no load is left; while one is under way, or has failed, the others
        stay, so that an old copy goes on serving where the new one does not come.
        """
        off = {kind for kind, one in self.failures.items() if one.due_s > now_s}
        failed = {copy for copy in self.wanted if self.kind(copy) in off}
        held = {*running, *self.loading, *leaving}
        size = {copy: self.size(copy) for copy in sorted({*held, *self.wanted}, key=self.order)}
        used = sum(size[copy] for copy in held)
        missing = [copy for copy in self.wanted if copy not in held and copy not in failed]
        for copy in missing:
            if used + size[copy] <= self.budget:
                return Load(copy)
        if {*self.loading, *leaving}.intersection(self.wanted):  # it comes, or comes back
            return None
        kept = {*self.wanted, *self.pinned, *self.loading, *leaving}
        going = [copy for copy in size if copy in running and copy not in kept]
        soon = used - sum(size[copy] for copy in leaving)
        for copy in missing:
            lacking = soon + size[copy] - self.budget
            if lacking <= 0:
                return None
            if sum(size[other] for other in going) >= lacking:
                # The smallest that makes the room alone, else the largest.
                enough = [other for other in going if size[other] >= lacking]
                return Unload((min if enough else max)(enough or going, key=size.__getitem__))
        if not going or any(copy in failed for copy in self.wanted if copy not in running):
            return None
        return Unload(going[0])
