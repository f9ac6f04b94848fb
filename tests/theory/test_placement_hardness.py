"""The reduction of Theorem B.1 ([SiSalem23], App. B): similarity caching as a delivery network.

In the proof every model may serve every task. Here a model belongs to one task, so all files are
variants of one, and each is asked for at an entry of its own, which has no memory.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from inferway.deployment import ServiceTime, Task, Variant
from inferway.network import (
    DeliveryNetwork,
    Level,
    Requests,
    delivery_network,
    shortest_paths,
    tree,
)
from inferway.network.options import Service
from inferway.placement import best_static
from inferway.placement.static import average_gain, horizon_of

FILES, SLOTS = 6, 15


def caching(seed: int) -> tuple[np.ndarray, float, np.ndarray]:
    """Draw approximation costs C_a by file and stand-in, the retrieval cost C_r, and requests."""
    rng = np.random.default_rng(seed)
    apart = rng.uniform(0.5, 12.0, (FILES, FILES))
    np.fill_diagonal(apart, 0.0)
    return apart, float(rng.uniform(4.0, 9.0)), rng.integers(0, FILES, SLOTS)


def overall(apart: np.ndarray, retrieval: float, asked: np.ndarray, held: tuple[int, ...]) -> float:
    """Sum eq. 37 over the requests."""
    return sum(min(retrieval, *(apart[r, s] for s in held)) for r in asked.tolist())


def reduced(apart: np.ndarray, retrieval: float, room: int) -> DeliveryNetwork:
    """Build the network: a repository, a cache for so many files, and an entry for each file."""
    topology = tree(
        [
            Level("repository", 1, hardware="any", repository=True),
            Level("cache", 1, 0.01, float(room), "any"),
            Level("entry", FILES, 0.01, 0.0, "any"),
        ]
    )
    entries = topology.of_tier("entry")
    files = {
        str(k): Variant(
            str(k),
            accuracy=0.5,
            size_bytes=1,
            service={"any": ServiceTime("deterministic", 1.0)},
        )
        for k in range(FILES)
    }
    place = {topology.nodes[v]: k for k, v in enumerate(entries.tolist())}

    def cost(service: Service) -> float:
        if len(service.nodes) == 1:
            return np.inf
        if len(service.nodes) == 3:
            return retrieval
        return float(apart[place[service.nodes[0]], int(service.variant)])

    requests = Requests(
        np.zeros(FILES, np.int32),
        np.arange(FILES, dtype=np.int32),
        np.ones(FILES),
        np.ones(FILES),
    )
    paths = shortest_paths(topology, entries, np.flatnonzero(topology.repository))
    task = Task("file", files, count=1, max_instances=1)
    return delivery_network([task], topology, paths, requests, cost=cost)


def holding(network: DeliveryNetwork, held: tuple[int, ...]) -> np.ndarray:
    """(P,) the allocation that stands for a cache with these files."""
    pairs, models = network.pairs, network.models
    files = [int(network.variants[v]) for v in models.variant[pairs.model]]
    cached = ~network.repository[pairs.node]
    return np.where(cached, np.isin(files, held), pairs.pinned > 0).astype(np.uint8)


@pytest.mark.parametrize("room", [1, 2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_allocation_is_the_best_similarity_cache(seed: int, room: int) -> None:
    apart, retrieval, asked = caching(seed)
    network = reduced(apart, retrieval, room)
    batches = np.eye(FILES)[asked]  # One request a slot
    horizon = horizon_of(network, batches)
    nothing = retrieval * SLOTS
    costs = {}
    for held in combinations(range(FILES), room):
        costs[held] = overall(apart, retrieval, asked, held)
        # Eq. 46: the aggregate cost of eq. 12 is that of the cache.
        gained = SLOTS * average_gain(network, horizon, holding(network, held))
        assert nothing - gained == pytest.approx(costs[held])
    found = best_static(network, batches)
    assert found.proven
    assert nothing - SLOTS * found.gain == pytest.approx(min(costs.values()))
    chosen = SLOTS * average_gain(network, horizon, found.allocation)
    assert nothing - chosen == pytest.approx(min(costs.values()))
