"""When nodes hear what others can serve: offers on their way, event by event.

Whom a node goes by, and what it tells, its `OfferBook` decides as in the live node. Departures:
only those that go by a node's offers are told them, what changes together is told without
gathering, and a letter takes half a round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from inferway.network.offers import Offer, OfferBook, Own, received
from inferway.twin.network.terrain import Terrain

After = Callable[[float, Callable[[Any], None], Any], None]
"""In so many seconds, call this with that."""


class OfferExchange:
    """The offers of all nodes.

    `own` says what a node runs now, as it offers it; `changed` is told a node and the tasks for
    which what it goes by has changed; `after` is the engine's clock.
    """

    def __init__(
        self,
        terrain: Terrain,
        own: Callable[[int], list[Own]],
        changed: Callable[[int, set[str]], None],
        after: After,
    ) -> None:
        self._nodes, self._own, self._changed, self._after = terrain.nodes, own, changed, after
        upstream = {w: at.name for at in terrain.nodes for w, _ in at.downstream}
        self._books = [OfferBook(at.name, upstream.get(v)) for v, at in enumerate(terrain.nodes)]
        self.letters = 0
        """Told so far."""

    def heard(self, node: int) -> Mapping[str, list[Offer]]:
        """Return what a node goes by, by task."""
        return self._books[node].used

    def begin(self) -> None:
        """All nodes know all offers, as after some time without changes."""
        for _ in self._nodes:
            for node, book in enumerate(self._books):
                book.offer(self._own(node))
                for letter, _ in self._letters(node, 0.0):
                    self._take(letter)

    def tell(self, node: int, now_s: float) -> None:
        """Tell the neighbors of a node what has changed, or everything where that is due."""
        if not self._nodes[node].downstream:
            return
        self._books[node].offer(self._own(node))
        for letter, rtt_s in self._letters(node, now_s):
            self.letters += 1
            self._after(0.5 * rtt_s, self._hear, (now_s + 0.5 * rtt_s, letter))

    def _letters(self, node: int, now_s: float) -> list[tuple[tuple[int, str, list[Offer]], float]]:
        """Write to each neighbor below what is new to it; with each letter, the round trip, s."""
        me = self._nodes[node].name
        letters = []
        for w, rtt_s in self._nodes[node].downstream:
            name, book = self._nodes[w].name, self._books[node]
            offers = book.news(name, tuple(book.heard), now_s)
            if offers is not None:
                read = [received(one, me, rtt_s, me=name) for one in offers]
                letters.append(((w, me, read), rtt_s))
        return letters

    def _take(self, letter: tuple[int, str, list[Offer]]) -> tuple[set[str], bool]:
        node, teller, offers = letter
        book = self._books[node]
        book.heard[teller] = offers
        return book.look(tuple(book.heard))

    def _hear(self, arrival: tuple[float, tuple[int, str, list[Offer]]]) -> None:
        at_s, letter = arrival
        tasks, differs = self._take(letter)
        if tasks:
            self._changed(letter[0], tasks)
        if differs:
            self._after(0.0, lambda node: self.tell(node, at_s), letter[0])
