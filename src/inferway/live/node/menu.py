"""Offers between neighbors: what this node tells, what it has heard, and whose it goes by.

A node goes by the offers of one neighbor, that towards the nearest repository. While it does not
live, or reaches no repository itself, the node goes by those of another that does. So neighbors
that are further away are told what could help them, and the one that the node itself relies on is
told only of ways that do not lead back through it.

Neighbors are told what has changed, when it changes, and every few seconds what still holds; one
that has missed a letter asks for all (`inferway.live.node.told`, `inferway.live.node.heard`). The
offers of a neighbor that has gone silent expire. With them goes what their tasks take and give: a
node that has no file of a task yet can forward its requests.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final

from inferway.dispatch.offers import Offer, Own, passed_on
from inferway.live.control.control import ControlPlane
from inferway.live.node.heard import Heard, MissedError
from inferway.live.node.listing import EMPTY, Listing, differ, listed
from inferway.live.node.telling import RUN_BITS, Ask, packed, unpacked
from inferway.live.node.told import REFRESH_S, Told
from inferway.live.upstream.headers import encoded
from inferway.protocol import Signature

MENU: Final = "menu"
"""The kind of these letters."""
# Changes that come together are told together.
_GATHER_S: Final = 0.02


class Menu:
    """A node's offers.

    Parameters
    ----------
    node
        The node's name.
    plane
        The node's control plane, not yet open; it knows the kind `MENU`.
    links_s
        Round-trip time to each neighbor, s.
    upstream
        The neighbor towards the nearest repository; None at a repository.
    signature
        What a task takes and gives, as far as the node itself knows.
    changed
        Called when what the node goes by has changed, with the tasks that it has changed for.
    now
        A clock that nobody sets, s.

    Attributes
    ----------
    refused
        Letters, or offers in them, that were not taken, by (neighbor, reason).
    """

    def __init__(
        self,
        node: str,
        plane: ControlPlane,
        *,
        links_s: Mapping[str, float],
        upstream: str | None,
        changed: Callable[[set[str]], None],
        signature: Callable[[str], Signature | None] = lambda task: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.node, self.upstream = node, upstream
        self.refused: Counter[tuple[str, str]] = Counter()
        self._plane, self._changed, self._now = plane, changed, now
        self._knows = signature
        self._own: list[Own] = []
        run = secrets.randbits(RUN_BITS)
        self._told = {neighbor: Told(run) for neighbor in links_s}
        self._heard = {
            neighbor: Heard(node, neighbor, rtt_s, self.refused)
            for neighbor, rtt_s in links_s.items()
        }
        self._used: dict[str, list[Offer]] = {}
        self._from: str | None = None
        self._leaving = False
        self._shut: set[str] = set()
        self._gathering: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        plane.on_letter(self._letter)
        plane.on_neighbor(self._neighbor)

    def begin(self) -> None:
        """Tell, and forget what has expired, from now on."""
        self._task = asyncio.create_task(self._refresh())

    def leave(self) -> None:
        """Take all offers back: the node is about to go."""
        self._leaving = True
        self._gather()

    def end(self) -> None:
        """Tell nothing more."""
        for handle in (self._task, self._gathering):
            if handle is not None:
                handle.cancel()
        self._task = self._gathering = None

    def offer(self, own: Iterable[Own]) -> None:
        """Say what the node itself runs and can spare."""
        before, self._own = self._own, list(own)
        if differ(before, self._own):
            self._gather()

    def offers(self, task: str) -> Sequence[Offer]:
        """What the node goes by: offers of a task, round trips from here."""
        return self._used.get(task, ())

    def signature(self, task: str) -> Signature | None:
        """What a task takes and gives, as far as the node or a neighbor knows."""
        known = (self._heard[neighbor].takes.get(task) for neighbor in self._live())
        return self._knows(task) or next((one for one in known if one is not None), None)

    @property
    def all(self) -> list[Offer]:
        """The same of all tasks."""
        return [offer for offers in self._used.values() for offer in offers]

    def reach(self, neighbor: str, works: bool) -> None:
        """Say whether requests reach a neighbor: its offers hold only while they do.

        Letters take another way than requests. One that writes letters and answers no request is
        of no use, neither to this node nor to those who would come through it.
        """
        (self._shut.discard if works else self._shut.add)(neighbor)
        self._look()

    def next_hop(self, destination: str, been: Set[bytes] = frozenset()) -> str | None:
        """Name the neighbor by which a node is reached; None where none is known.

        Parameters
        ----------
        destination
            The node.
        been
            Nodes that a request has come through, as headers have them. A way that leads there
            again is the last resort.
        """
        if destination in self._heard and self._answers(destination):
            return destination
        ways = sorted(
            (rtt_s, len(path), neighbor, path)
            for neighbor in self._live()
            for rtt_s, path in self._heard[neighbor].ways.get(destination, ())
        )
        ahead = (way for way in ways if been.isdisjoint(map(encoded, way[3])))
        best = next(ahead, ways[0] if ways else None)
        return None if best is None else best[2]

    @property
    def degraded(self) -> str:
        """Say why no repository can be reached; empty where one can, or the node is one."""
        if self.upstream is None or (self._from is not None and self._reaches(self._from)):
            return ""
        if self._answers(self.upstream):
            return f"node {self.node} reaches no repository beyond {self.upstream}"
        return f"node {self.node} reaches no repository: {self.upstream} does not answer"

    def _live(self) -> list[str]:
        """Neighbors whose offers hold."""
        now = self._now()
        return [
            neighbor
            for neighbor, heard in self._heard.items()
            if self._answers(neighbor) and heard.holds(now)
        ]

    def _answers(self, neighbor: str) -> bool:
        return neighbor in self._plane.alive and neighbor not in self._shut

    def _reaches(self, neighbor: str) -> bool:
        return any(offer.repository for offer in self._heard[neighbor].offers)

    def _choose(self) -> str | None:
        """Whose offers to go by: upstream's, or another's where only that reaches a repository."""
        if self.upstream is None:
            return None
        live = self._live()
        able = [neighbor for neighbor in live if self._reaches(neighbor)]
        if self.upstream in able:
            return self.upstream
        if able:
            return min(able, key=self._way)
        return self.upstream if self.upstream in live else None

    def _way(self, neighbor: str) -> float:
        """Time to the nearest repository by a neighbor, s."""
        offers = self._heard[neighbor].offers
        return min((one.rtt_s for one in offers if one.repository), default=math.inf)

    def _letter(self, neighbor: str, kind: str, data: bytes) -> None:
        if kind != MENU:
            return
        try:
            letter = unpacked(data)
        except ValueError:
            self.refused[neighbor, "no menu"] += 1
            return
        if isinstance(letter, Ask):
            self._told[neighbor].forget()
            self._gather()
            return
        heard, now = self._heard[neighbor], self._now()
        known = heard.takes.keys()
        try:
            news = heard.take(letter, now)
        except MissedError as missed:
            self.refused[neighbor, str(missed)] += 1
            if heard.may_ask(now):
                self._plane.send(neighbor, MENU, packed(Ask()))
            return
        if news:
            self._look(heard.takes.keys() - known)

    def _neighbor(self, neighbor: str, alive: bool) -> None:
        if alive:
            self._told[neighbor].forget()
            self._gather()
        else:
            self._heard[neighbor].forget()
        self._look()

    def _look(self, learned: Set[str] = frozenset()) -> None:
        """Choose whom to go by, and say for which tasks that changed anything.

        Parameters
        ----------
        learned
            Tasks of which it has just been said what they take.
        """
        now = self._now()
        for heard in self._heard.values():
            if not heard.holds(now):
                heard.forget()
        self._from = self._choose()
        used: dict[str, list[Offer]] = {}
        if self._from is not None:
            for offer in self._heard[self._from].offers:
                used.setdefault(offer.task, []).append(offer)
        before, self._used = self._used, used
        tasks = {
            task
            for task in before.keys() | used.keys()
            if _classes(before.get(task, ())) != _classes(used.get(task, ()))
            or (task in learned and task in used)
        }
        if tasks:
            self._changed(tasks)
        if differ(_flat(before), _flat(used)):
            self._gather()

    def _gather(self) -> None:
        if self._gathering is None and self._task is not None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(_GATHER_S, self._tell)

    def _tell(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        for neighbor, told in self._told.items():
            if neighbor not in self._plane.alive:
                continue
            letters = told.tell(self._for(neighbor), self._now())
            if not all(self._plane.send(neighbor, MENU, packed(one)) for one in letters):
                told.forget()

    def _for(self, neighbor: str) -> Listing:
        if self._leaving:
            return EMPTY
        if neighbor != self._from:
            return self._passed_on(self.all, neighbor)
        # Whom this node relies on hears only of ways around itself.
        around = [
            offer
            for other in self._live()
            if other != neighbor
            for offer in self._heard[other].offers
            if neighbor not in offer.path
        ]
        if not any(offer.repository for offer in around):
            return EMPTY
        return self._passed_on(around, neighbor)

    def _passed_on(self, heard: Iterable[Offer], neighbor: str) -> Listing:
        return listed(passed_on(self.node, self._own, heard, neighbor=neighbor), self.signature)

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._look()
                self._tell()
            except Exception as error:  # a node that tells nothing more is lost to its neighbors
                loop.call_exception_handler(
                    {"message": "offers were not looked through", "exception": error}
                )
            await asyncio.sleep(REFRESH_S / 2)


def _flat(used: Mapping[str, Sequence[Offer]]) -> list[Offer]:
    return [offer for offers in used.values() for offer in offers]


def _classes(offers: Iterable[Offer]) -> set[tuple[str, str, tuple[str, ...], int]]:
    return {(offer.variant, offer.node, offer.path, offer.together) for offer in offers}
