"""A node's scene for the local search, put together from what it has and what it was told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from inferway.placement.contract import Allocation, Float
from inferway.placement.infida import room_at
from inferway.placement.layout import Crossing, NodeData
from inferway.placement.letters import Above
from inferway.placement.search import Scene
from inferway.placement.waiting import MANY, PRICES, levels

# Node, its pair, cost, room, and what the node would gain if the copy were gone. A copy has an
# entry for each level of its room, in their order.
Running = tuple[int, int, float, float, float]
Route = tuple[float, Sequence[Running], Sequence[Running]]  # Forecast, what runs below and above
Level = tuple[int, int, int]  # Node, its pair, and which level of its room

_UNSERVED: Final = 1e12  # Least cost of a request for which nobody has room
_NOWHERE: Final = -2  # The node that stands for that


class TaskHere(NamedTuple):
    """A task at a node that may hold copies of it."""

    types: tuple[int, ...]  # That cross the node
    pairs: slice  # Of the node's pairs
    variant: tuple[int, ...]  # Of each pair, counted from 0; -1 where it is not to be decided
    kind: tuple[int, ...]  # Of each pair, the first pair of its variant, counted from 0
    size: tuple[float, ...]  # Bytes of a copy of each variant
    room: tuple[float, ...]  # Of each pair
    options: dict[int, list[tuple[float, int]]]  # By type: cost and pair, counted from 0


class Levels(NamedTuple):
    """Levels of a node's own copies; see `inferway.placement.waiting`."""

    # (n, L) parts of a copy's room where 1, 2, ..., n or more copies of its variant run
    share: Float
    price: Float  # (p, L) what waiting adds to the cost of each pair at each level


class SceneWriter:
    """Collects tasks into a `Scene`; without levels, a request that has room waits for nothing."""

    def __init__(self, levels: Levels | None = None) -> None:
        self._levels = Levels(np.ones((1, 1)), np.zeros((0, 1))) if levels is None else levels
        self._ends: list[tuple[int, int, int, int, int]] = [(0, 0, 0, 0, 0)]
        self._first: list[int] = []
        self._requests: list[float] = []
        self._unit: list[int] = []
        self._cost: list[float] = []
        self._holder: list[int] = []
        self._level: list[int] = []
        self._room: list[float] = []
        self._kind: list[int] = []
        self._credit: list[float] = []
        self._variant: list[int] = []
        self._size: list[float] = []
        self._x: list[int] = []

    def add(self, task: TaskHere, x: Allocation, routes: Mapping[int, Route]) -> None:
        """Add a task, (k,) what of it runs here, and for each type what runs around."""
        begin, (share, price) = len(self._cost), self._levels
        deep, copies = share.shape[1], range(len(task.room))
        around = _Around(
            holder=[k for k in copies for _ in range(deep)],
            room=[room for room in task.room for _ in range(deep)],
            credit=[0.0] * len(task.room),
        )
        prices = price[task.pairs].tolist() if deep > 1 else [[0.0]] * len(task.room)
        for rho, (requests, below, above) in routes.items():
            self._first.append(len(self._cost) - begin)
            self._requests.append(requests)
            entries = around.numbered(below)
            entries += [
                (cost + more, k * deep + level)
                for cost, k in task.options.get(rho, ())
                for level, more in enumerate(prices[k])
            ]
            entries += around.numbered(above)
            # Of equal costs, the one nearer to the entry: sorting is stable.
            entries.sort(key=lambda one: one[0])
            # The rule of serving relies on a last option that takes all, whatever letters say.
            last = max(_UNSERVED, entries[-1][0] if entries else 0.0)
            entries += around.numbered([(_NOWHERE, 0, last, math.inf, 0.0)])
            self._cost += [cost for cost, _ in entries]
            self._unit += [place for _, place in entries]
        self._first.append(len(self._cost) - begin)
        others = len(around.credit) - len(task.room)
        self._holder += around.holder
        self._level += [level for _ in copies for level in (range(deep) if deep > 1 else (-1,))]
        self._level += [-1] * (len(around.holder) - deep * len(task.room))
        self._room += around.room
        self._kind += [*task.kind, *[-1] * others]
        self._credit += around.credit
        self._variant += [*task.variant, *[-1] * others]
        self._x += [*x.tolist(), *[1] * others]
        self._size += task.size
        lists = self._requests, self._cost, self._variant, self._room, self._size
        self._ends.append(tuple(map(len, lists)))  # type: ignore[arg-type]

    def scene(self) -> Scene:
        """Return all of it as arrays."""
        types, options, instances, units, variants = np.array(self._ends, np.int64).T.copy()
        return Scene(
            types,
            options,
            instances,
            units,
            variants,
            np.array(self._first, np.int64),
            np.array(self._requests, np.float64),
            np.array(self._unit, np.int32),
            np.array(self._cost, np.float64),
            np.array(self._holder, np.int32),
            np.array(self._level, np.int32),
            np.array(self._room, np.float64),
            np.zeros(len(self._room)),
            self._levels.share,
            np.array(self._kind, np.int32),
            np.array(self._variant, np.int32),
            np.array(self._size, np.float64),
            np.zeros(len(self._ends) - 1, np.bool_),
            np.array(self._credit, np.float64),
            np.array(self._x, np.uint8),
        )


class _Around:
    """Instances of a task and their levels of room: the node's own, and after them all others."""

    def __init__(self, holder: list[int], room: list[float], credit: list[float]) -> None:
        self.holder, self.room, self.credit = holder, room, credit
        self._instance: dict[tuple[int, int], int] = {}
        self._unit: dict[tuple[int, int, int], int] = {}

    def numbered(self, running: Sequence[Running]) -> list[tuple[float, int]]:
        """Return the costs of levels elsewhere and their numbers, which they get here."""
        entries = []
        for (node, pair, level), (*_, cost, free, value) in zip(
            levels_of(running), running, strict=True
        ):
            instance = self._instance.setdefault((node, pair), len(self.credit))
            if instance == len(self.credit):
                self.credit.append(value)
            unit = self._unit.setdefault((node, pair, level), len(self.room))
            if unit == len(self.room):
                self.room.append(free)
                self.holder.append(instance)
            entries.append((cost, unit))
        return entries


def levels_of(running: Sequence[tuple[int, int, float, float, float]]) -> list[Level]:
    """Tell node, pair and level of each entry: which of its copy's it is, counted from 0."""
    seen: Counter[tuple[int, int]] = Counter()
    found = []
    for node, pair, *_ in running:
        found.append((node, pair, seen[node, pair]))
        seen[node, pair] += 1
    return found


def rooms_above(heard: Sequence[Above]) -> dict[Level, float]:
    """Room of instances further up for some types: what they took themselves, and what was idle."""
    rooms: dict[Level, float] = {}
    for message in heard:
        for level, (*_, load, idle) in zip(
            levels_of(message.running), message.running, strict=True
        ):
            rooms[level] = rooms.get(level, idle) + load
    return rooms


def levels_at(data: NodeData, slot_ms: float) -> Levels:
    """Cut the room of a node's copies into levels, in slots of so many ms."""
    layout = data.layout
    named = Counter(zip(data.variants, layout.task[layout.model].tolist(), strict=True))
    most = max(named.values(), default=1)
    most = min(max(most, math.ceil(layout.pinned.max(initial=1.0))), MANY)
    with np.errstate(divide="ignore"):
        service_ms = np.where(layout.capacity > 0, slot_ms / layout.capacity, 0.0)
    return Levels(levels(most), service_ms[:, None] * np.array(PRICES))


def tasks_at(data: NodeData) -> list[TaskHere]:
    """List the tasks of which placement may put copies on a node."""
    layout = data.layout
    by_task: dict[int, list[Crossing]] = {}
    for crossing in data.crossings.values():
        by_task.setdefault(crossing.task, []).append(crossing)
    tasks = []
    owner = layout.task[layout.model]
    for task, crossings in sorted(by_task.items()):
        here = np.flatnonzero(owner == task)
        if not layout.free[here].any():
            continue
        start, end = int(here[0]), int(here[-1]) + 1
        names: dict[str, int] = {}
        sizes: list[float] = []
        variant = []
        kind = tuple(
            data.variants.index(data.variants[p], start) - start for p in range(start, end)
        )
        for p in range(start, end):
            if not layout.free[p]:
                variant.append(-1)
                continue
            if data.variants[p] not in names:
                names[data.variants[p]] = len(sizes)
                sizes.append(float(layout.size[p]))
            variant.append(names[data.variants[p]])
        tasks.append(
            TaskHere(
                tuple(one.type for one in crossings),
                slice(start, end),
                tuple(variant),
                kind,
                tuple(sizes),
                tuple(room_at(layout, p) for p in range(start, end)),
                _options(crossings, start),
            )
        )
    return tasks


def with_costs_of(task: TaskHere, data: NodeData) -> TaskHere:
    """Return a task at a node with the costs that its options have now."""
    crossings = [data.crossings[rho] for rho in task.types]
    return task._replace(options=_options(crossings, task.pairs.start))


def _options(crossings: Sequence[Crossing], start: int) -> dict[int, list[tuple[float, int]]]:
    return {
        one.type: [
            (float(cost), int(p) - start) for p, cost in zip(one.pair, one.cost, strict=True)
        ]
        for one in crossings
    }
