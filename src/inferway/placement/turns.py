"""In which order the nodes of a network decide, where each is to know what those before it did."""

from __future__ import annotations

from inferway.network.delivery import DeliveryNetwork


class Turns:
    """In which order nodes decide.

    A node comes after those before it on each path through it. Where that goes round in a circle,
    it is broken at a node that turns from slot to slot.
    """

    def __init__(self, network: DeliveryNetwork) -> None:
        first, node = network.paths.first, network.paths.node
        self._paths = [
            node[first[path] : first[path + 1]].tolist() for path in network.requests.path
        ]
        self._before: list[set[int]] = [set() for _ in network.nodes]
        for path in self._paths:
            for place, here in enumerate(path):
                self._before[here].update(path[:place])
        self._straight = self._ranks(None) is not None

    def unordered(self, node: int, slot: int) -> frozenset[int]:
        """Tell which types come to a node through others whose turn in the slot is later."""
        if self._straight:
            return frozenset()
        rank = self._ranks(slot)
        assert rank is not None
        return frozenset(
            rho
            for rho, path in enumerate(self._paths)
            if node in path and any(rank[v] > rank[node] for v in path[: path.index(node)])
        )

    def _ranks(self, slot: int | None) -> list[int] | None:
        """Each node's place in the order; None where a circle is not to be broken."""
        count = len(self._before)
        rank, left = [0] * count, set(range(count))
        for place in range(count):
            ready = [v for v in left if not self._before[v] & left]
            if not ready:
                if slot is None:
                    return None
                # Of those that somebody waits for, the first from a place that moves on each slot.
                circle = set(left)
                while over := {v for v in circle if not any(v in self._before[w] for w in circle)}:
                    circle -= over
                ready = [min(circle, key=lambda v: (v - slot) % count)]
            chosen = min(ready)
            rank[chosen] = place
            left.remove(chosen)
        return rank
