"""A node's scene for the local search, put together from what it has and what it was told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from inferway.placement.contract import Allocation
from inferway.placement.infida import room_at
from inferway.placement.layout import Crossing, NodeData
from inferway.placement.letters import Above
from inferway.placement.search import Scene

# Node, its pair, cost, room, and what the node would gain if the copy were gone.
Running = tuple[int, int, float, float, float]
Route = tuple[float, Sequence[Running], Sequence[Running]]  # Forecast, what runs below and above


_UNSERVED: Final = 1e12  # Least cost of a request for which nobody has room
_NOWHERE: Final = -2  # The node that stands for that


class TaskHere(NamedTuple):
    """A task at a node that may hold copies of it."""

    types: tuple[int, ...]  # That cross the node
    pairs: slice  # Of the node's pairs
    variant: tuple[int, ...]  # Of each pair, counted from 0; -1 where it is not to be decided
    size: tuple[float, ...]  # Bytes of a copy of each variant
    room: tuple[float, ...]  # Of each pair
    options: dict[int, list[tuple[float, int]]]  # By type: cost and pair, counted from 0


class SceneWriter:
    """Collects tasks into a `Scene`."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
        self._first: list[int] = []
        self._requests: list[float] = []
        self._instance: list[int] = []
        self._cost: list[float] = []
        self._room: list[float] = []
        self._credit: list[float] = []
        self._variant: list[int] = []
        self._size: list[float] = []
        self._x: list[int] = []

    def add(self, task: TaskHere, x: Allocation, routes: Mapping[int, Route]) -> None:
        """Add a task, (k,) what of it runs here, and for each type what runs around."""
        begin = len(self._cost)
        room, number = list(task.room), dict[tuple[int, int], int]()
        credit = [0.0] * len(room)
        for rho, (requests, below, above) in routes.items():
            self._first.append(len(self._cost) - begin)
            self._requests.append(requests)
            entries = [*_numbered(below, room, credit, number), *task.options.get(rho, ())]
            entries += _numbered(above, room, credit, number)
            # Of equal costs, the one nearer to the entry: sorting is stable.
            entries.sort(key=lambda one: one[0])
            # The rule of serving relies on a last option that takes all, whatever letters say.
            last = max(_UNSERVED, entries[-1][0] if entries else 0.0)
            entries += _numbered([(_NOWHERE, 0, last, math.inf, 0.0)], room, credit, number)
            self._cost += [cost for cost, _ in entries]
            self._instance += [place for _, place in entries]
        self._first.append(len(self._cost) - begin)
        others = len(room) - len(task.room)
        self._room += room
        self._credit += credit
        self._variant += [*task.variant, *[-1] * others]
        self._x += [*x.tolist(), *[1] * others]
        self._size += task.size
        self._ends.append((len(self._requests), len(self._cost), len(self._room), len(self._size)))

    def scene(self) -> Scene:
        """Return all of it as arrays."""
        types, options, instances, variants = np.array(self._ends, np.int64).T.copy()
        return Scene(
            types,
            options,
            instances,
            variants,
            np.array(self._first, np.int64),
            np.array(self._requests, np.float64),
            np.array(self._instance, np.int32),
            np.array(self._cost, np.float64),
            np.array(self._room, np.float64),
            np.zeros(len(self._room)),
            np.array(self._variant, np.int32),
            np.array(self._size, np.float64),
            np.zeros(len(self._ends) - 1, np.bool_),
            np.array(self._credit, np.float64),
            np.array(self._x, np.uint8),
        )


def _numbered(
    running: Sequence[Running],
    room: list[float],
    credit: list[float],
    number: dict[tuple[int, int], int],
) -> list[tuple[float, int]]:
    """Costs of instances elsewhere and their numbers among a task's, which they get here."""
    entries = []
    for node, pair, cost, free, value in running:
        place = number.setdefault((node, pair), len(room))
        if place == len(room):
            room.append(free)
            credit.append(value)
        entries.append((cost, place))
    return entries


def rooms_above(heard: Sequence[Above]) -> dict[tuple[int, int], float]:
    """Room of instances further up for some types: what they took themselves, and what was idle."""
    rooms: dict[tuple[int, int], float] = {}
    for message in heard:
        for node, pair, _, load, idle in message.running:
            rooms[node, pair] = rooms.get((node, pair), idle) + load
    return rooms


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
                tuple(sizes),
                tuple(room_at(layout, p) for p in range(start, end)),
                {
                    one.type: [
                        (float(cost), int(p) - start)
                        for p, cost in zip(one.pair, one.cost, strict=True)
                    ]
                    for one in crossings
                },
            )
        )
    return tasks
