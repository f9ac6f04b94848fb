"""Exchange at one node: it knows its own data, and exchanges letters with its neighbors.

`inferway.placement.exchange` says what is exchanged and why. No sockets and no clocks: the twin and
the live node drive it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from inferway.placement.agent import Correspondent, Counters
from inferway.placement.contract import Allocation, Float
from inferway.placement.delays import Delays, MeasuredDelays
from inferway.placement.forecast import Forecast
from inferway.placement.infida import InfidaState, room_at
from inferway.placement.layout import Crossing, NodeData
from inferway.placement.letters import (
    Above,
    Below,
    Floor,
    Letter,
    Message,
    Quiet,
    dearer,
    encode,
)
from inferway.placement.rounding import word
from inferway.placement.scene import (
    SceneWriter,
    TaskHere,
    levels_at,
    levels_of,
    rooms_above,
    tasks_at,
    with_costs_of,
)
from inferway.placement.search import Scene, cost_of, improve
from inferway.placement.turns import Turns

LEAST: Final = 0.003  # ms per crossing request that a trade must save
KICKS: Final = 3
_CHANCE: Final = 3.0  # Standard deviations of a count that a quiet type has room for


class ExchangeAgent(Correspondent):
    """Exchange at one node: it knows its own data, and exchanges letters with its neighbors.

    Parameters
    ----------
    data
        The node's part of the network.
    x
        (p,) what runs at first.
    turns
        Of the network; not needed where its paths form a forest.
    seed, least_ms, kicks
        As of `inferway.placement.exchange.ExchangePolicy`, equal at all nodes.
    slot_ms
        Length of a slot, ms, where decisions are to count how long requests wait; None where not.
    delays
        Of what costs are made, as of `inferway.placement.exchange.ExchangePolicy`.

    Attributes
    ----------
    saved
        Cost of a slot that the last decision saves, as far as the node knows, in ms times requests.
    """

    hears = (Floor, Above, Below, Quiet)
    saved = 0.0

    def __init__(
        self,
        data: NodeData,
        x: Allocation,
        turns: Turns | None = None,
        *,
        seed: int = 0,
        least_ms: float = LEAST,
        kicks: int = KICKS,
        slot_ms: float | None = None,
        delays: Delays = "file",
    ) -> None:
        own = None if delays == "file" else MeasuredDelays(data, waits=delays == "sojourns")
        super().__init__(data, x, own)
        self._turns, self._seed, self._least, self._kicks = turns, seed, least_ms, kicks
        self._tasks = tasks_at(data)
        self._levels = None if slot_ms is None else levels_at(data, slot_ms)
        self._prices = None if self._levels is None else self._levels.price
        # Of each pair those that are copies of the same variant of its task.
        named = list(zip(data.variants, data.layout.task[data.layout.model].tolist(), strict=True))
        self._alike = [[q for q, one in enumerate(named) if one == name] for name in named]
        # (p,) the copies that decisions count on; other copies that run are spare.
        self._planned: Allocation = np.zeros(len(x), np.uint8)
        self._used = np.zeros(len(x), np.int64)  # Last slot at whose end a pair was planned
        crossings = data.crossings.values()
        self._entering = [one.type for one in crossings if one.downstream is None]
        self._forecast = Forecast(len(self._entering))
        self._quiet: set[int] = set()
        # Of the slot at hand.
        self._worth: dict[int, float] = {}
        self._decided = self._ended = True
        self._unordered: frozenset[int] = frozenset()
        self._load: Mapping[int, Float] = {}
        self._taken: Float = np.zeros(len(x))
        self._next: dict[int, float] = {}  # Forecasts, of what enters here and of what is told
        self._above: dict[int, Above] = {}
        self._below: dict[int, Below] = {}
        self._awaited: set[tuple[type[Message], int]] = set()

    @property
    def stage(self) -> float:
        """Part of the time for letters after which the node decides with what it has, 0 to 1."""
        crossings = self.data.crossings.values()
        places = [(one.place + 1) / (one.length + 1) for one in crossings]
        return max(places, default=1.0)

    def restore(
        self, state: InfidaState, *, closed: int = 0, counters: Counters | None = None
    ) -> None:
        """Go on from a saved allocation, any policy's, and delays; forecasts begin anew."""
        self.resume(state)
        for part in (self.state.y, self.state.spread, self.state.steep):
            part[:] = 0.0
        layout, x = self.data.layout, self.state.x
        # Another policy may have been above the budget for a while.
        self._planned[:] = x
        for p in np.flatnonzero(layout.free & (x > 0))[::-1]:
            if self._left() >= 0.0:
                break
            x[p] = self._planned[p] = 0
        self._closed, self._decided, self._ended = closed, True, True
        self._take_up_delays(counters)

    def open(self) -> list[Letter]:
        """Begin: repositories tell the least cost of their options."""
        return [
            letter
            for crossing in self.data.crossings.values()
            if crossing.upstream is None
            for letter in self._send_floor(crossing)
        ]

    def close_slot(
        self,
        arrived: Mapping[int, float],
        reached: Mapping[int, float],
        load: Mapping[int, Float],
        *,
        slot: int | None = None,
    ) -> list[Letter]:
        """Forecast, and begin the letters about a slot; nodes that have missed slots say which."""
        self._closed = self._closed + 1 if slot is None else slot
        self._load, self._decided, self._ended = load, False, False
        self._taken[:] = 0.0
        if self._levels is not None:
            load = self._spread(load)
            self._load = load
        for rho, crossing in self.data.crossings.items():
            if rho in load:
                np.add.at(self._taken, crossing.pair, load[rho])
        counts = np.array([arrived.get(rho, 0.0) for rho in self._entering], np.float64)
        self._next = dict(zip(self._entering, self._forecast.next(counts).tolist(), strict=True))
        self._above, self._below = {}, {}
        if self._turns is not None:
            self._unordered = self._turns.unordered(self.data.node, self._closed)
        letters = self._look_for_quiet()
        self._awaited = set()
        for rho, crossing in self.data.crossings.items():
            if rho not in self._quiet:
                self._await(crossing)
                if crossing.upstream is None:
                    letters += self._send_above(crossing, ())
        return letters + self._hear_early() + self._decide_if_all_is_in()

    def see(self, neighbor: int, alive: bool) -> list[Letter]:
        """Count on no requests by way of a neighbor that has gone: its types are quiet."""
        return [
            letter
            for rho, crossing in self.data.crossings.items()
            if crossing.downstream == neighbor and alive == (rho in self._quiet)
            for letter in self.take(Quiet(rho, not alive))
        ]

    def _follow(self) -> None:
        super()._follow()
        assert self.delays is not None
        self._tasks = [with_costs_of(task, self.data) for task in self._tasks]
        if self._levels is not None and self._prices is not None:
            self._levels = self._levels._replace(price=self.delays.scale * self._prices)

    def warm(self) -> None:
        """Do once what is done in a slot; who has no letters yet would leave the search out."""
        super().warm()
        nothing = SceneWriter().scene()
        draw = word(word(self._seed, self._closed), self.data.node)
        improve(nothing, self._left(), 0.0, self._kicks, draw, np.zeros(0))
        cost_of(nothing)

    def _hear(self, message: Message) -> list[Letter]:
        match message:
            case Floor():
                return self._hear_floor(message)
            case Quiet(rho=rho, on=on):
                return self._hush(self.data.crossings[rho], on)
            case Above() | Below() if self._ended:
                return []  # Late
            case Above(rho=rho):
                crossing = self.data.crossings[rho]
                if more := self._link_ms(crossing):
                    message = msgspec.structs.replace(message, running=dearer(message, more))
                return self._hear_above(crossing, message)
            case Below(rho=rho):
                return self._hear_below(self.data.crossings[rho], message)
        return []

    def decide(self) -> list[Letter]:
        """Decide with the letters that have come, once a slot, and write to those further up."""
        if self._decided:
            return []
        self._decided, self.saved = True, 0.0
        self._awaited.clear()
        if self.data.layout.free.any():
            self._search()
        return [
            letter
            for rho, crossing in self.data.crossings.items()
            if rho in self._next and rho not in self._quiet
            for letter in self._send_below(crossing)
        ]

    def step(self) -> list[Letter]:
        """End the slot, deciding if nothing was decided yet: from now on `x` is to run."""
        letters = self.decide()
        self._ended = True
        super().step()
        return letters

    def _left(self) -> float:
        layout = self.data.layout
        used = layout.size[layout.free & (self._planned > 0)].sum()
        return float(layout.budget[0] - used)

    def _spread(self, load: Mapping[int, Float]) -> dict[int, Float]:
        """Spread (k,) loads evenly over the planned copies of each variant: these share a queue."""
        spread = {}
        counts = (self._planned > 0) | (self.data.layout.pinned > 0)
        for rho, served in load.items():
            pair = self.data.crossings[rho].pair
            on = np.zeros(len(counts))
            np.add.at(on, pair, served)
            even = np.zeros(len(served))
            for k, p in enumerate(pair):
                alike = self._alike[p]
                copies = int(counts[alike].sum())
                if not copies:
                    even[k] = on[p]
                elif counts[p]:
                    even[k] = on[alike].sum() / copies
            spread[rho] = even
        return spread

    # Letters.

    def _await(self, crossing: Crossing) -> None:
        if crossing.upstream is not None:
            self._awaited.add((Above, crossing.type))
            if crossing.downstream is not None and crossing.type not in self._unordered:
                self._awaited.add((Below, crossing.type))

    def _decide_if_all_is_in(self) -> list[Letter]:
        return [] if self._awaited else self.decide()

    def _hear_above(self, crossing: Crossing, message: Above) -> list[Letter]:
        rho = crossing.type
        if rho in self._quiet and crossing.downstream is None:
            return _up(crossing, Quiet(rho, True))  # somebody has not heard it
        self._above[rho] = message
        self._awaited.discard((Above, rho))
        return self._send_above(crossing, message.running) + self._decide_if_all_is_in()

    def _hear_below(self, crossing: Crossing, message: Below) -> list[Letter]:
        rho = crossing.type
        self._below[rho] = message
        self._next[rho] = message.requests
        if self._decided:
            return self._send_below(crossing)
        self._awaited.discard((Below, rho))
        return self._decide_if_all_is_in()

    def _hush(self, crossing: Crossing, on: bool) -> list[Letter]:
        rho = crossing.type
        letters = _up(crossing, Quiet(rho, on))
        if on:
            self._quiet.add(rho)
            self._awaited -= {(Above, rho), (Below, rho)}
            return letters + self._decide_if_all_is_in()
        # Where all was quiet, nothing has been decided yet.
        if self._quiet >= self.data.crossings.keys():
            self._decided = False
        self._quiet.discard(rho)
        if not self._decided:
            self._await(crossing)
        if crossing.upstream is None and not self._ended:
            letters += self._send_above(crossing, ())
        return letters

    def _look_for_quiet(self) -> list[Letter]:
        """Say of what enters here whether it needs nobody, if that has changed."""
        entering = set(self._entering)
        others = self.data.crossings.keys() - entering
        quiet = bool(entering) and others <= self._quiet and self._needs_nobody()
        if quiet == (entering <= self._quiet):
            return []
        self._quiet = self._quiet | entering if quiet else self._quiet - entering
        crossings = self.data.crossings
        return [
            letter for rho in self._entering for letter in _up(crossings[rho], Quiet(rho, quiet))
        ]

    def _send_above(self, crossing: Crossing, further: Sequence[tuple[float, ...]]) -> list[Letter]:
        if crossing.downstream is None:
            return []
        layout, node = self.data.layout, self.data.node
        served = self._load.get(crossing.type)
        own = []
        for k, (p, cost) in enumerate(zip(crossing.pair, crossing.cost, strict=True)):
            if self._planned[p] or layout.pinned[p] > 0:
                load = 0.0 if served is None else float(served[k])
                if self._levels is None:
                    idle = max(room_at(layout, p) - float(self._taken[p]), 0.0)
                    own.append((node, int(p), float(cost), load, idle))
                else:
                    own += self._by_level(int(p), float(cost), load)
        return _down(crossing, Above(crossing.type, self._closed, (*own, *further)))  # type: ignore[arg-type]

    def _by_level(
        self, p: int, cost: float, served: float
    ) -> list[tuple[int, int, float, float, float]]:
        """Cut what a pair served of a type, and what was idle, into its levels of room."""
        assert self._levels is not None
        rooms, taken = self._rooms_of(p), float(self._taken[p])
        parts = np.clip(taken - (np.cumsum(rooms) - rooms), 0.0, rooms)
        idle, part = rooms - parts, served / taken if taken > 0.0 else 0.0
        columns = cost + self._levels.price[p], part * parts, idle
        return [
            (self.data.node, p, *one) for one in zip(*(c.tolist() for c in columns), strict=True)
        ]

    def _rooms_of(self, p: int) -> Float:
        """Tell a pair's room at each of its levels, (L,), beside the copies of now."""
        assert self._levels is not None
        layout, alike = self.data.layout, self._alike[p]
        running = int(np.sum((self._planned[alike] > 0) | (layout.pinned[alike] > 0)))
        if layout.pinned[p] > 1:
            running = math.ceil(layout.pinned[p])
        rows = len(self._levels.share)
        return room_at(layout, p) * self._levels.share[min(max(running, 1), rows) - 1]

    def _send_below(self, crossing: Crossing) -> list[Letter]:
        # At the end of a path nothing is decided.
        if crossing.place + 1 >= crossing.length or crossing.type not in self._next:
            return []
        rho, node = crossing.type, self.data.node
        before = self._below[rho].running if rho in self._below else ()
        own = tuple(
            (node, int(p), level_cost, room, self._worth.get(int(p), 0.0))
            for p, cost in zip(crossing.pair, crossing.cost, strict=True)
            if self._planned[p] or self.data.layout.pinned[p] > 0
            for level_cost, room in self._rooms_for(int(p), float(cost), crossing.upstream)
        )
        below = Below(rho, self._closed, self._next[rho], before + own)
        if more := self._link_ms(crossing):
            below = msgspec.structs.replace(below, running=dearer(below, -more))
        return _up(crossing, below)

    def _room_for(self, p: int, reader: int | None) -> float:
        """Tell a pair's room for types that go on to a neighbor; others keep what they use."""
        room = room_at(self.data.layout, p)
        for rho, served in self._load.items():
            crossing = self.data.crossings[rho]
            if crossing.upstream != reader:
                room -= float(served[crossing.pair == p].sum())
        return max(room, 0.0)

    def _rooms_for(self, p: int, cost: float, reader: int | None) -> list[tuple[float, float]]:
        """Tell what each level of a pair costs, and its room as `_room_for`: others go first."""
        room = self._room_for(p, reader)
        if self._levels is None:
            return [(cost, room)]
        rooms = self._rooms_of(p)
        left = np.minimum(rooms, np.maximum(np.cumsum(rooms) - (rooms.sum() - room), 0.0))
        costs = cost + self._levels.price[p]
        return list(zip(costs.tolist(), left.tolist(), strict=True))

    # The node's own decision.

    def _search(self) -> None:
        scene, tasks = self._scene()
        if not tasks:
            return
        asked = float(scene.requests.sum())
        draw = word(word(self._seed, self._closed), self.data.node)
        worth = np.zeros(len(scene.size))
        self.saved = improve(scene, self._left(), self._least * asked, self._kicks, draw, worth)
        self._worth = {}
        for k, task in enumerate(tasks):
            start, variant = scene.instances[k], np.array(task.variant)
            chosen = scene.x[start : start + len(variant)]
            for p, v in enumerate(task.variant):
                if v >= 0:
                    self._worth[task.pairs.start + p] = float(worth[scene.variants[k] + v])
            for v in range(len(task.size)):
                of_variant = np.flatnonzero(variant == v)
                wanted, here = int(chosen[of_variant].sum()), of_variant + task.pairs.start
                # Of equal copies those that are planned already, then spare ones.
                order = np.argsort(
                    -(2 * self._planned[here] + self.state.x[here].astype(int)), kind="stable"
                )
                self._planned[here] = 0
                self._planned[here[order[:wanted]]] = 1
        self._used[self._planned > 0] = self._closed
        self._keep_spare()

    def _keep_spare(self) -> None:
        """Run what is planned, and of what ran before what was planned last, as far as it fits."""
        layout, x = self.data.layout, self.state.x
        left, task = self._left(), layout.task[layout.model]
        spare = np.flatnonzero(layout.free & (x > 0) & (self._planned == 0))
        held = Counter(task[self._planned > 0].tolist())
        x[spare] = 0
        queue = sorted(spare.tolist(), key=lambda p: (-self._used[p], p))
        while queue:
            p = min(queue, key=lambda p: held[task[p]])
            queue.remove(p)
            if layout.size[p] <= left:
                left -= layout.size[p]
                held[task[p]] += 1
                x[p] = 1
        x[self._planned > 0] = 1

    def _scene(self) -> tuple[Scene, list[TaskHere]]:
        """Put together what is known; tasks about which a letter is missing are left out."""
        writer, tasks = SceneWriter(self._levels), []
        for task in self._tasks:
            spoken = [rho for rho in task.types if rho not in self._quiet]
            complete = all(
                (rho in self._above or self.data.crossings[rho].upstream is None)
                and rho in self._next
                and rho not in self._unordered
                for rho in spoken
            )
            if complete and spoken:
                rooms = rooms_above([self._above[rho] for rho in spoken if rho in self._above])
                routes = {}
                for rho in spoken:
                    below = self._below[rho].running if rho in self._below else ()
                    above = self._above[rho].running if rho in self._above else ()
                    further = [
                        (v, p, one[2], rooms[v, p, level], 0.0)
                        for (v, p, level), one in zip(levels_of(above), above, strict=True)
                    ]
                    routes[rho] = (self._next[rho], below, further)
                writer.add(task, self._here(task), routes)
                tasks.append(task)
        return writer.scene(), tasks

    def _here(self, task: TaskHere) -> Allocation:
        return self._planned[task.pairs] | (self.data.layout.pinned[task.pairs] > 0)

    def _needs_nobody(self) -> bool:
        """Tell whether no allocation here or further up would save as much as a move must."""
        counts = {rho: n + _CHANCE * math.sqrt(n) for rho, n in self._next.items()}
        floors = [self._floor[rho] for rho in self._entering]
        if not min(floors, default=math.inf) > -math.inf:
            return False
        now, ideal = SceneWriter(self._levels), SceneWriter(self._levels)
        served = set()
        for task in self._tasks:
            own = [rho for rho in task.types if rho in counts]
            served.update(own)
            x = self._here(task)
            # Nothing above is sure to have room; in the ideal case all of it has.
            none = {rho: (counts[rho], (), [(-1, 0, 1e12, math.inf, 0.0)]) for rho in own}
            best = {
                rho: (counts[rho], (), [(-1, rho, self._floor[rho], math.inf, 0.0)]) for rho in own
            }
            now.add(task, x, none)
            ideal.add(task, np.ones_like(x), best)
        if any(counts[rho] > 0.0 for rho in self._entering if rho not in served):
            return False
        least = self._least * sum(self._next.values())
        return cost_of(now.scene()) - cost_of(ideal.scene()) <= least


def _down(crossing: Crossing, message: Message) -> list[Letter]:
    below = crossing.downstream
    return [] if below is None else [Letter(below, encode(message))]


def _up(crossing: Crossing, message: Message) -> list[Letter]:
    above = crossing.upstream
    return [] if above is None else [Letter(above, encode(message))]
