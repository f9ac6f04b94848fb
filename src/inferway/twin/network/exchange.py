"""What nodes tell each other that they can serve, and when they hear it.

As live: a node goes by the offers of its neighbor towards the repository, passes on what it cannot
beat, tells changes at once and everything now and then. A letter takes half a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from inferway.dispatch.offers import Offer, Own, passed_on, received
from inferway.network.node import Way, way_of
from inferway.twin.network.terrain import Terrain

REFRESH_S: Final = 2.0
"""Offers are told again after so long, changed or not."""
LOOK_S: Final = 1.0
"""A node looks so often at what it can spare."""
_WORTH: Final = 0.2
"""Spare rates that change by a smaller part are told with the next refresh."""

After = Callable[[float, Callable[[Any], None], Any], None]
"""In so many seconds, call this with that."""


class OfferExchange:
    """The offers of all nodes.

    Parameters
    ----------
    terrain
        The nodes.
    own
        What a node runs now, as it offers it.
    changed
        Told a node and the tasks for which what it goes by has changed.
    after
        The engine's clock.
    """

    def __init__(
        self,
        terrain: Terrain,
        own: Callable[[int], list[Own]],
        changed: Callable[[int, set[str]], None],
        after: After,
    ) -> None:
        self._terrain, self._own, self._changed, self._after = terrain, own, changed, after
        count = len(terrain.nodes)
        self.heard: list[dict[str, list[Offer]]] = [{} for _ in range(count)]
        """What each node goes by, by task."""
        self._flat: list[list[Offer]] = [[] for _ in range(count)]
        self._told: list[dict[int, list[Offer]]] = [{} for _ in range(count)]
        self._told_s = [0.0] * count
        self.letters = 0
        """Told so far."""

    def begin(self) -> None:
        """All nodes know all offers, as after some time without changes."""
        for _ in self._terrain.nodes:
            for node in range(len(self._terrain.nodes)):
                for neighbor, rtt_s, offers in self._letters(node):
                    self._take(neighbor, self._read(neighbor, node, rtt_s, offers))
                    self._told[node][neighbor] = offers

    def tell(self, node: int, now_s: float) -> None:
        """Tell the neighbors of a node what has changed, or everything where that is due."""
        due = now_s - self._told_s[node] > 0.9 * REFRESH_S
        for neighbor, rtt_s, offers in self._letters(node):
            if due or _differ(self._told[node].get(neighbor, ()), offers):
                self._told[node][neighbor] = offers
                self._told_s[node] = now_s
                self.letters += 1
                letter = (neighbor, self._read(neighbor, node, rtt_s, offers))
                self._after(0.5 * rtt_s, self._hear, letter)

    def _letters(self, node: int) -> list[tuple[int, float, list[Offer]]]:
        ground = self._terrain.nodes[node]
        if not ground.downstream:
            return []
        own, names = self._own(node), self._terrain.network.nodes
        return [
            (w, rtt_s, passed_on(ground.name, own, self._flat[node], neighbor=names[w]))
            for w, rtt_s in ground.downstream
        ]

    def _read(self, reader: int, teller: int, rtt_s: float, offers: list[Offer]) -> list[Offer]:
        names = self._terrain.network.nodes
        return [received(one, names[teller], rtt_s, me=names[reader]) for one in offers]

    def _hear(self, letter: tuple[int, list[Offer]]) -> None:
        node, offers = letter
        before, known = self.heard[node], self._flat[node]
        self._take(node, offers)
        after = self.heard[node]
        tasks = {
            task
            for task in before.keys() | after.keys()
            if _ways(before.get(task, ())) != _ways(after.get(task, ()))
        }
        if tasks:
            self._changed(node, tasks)
        if _differ(known, offers):
            self._after(0.0, self._pass_on, node)

    def _pass_on(self, node: int) -> None:
        for neighbor, rtt_s, offers in self._letters(node):
            if _differ(self._told[node].get(neighbor, ()), offers):
                self._told[node][neighbor] = offers
                self.letters += 1
                letter = (neighbor, self._read(neighbor, node, rtt_s, offers))
                self._after(0.5 * rtt_s, self._hear, letter)

    def _take(self, node: int, offers: list[Offer]) -> None:
        self._flat[node] = offers
        by_task: dict[str, list[Offer]] = {}
        for offer in offers:
            by_task.setdefault(offer.task, []).append(offer)
        self.heard[node] = by_task


def _ways(offers: Iterable[Offer]) -> set[tuple[Way, int]]:
    return {(way_of(offer), offer.together) for offer in offers}


def _differ(one: Sequence[Offer], other: Sequence[Offer]) -> bool:
    """Whether lists of offers differ in more than what spare rates do all the time."""
    if len(one) != len(other):
        return True
    for a, b in zip(one, other, strict=True):
        if a.task != b.task or a.variant != b.variant or a.path != b.path:
            return True
        if abs(a.spare_per_s - b.spare_per_s) > _WORTH * max(a.spare_per_s, b.spare_per_s):
            return True
    return False
