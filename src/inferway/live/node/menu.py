"""Offers between neighbors: what this node tells, what it has heard, and whose it goes by.

A node goes by the offers of one neighbor, that towards the nearest repository. While it does not
live, or reaches no repository itself, the node goes by those of another that does. So neighbors
that are further away are told what could help them, and the one that the node itself relies on is
told only of ways that do not lead back through it.

Told are all offers at once, when they change and at least every few seconds; those of a neighbor
that has gone silent expire. With them goes what their tasks take and give: a node that has no file
of a task yet can forward its requests.
"""

from __future__ import annotations

import asyncio
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

import msgspec

from inferway.dispatch.offers import Offer, Own, passed_on, received
from inferway.live.control.control import ControlPlane
from inferway.runtime import Signature
from inferway.runtime.signature import DTYPES

__all__ = ["MENU", "Menu"]

MENU: Final = "menu"
"""The kind of these letters."""
REFRESH_S: Final = 2.0
"""Offers are told again after so long, changed or not."""
EXPIRES_S: Final = 3.0 * REFRESH_S
# Changes that come together are told together.
_GATHER_S: Final = 0.02
# Spare rates change all the time; what changes by less is told with the next refresh.
_WORTH: Final = 0.2
# A letter has a limit in bytes, and an offer has names of up to 16 nodes.
_PER_LETTER: Final = 500
_UNPACKED_BYTES: Final = 16 << 20


class _Letter(msgspec.Struct, array_like=True, frozen=True):
    """A part of what a node tells."""

    serial: int
    part: int
    parts: int
    offers: tuple[Offer, ...]
    takes: tuple[tuple[Signature, tuple[str, ...]], ...] = ()
    """What tasks take and give, each said once for all tasks of which it is true."""


class _Heard(NamedTuple):
    """What a neighbor told last."""

    offers: tuple[Offer, ...]
    until_s: float
    takes: Mapping[str, Signature]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Letter)


def _packed(letter: _Letter) -> bytes:
    # Offers of one node repeat its name and the way there: a fifth of their bytes is left.
    return zlib.compress(_encode(letter), 1)


def _unpacked(data: bytes) -> _Letter:
    stream = zlib.decompressobj()
    content = stream.decompress(data, _UNPACKED_BYTES)
    if not stream.eof:
        raise ValueError("it does not end, or unpacks to too much")
    return _decoder.decode(content)


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
        self._plane, self._links_s, self._changed, self._now = plane, dict(links_s), changed, now
        self._knows = signature
        self._own: list[Own] = []
        self._heard: dict[str, _Heard] = {}
        self._parts: dict[str, list[_Letter]] = {}
        self._serial = 0
        self._told: dict[str, list[Offer]] = {}
        self._told_s: dict[str, float] = {}
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
        if _differ(before, self._own):
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

    def next_hop(self, destination: str) -> str | None:
        """Name the neighbor by which a node is reached; None where none is known."""
        if destination in self._links_s and self._answers(destination):
            return destination
        ways = [
            (offer.rtt_s, len(offer.path), neighbor)
            for neighbor in self._live()
            for offer in self._heard[neighbor].offers
            if offer.node == destination
        ]
        return min(ways)[2] if ways else None

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
            if self._answers(neighbor) and heard.until_s > now
        ]

    def _answers(self, neighbor: str) -> bool:
        return neighbor in self._plane.alive and neighbor not in self._shut

    def _reaches(self, neighbor: str) -> bool:
        heard = self._heard.get(neighbor)
        return heard is not None and any(offer.repository for offer in heard.offers)

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
            letter = _unpacked(data)
        except (msgspec.DecodeError, ValueError, zlib.error):
            self.refused[neighbor, "no menu"] += 1
            return
        parts = self._parts.setdefault(neighbor, [])
        if parts and parts[0].serial != letter.serial:
            parts.clear()
        if letter.part != len(parts) or not 0 < letter.parts <= 1000:
            self.refused[neighbor, "out of order"] += 1
            parts.clear()
            return
        parts.append(letter)
        if len(parts) < letter.parts:
            return
        offers: list[Offer] = []
        takes: dict[str, Signature] = {}
        for part in parts:
            for said, tasks in part.takes:
                if _sound(said):
                    takes.update(dict.fromkeys(tasks, said))
                else:
                    self.refused[neighbor, "no signature"] += 1
            for offer in part.offers:
                try:
                    offers.append(received(offer, neighbor, self._links_s[neighbor], me=self.node))
                except ValueError:
                    self.refused[neighbor, "impossible"] += 1
        parts.clear()
        known = {} if neighbor not in self._heard else self._heard[neighbor].takes
        self._heard[neighbor] = _Heard(tuple(offers), self._now() + EXPIRES_S, takes)
        self._look(takes.keys() - known.keys())

    def _neighbor(self, neighbor: str, alive: bool) -> None:
        if alive:
            self._told.pop(neighbor, None)
            self._gather()
        else:
            self._heard.pop(neighbor, None)
            self._parts.pop(neighbor, None)
        self._look()

    def _look(self, learned: Set[str] = frozenset()) -> None:
        """Choose whom to go by, and say for which tasks that changed anything.

        Parameters
        ----------
        learned
            Tasks of which it has just been said what they take.
        """
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
        if _differ(_flat(before), _flat(used)):
            self._gather()

    def _gather(self) -> None:
        if self._gathering is None and self._task is not None:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(_GATHER_S, self._tell)

    def _tell(self) -> None:
        self._gathering = None
        for neighbor in self._links_s:
            if neighbor in self._plane.alive:
                self._tell_one(neighbor)

    def _tell_one(self, neighbor: str) -> None:
        offers = self._for(neighbor)
        now, told = self._now(), self._told.get(neighbor)
        # A little before its time, so that a refresh never waits for the next one.
        due = now - self._told_s.get(neighbor, -math.inf) > 0.9 * REFRESH_S
        if told is not None and not due and not _differ(told, offers):
            return
        self._serial += 1
        chunks = [offers[i : i + _PER_LETTER] for i in range(0, len(offers), _PER_LETTER)] or [[]]
        for part, chunk in enumerate(chunks):
            letter = _Letter(self._serial, part, len(chunks), tuple(chunk), self._takes(chunk))
            self._plane.send(neighbor, MENU, _packed(letter))
        self._told[neighbor], self._told_s[neighbor] = offers, now

    def _takes(self, offers: Iterable[Offer]) -> tuple[tuple[Signature, tuple[str, ...]], ...]:
        said: dict[Signature, list[str]] = {}
        for task in dict.fromkeys(offer.task for offer in offers):
            if (known := self.signature(task)) is not None:
                said.setdefault(known, []).append(task)
        return tuple((known, tuple(tasks)) for known, tasks in said.items())

    def _for(self, neighbor: str) -> list[Offer]:
        if self._leaving:
            return []
        if neighbor != self._from:
            return passed_on(self.node, self._own, self.all, neighbor=neighbor)
        # Whom this node relies on hears only of ways around itself.
        around = [
            offer
            for other in self._live()
            if other != neighbor
            for offer in self._heard[other].offers
            if neighbor not in offer.path
        ]
        if not any(offer.repository for offer in around):
            return []
        return passed_on(self.node, self._own, around, neighbor=neighbor)

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


def _sound(said: Signature) -> bool:
    tensors = (*said.inputs, *said.outputs)
    return bool(said.inputs and said.outputs) and all(
        one.datatype in DTYPES and one.shape[:1] == (-1,) and min(one.shape) >= -1
        for one in tensors
    )


def _flat(used: Mapping[str, Sequence[Offer]]) -> list[Offer]:
    return [offer for offers in used.values() for offer in offers]


def _classes(offers: Iterable[Offer]) -> set[tuple[str, str, tuple[str, ...]]]:
    return {(offer.variant, offer.node, offer.path) for offer in offers}


def _differ(one: Sequence[Own | Offer], other: Sequence[Own | Offer]) -> bool:
    """Whether two lists differ in more than what spare rates do from moment to moment."""
    if len(one) != len(other):
        return True
    for a, b in zip(one, other, strict=True):
        if abs(a.spare_per_s - b.spare_per_s) > _WORTH * max(a.spare_per_s, b.spare_per_s):
            return True
        if _fixed(a) != _fixed(b):
            return True
    return False


def _fixed(one: Own | Offer) -> tuple[object, ...]:
    return (one.task, one.variant, getattr(one, "path", ()), one.accuracy, one.repository)
