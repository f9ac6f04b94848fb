"""Oracles of placement: networks by hand, and the paper's formulas word for word, slowly."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from inferway.network.delivery import DeliveryNetwork
from inferway.network.options import Models, Options, Pairs, Paths, Requests

# [SiSalem23], Table II: accuracy in percent, MiB, frames per second on a Titan RTX and a GTX 980.
YOLO = (
    (65.7, 1577, 41.7, 14.2),
    (64.9, 1185, 55.5, 18.9),
    (62.8, 1009, 73.8, 25.1),
    (57.3, 805, 100, 34.1),
    (55.1, 395, 209, 71.0),
    (51.4, 195, 329, 112),
    (50.9, 156, 371, 126),
    (49.0, 112, 488, 166),
    (38.7, 187, 888, 302),
    (34.4, 160, 1272, 433),
)


class Variant(NamedTuple):
    """One variant: accuracy in 0..1, bytes, answers per second by hardware."""

    accuracy: float
    size: float
    rate_per_s: tuple[float, ...]


class Node(NamedTuple):
    """One node; a path that ends at it makes it a repository."""

    budget: float
    hardware: int = 0


def assemble(
    nodes: list[Node],
    paths: list[tuple[list[int], list[float]]],
    types: list[tuple[int, int, float]],
    variants: list[list[Variant]],
    *,
    copies: int = 1,
    alpha: float = 1.0,
    slot_s: float = 60.0,
    tiers: list[int] | None = None,
    pinned: frozenset[tuple[int, int]] = frozenset(),
    every_pair: bool = False,
) -> DeliveryNetwork:
    """Put a network together from paths (nodes, RTTs in ms) and types (task, path, requests).

    `variants` lists each task's; `pinned` holds (node, model) beside the repositories'.
    """
    models = [
        (task, v, copy)
        for task, own in enumerate(variants)
        for v in range(len(own))
        for copy in range(copies)
    ]
    per_task = [
        [m for m, (task, _, _) in enumerate(models) if task == i] for i in range(len(variants))
    ]
    named = {
        key: k
        for k, key in enumerate((i, v) for i, own in enumerate(variants) for v in range(len(own)))
    }
    repositories = {path[-1] for path, _ in paths}

    def delay_ms(node: int, m: int) -> float:
        task, v, _ = models[m]
        return 1000.0 / variants[task][v].rate_per_s[nodes[node].hardware]

    def service(node: int, m: int) -> float:
        task, v, _ = models[m]
        return delay_ms(node, m) + alpha * 100 * (1 - variants[task][v].accuracy)

    chosen: dict[tuple[int, int], float] = {}  # (repository, model) -> demand
    for task, path, requests in types:
        node = paths[path][0][-1]
        best = min((service(node, m), m) for m in per_task[task])[1]
        chosen[node, best] = chosen.get((node, best), 0.0) + requests

    ranked = []
    for task, path, _ in types:
        route, rtt = paths[path]
        entries = []
        for hop, (node, ms) in enumerate(zip(route, rtt, strict=True)):
            for m in per_task[task]:
                fixed = (node, m) in chosen
                if node in repositories and not fixed:
                    continue
                entries.append(
                    (ms + service(node, m), hop, m, node, fixed and hop == len(route) - 1)
                )
        entries.sort()
        last = next(k for k, entry in enumerate(entries) if entry[4])
        limit = entries[last][0]
        ranked.append([e for e in entries[:last] if e[0] < limit] + [entries[last]])

    useful = sorted(
        {(e[3], e[2]) for options in ranked for e in options}
        | {pair for pair in pinned if pair[0] not in repositories}
        | {
            (v, m)
            for v in range(len(nodes))
            for m in range(len(models))
            if every_pair and v not in repositories
        }
    )
    index = {pair: p for p, pair in enumerate(useful)}
    size = np.array([variants[models[m][0]][models[m][1]].size for m in range(len(models))])
    capacity = [np.floor(slot_s * 1000.0 / delay_ms(v, m) + 1e-9) for v, m in useful]
    pins = []
    for p, pair in enumerate(useful):
        if pair in chosen:
            pins.append(max(1.0, np.ceil(chosen[pair] / capacity[p])))
        else:
            pins.append(float(pair in pinned))
    first = np.searchsorted([v for v, _ in useful], np.arange(len(nodes) + 1))
    rest = np.array(
        [
            size.sum() - sum(size[m] for v, m in useful if v == node)
            if node not in repositories
            else 0.0
            for node in range(len(nodes))
        ]
    )
    flat = [entry for options in ranked for entry in options]
    totals: dict[int, float] = {}
    for task, _, requests in types:
        totals[task] = totals.get(task, 0.0) + requests
    return DeliveryNetwork(
        kinds=("cpu",),
        nodes=tuple(f"n{v}" for v in range(len(nodes))),
        tiers=tuple(f"t{k}" for k in range(max(tiers or [0]) + 1)),
        tier=np.array(tiers or [0] * len(nodes), np.int32),
        budget=np.array([np.inf if v in repositories else n.budget for v, n in enumerate(nodes)]),
        rest=rest,
        repository=np.array([v in repositories for v in range(len(nodes))]),
        tasks=tuple(f"task-{i}" for i in range(len(variants))),
        variants=tuple(f"v{i}.{v}" for i, v in named),
        models=Models(
            task=np.array([m[0] for m in models], np.int32),
            variant=np.array([named[m[0], m[1]] for m in models], np.int32),
            copy=np.array([m[2] for m in models], np.int32),
            accuracy=np.array([variants[m[0]][m[1]].accuracy for m in models]),
            first=np.searchsorted([m[0] for m in models], np.arange(len(variants) + 1)),
        ),
        paths=Paths(
            first=np.cumsum([0] + [len(route) for route, _ in paths]),
            node=np.array([v for route, _ in paths for v in route], np.int32),
            rtt_s=np.array([ms / 1000 for _, rtt in paths for ms in rtt]),
        ),
        requests=Requests(
            task=np.array([t[0] for t in types], np.int32),
            path=np.array([t[1] for t in types], np.int32),
            share=np.array([t[2] / totals[t[0]] if totals[t[0]] else 0.0 for t in types]),
            peak=np.array([float(t[2]) for t in types]),
        ),
        pairs=Pairs(
            first=first.astype(np.int64),
            node=np.array([v for v, _ in useful], np.int32),
            model=np.array([m for _, m in useful], np.int32),
            size=np.array([size[m] for _, m in useful]),
            capacity=np.array(capacity),
            pinned=np.array(pins),
        ),
        options=Options(
            first=np.cumsum([0] + [len(options) for options in ranked]),
            node=np.array([e[3] for e in flat], np.int32),
            model=np.array([e[2] for e in flat], np.int32),
            pair=np.array([index[e[3], e[2]] for e in flat], np.int32),
            hop=np.array([e[1] for e in flat], np.int16),
            cost=np.array([e[0] for e in flat]),
            repository=np.array([e[4] for e in flat]),
        ),
        delay_s=np.array([[1 / rate for rate in variants[i][v].rate_per_s] for i, v in named]),
        hardware=np.array([n.hardware for n in nodes], np.int32),
        slot_s=slot_s,
    )


def yolo(tasks: int) -> list[list[Variant]]:
    """Table II once per task, sizes in bytes."""
    return [[Variant(a / 100, mb * 2.0**20, (fast, slow)) for a, mb, fast, slow in YOLO]] * tasks


def topology_i(alpha: float = 1.0, rate_per_s: float = 7500.0, seed: int = 1) -> DeliveryNetwork:
    """Topology I of [SiSalem23] with its 20 tasks, each entering at two random base stations."""
    gib = 2.0**30
    nodes = [Node(np.inf, 0), Node(16 * gib, 0)]
    nodes += [Node(12 * gib, 1)] * 2 + [Node(8 * gib, 1)] * 8 + [Node(4 * gib, 1)] * 24
    tiers = [0, 1, 2, 2] + [3] * 8 + [4] * 24
    rng = np.random.default_rng(seed)
    demand = zipf(20) * rate_per_s * 60
    paths, types = [], []
    for task in range(20):
        for base in rng.choice(24, 2, replace=False):
            office = base // 3
            route = [12 + int(base), 4 + int(office), 2 + int(office) // 4, 1, 0]
            types.append((task, len(paths), demand.max() / 2))
            paths.append((route, [0.0, 6.0, 12.0, 27.0, 67.0]))
    return assemble(nodes, paths, types, yolo(20), copies=3, alpha=alpha, tiers=tiers)


def zipf(n: int, exponent: float = 1.2) -> np.ndarray:
    """Popularity of each of n tasks."""
    weight = (np.arange(n) + 1.0) ** -exponent
    return weight / weight.sum()


def batches_i(
    network: DeliveryNetwork, slots: int, *, sliding: bool, rate_per_s: float = 7500.0
) -> np.ndarray:
    """(T, R) requests per slot under the paper's fixed or sliding profile, as counts."""
    popularity = zipf(20)
    rows = []
    for t in range(slots):
        shift = 5 * (t // 60) if sliding else 0
        share = np.array([popularity[(i + shift) % 20] for i in range(20)])
        rows.append(
            np.rint(share[network.requests.task] * network.requests.share * rate_per_s * 60)
        )
    return np.array(rows)


def random_network(
    seed: int,
    *,
    nodes: int = 4,
    tasks: int = 2,
    types: int = 4,
    copies: int = 1,
    variants: int = 3,
    pins: bool = False,
    every_pair: bool = False,
) -> DeliveryNetwork:
    """A small tree whose root is the repository, with everything drawn at random."""
    rng = np.random.default_rng(seed)
    parent = [0] + [int(rng.integers(0, v)) for v in range(1, nodes)]
    rtt = np.round(rng.uniform(1, 20, nodes), 2)
    hardware = [int(rng.integers(0, 2)) for _ in range(nodes)]
    catalog = [
        [
            Variant(
                round(float(rng.uniform(0.3, 0.9)), 3),
                float(rng.integers(1, 6)),
                tuple(np.round(rng.uniform(20, 400, 2), 1)),
            )
            for _ in range(variants)
        ]
        for _ in range(tasks)
    ]
    total = copies * sum(v.size for own in catalog for v in own)
    made = [Node(float(rng.uniform(0.1, 0.7) * total), h) for h in hardware]
    paths, wanted = [], []
    for k in range(types):
        v = int(rng.integers(1, nodes))
        route, away = [v], [0.0]
        while v:
            away.append(away[-1] + rtt[v])
            v = parent[v]
            route.append(v)
        paths.append((route, away))
        wanted.append((k % tasks, k, float(rng.integers(1, 60))))
    pinned = frozenset({(1, 0)}) if pins else frozenset()
    if pins:
        made[1] = Node(made[1].budget + catalog[0][0].size, made[1].hardware)
    return assemble(
        made,
        paths,
        wanted,
        catalog,
        copies=copies,
        alpha=float(rng.uniform(0.2, 3)),
        slot_s=0.1,
        pinned=pinned,
        every_pair=every_pair,
    )


def places(network: DeliveryNetwork) -> np.ndarray:
    """(P,) how many instances each pair stands for when it is allocated."""
    return np.maximum(network.pairs.pinned, 1.0)


def available(network: DeliveryNetwork, requests: np.ndarray, load: np.ndarray) -> np.ndarray:
    """Eq. 7, (O,)."""
    options, pairs = network.options, network.pairs
    found = np.zeros(len(options.pair))
    for rho, r in enumerate(requests):
        for o in range(options.first[rho], options.first[rho + 1]):
            p = options.pair[o]
            others = sum(load[q] for q in np.flatnonzero(options.pair == p) if q != o)
            found[o] = max(0.0, min(pairs.capacity[p] * places(network)[p] - others, r))
    return found


def cost(
    network: DeliveryNetwork, requests: np.ndarray, capacity: np.ndarray, x: np.ndarray
) -> float:
    """Eq. 12 with potential available capacities (O,) and an allocation (P,)."""
    options = network.options
    total = 0.0
    for rho, r in enumerate(requests):
        before = 0.0
        for o in range(options.first[rho], options.first[rho + 1]):
            z = capacity[o] * x[options.pair[o]]
            if before < r:
                total += options.cost[o] * min(r - before, z)
            before += z
    return total


def gain(
    network: DeliveryNetwork, requests: np.ndarray, capacity: np.ndarray, x: np.ndarray
) -> float:
    """Eq. 16."""
    options = network.options
    omega = network.pairs.pinned > 0
    total = 0.0
    for rho, r in enumerate(requests):
        with_x = with_omega = 0.0
        for o in range(options.first[rho], options.first[rho + 1] - 1):
            with_x += capacity[o] * x[options.pair[o]]
            with_omega += capacity[o] * omega[options.pair[o]]
            step = options.cost[o + 1] - options.cost[o]
            total += step * (min(r, with_x) - min(r, with_omega))
    return total


def serve_by_small_steps(
    network: DeliveryNetwork, requests: np.ndarray, x: np.ndarray, steps: int
) -> np.ndarray:
    """(O,) load when all types' requests come evenly over the slot, a little of each in turn."""
    options, pairs = network.options, network.pairs
    room = pairs.capacity * np.where(pairs.pinned > 0, pairs.pinned, x)
    load = np.zeros(len(options.pair))
    for _ in range(steps):
        for rho, r in enumerate(requests):
            left = r / steps
            for o in range(options.first[rho], options.first[rho + 1]):
                p = options.pair[o]
                taken = left if o == options.first[rho + 1] - 1 else min(left, room[p])
                room[p] -= taken
                load[o] += taken
                left -= taken
    return load


def batch(network: DeliveryNetwork, seed: int) -> np.ndarray:
    """(R,) requests that the repositories can serve."""
    return np.floor(
        network.requests.peak
        * np.random.default_rng(seed).uniform(0, 1, len(network.requests.peak))
    )


def some_allocation(network: DeliveryNetwork, seed: int, share: float = 0.5) -> np.ndarray:
    """(P,) pinned pairs and a random part of the others, whatever the budgets."""
    drawn = np.random.default_rng(seed).random(len(network.pairs.node)) < share
    return (drawn | (network.pairs.pinned > 0)).astype(np.uint8)


def feasible(network: DeliveryNetwork) -> list[np.ndarray]:
    """All allocations that fit the budgets, pinned pairs included in each."""
    pairs = network.pairs
    per_node = []
    for v in range(len(network.nodes)):
        own = range(pairs.first[v], pairs.first[v + 1])
        rows = []
        for bits in itertools.product((0, 1), repeat=len(own)):
            fits = (
                sum(b * pairs.size[p] for b, p in zip(bits, own, strict=True)) <= network.budget[v]
            )
            keeps = all(b or not pairs.pinned[p] for b, p in zip(bits, own, strict=True))
            fixed = all(not b or pairs.pinned[p] for b, p in zip(bits, own, strict=True))
            if fits and keeps and (fixed or not network.repository[v]):
                rows.append(bits)
        per_node.append(rows)
    return [np.array(sum(choice, ())) for choice in itertools.product(*per_node)]
