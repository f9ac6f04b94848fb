"""Oracles: slow, plain, obviously right. The fast code is compared with them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inferway.dispatch import Dispatcher
from inferway.site import Fleet


def least_response_time(fleet: Fleet, target: float, rate: float) -> float:
    """The LP of [Anonymous], eq. 3, by trying every vertex of its polytope; inf where infeasible.

    A vertex has K active constraints: sum(p) = 1, and K - 1 of p_k = 0, p_k = room_k, p.a = target.
    """
    classes = len(fleet.rate)
    room = fleet.capacity / rate
    rows = [(np.eye(classes)[k], 0.0) for k in range(classes)]
    rows += [(np.eye(classes)[k], room[k]) for k in range(classes)]
    rows.append((fleet.accuracy, target))
    best = math.inf
    for active in itertools.combinations(rows, classes - 1):
        matrix = np.array([np.ones(classes), *(row for row, _ in active)])
        if abs(np.linalg.det(matrix)) < 1e-12:
            continue
        p = np.linalg.solve(matrix, np.array([1.0, *(value for _, value in active)]))
        inside = (p >= -1e-10).all() and (p <= room + 1e-10).all()
        if inside and p @ fleet.accuracy >= target - 1e-10:
            best = min(best, float(p @ (1 / fleet.rate)))
    return best


def least_time_asking_twice(fleet: Fleet, target: float, rate: float) -> float:
    """The LP with escalation by trying every vertex of its polytope; inf where infeasible.

    Variables are what each class is asked first, and of each class and bin what each other one is
    asked next, gaining or not.
    """
    tables = fleet.confidence
    assert tables is not None
    classes, bins = tables.mass.shape
    asked = [(k, None, k) for k in range(classes)]
    again = [
        (i, b, j) for i in range(classes) for b in range(bins) for j in range(classes) if i != j
    ]
    columns = [*asked, *again]
    cost = np.array([1 / fleet.rate[j] for *_, j in columns])
    worth = np.array(
        [
            tables.expected[i, b, j] - tables.expected[i, b, i]
            if b is not None
            else tables.expected_accuracy()[i]
            for i, b, j in columns
        ]
    )
    # Rows that are at most their limit.
    rows = [(-np.eye(len(columns))[at], 0.0) for at in range(len(columns))]
    rows.append((-worth, -target))
    for k in range(classes):
        runs = np.array([float(j == k) for *_, j in columns])
        rows.append((runs, fleet.capacity[k] / rate))
        for b in range(bins):
            row = np.array([float((i, bin_) == (k, b)) for i, bin_, _ in columns])
            row[k] = -tables.mass[k, b]
            rows.append((row, 0.0))
    one = np.array([float(b is None) for _, b, _ in columns])
    left = np.array([row for row, _ in rows])
    right = np.array([limit for _, limit in rows])
    active = list(itertools.combinations(range(len(rows)), len(columns) - 1))
    chosen = np.array(active, np.int64)
    matrices = np.concatenate(
        [np.broadcast_to(one, (len(chosen), 1, len(columns))), left[chosen]], axis=1
    )
    limits = np.concatenate([np.ones((len(chosen), 1)), right[chosen]], axis=1)
    proper = np.abs(np.linalg.det(matrices)) > 1e-12
    points = np.linalg.solve(matrices[proper], limits[proper][:, :, None])[:, :, 0]
    inside = (points @ left.T <= right + 1e-9).all(axis=1)
    return float((points[inside] @ cost).min(initial=math.inf))


def tad_op_class(
    fleet: Fleet, target: float, idle: set[int], busy: set[int], balance: float
) -> int | None:
    """Class that Algorithm 2 of [Anonymous] chooses while some server is idle, read literally."""
    a, mu = fleet.accuracy, fleet.rate
    found: list[tuple[float, dict[int, float]]]
    found = [(1 / mu[k], {k: 1.0}) for k in range(len(a)) if a[k] >= target]
    for i, j in itertools.combinations(range(len(a)), 2):
        if a[i] == a[j]:
            continue
        q = {i: (a[j] - target) / (a[j] - a[i]), j: (target - a[i]) / (a[j] - a[i])}
        cost = q[i] / mu[i] + q[j] / mu[j]
        if cost > 0:
            found.append((cost, q))
    for _, q in sorted(found, key=lambda entry: entry[0]):
        routable = all(
            (entry > 0 and k in idle) or (entry < 0 and k in busy) for k, entry in q.items()
        )
        if not routable:
            continue
        if len(q) == 1 or min(q.values()) < 0:
            return next(k for k, entry in q.items() if entry > 0)
        low, high = sorted(q, key=lambda k: a[k])
        return low if balance > 0 else high
    return max(idle) if idle else None


@dataclass
class NaiveSite:
    """A site as lists of waiting requests; everything else is worked out when asked."""

    fleet: Fleet
    places: int
    queues: list[deque[tuple[float, int]]] = field(init=False)
    healthy: list[bool] = field(init=False)
    balance: float = 0.0

    def __post_init__(self) -> None:
        self.queues = [deque() for _ in range(self.fleet.servers)]
        self.healthy = [True] * self.fleet.servers

    def class_of(self, server: int) -> int:
        return int(np.searchsorted(self.fleet.first, server, side="right") - 1)

    def idle(self, k: int) -> set[int]:
        low, high = self.fleet.first[k : k + 2]
        return {s for s in range(low, high) if not self.queues[s] and self.healthy[s]}

    def busy(self, k: int) -> set[int]:
        low, high = self.fleet.first[k : k + 2]
        return {s for s in range(low, high) if self.queues[s]}

    def is_open(self, server: int) -> bool:
        return self.healthy[server] and len(self.queues[server]) < self.places


@dataclass
class Run:
    """What a simulated run gave."""

    response_s: NDArray[np.float64]
    accuracy: float
    shares: NDArray[np.float64]
    rejected: int


def simulate(
    dispatcher: Dispatcher,
    rate: float,
    requests: int,
    seed: int,
    service: Callable[[np.random.Generator, float], float],
) -> Run:
    """First come, first served, Poisson arrivals; one event at a time from a heap."""
    generator = np.random.default_rng(seed)
    fleet = dispatcher.fleet
    events: list[tuple[float, int, int]] = [(generator.exponential(1 / rate), 0, -1)]
    waiting: list[deque[float]] = [deque() for _ in range(fleet.servers)]
    served = np.zeros(len(fleet.rate))
    response, arrived, rejected = [], 0, 0

    def start(server: int, now: float) -> None:
        mean = 1 / float(dispatcher.site.rate[dispatcher.site.server_class[server]])
        heapq.heappush(events, (now + service(generator, mean), 1, server))

    while events:
        now, kind, server = heapq.heappop(events)
        if kind == 0:
            arrived += 1
            if arrived < requests:
                heapq.heappush(events, (now + generator.exponential(1 / rate), 0, -1))
            server = dispatcher.arrive(now, int(generator.integers(-(2**63), 2**63)))
            if server < 0:
                rejected += 1
                continue
            served[dispatcher.site.server_class[server]] += 1
            waiting[server].append(now)
            if len(waiting[server]) == 1:
                start(server, now)
        else:
            response.append(now - waiting[server].popleft())
            dispatcher.finish(server, now, 0.0)
            if waiting[server]:
                start(server, now)
    accuracy = float(served @ fleet.accuracy / served.sum())
    return Run(np.array(response), accuracy, served / served.sum(), rejected)


def exponential(generator: np.random.Generator, mean: float) -> float:
    """A service time."""
    return float(generator.exponential(mean))


def deterministic(_generator: np.random.Generator, mean: float) -> float:
    """A service time."""
    return mean
