"""Offers between neighbors: what this node offers, what it has heard, and whose it goes by.

Whom a node goes by and what it tells its neighbors is decided by an `OfferBook`, as in the event
twin; here that is carried over the control plane.

Each offer is a value under a key of its own, put when it changes and deleted when it is taken back,
and its load, which changes all the time, is another. Both are told when something changes by much;
every two seconds all is brought up to date, or said to hold still. Offers of a neighbor that says
nothing expire. What their tasks take and give is a value, too: a node that has no file of a task
yet can forward its requests.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final

import msgspec

from inferway.live.control.peers import MENU, Peers
from inferway.live.request import NodeCondition
from inferway.live.upstream.headers import encoded
from inferway.network.offers import REFRESH_S, Offer, OfferBook, received
from inferway.protocol import DTYPES, Signature
from inferway.unreadable import UNREADABLE

# What is not said again holds for so long.
EXPIRES_S: Final = 3.0 * REFRESH_S
# Changes that come together are told together.
_GATHER_S: Final = 0.02
# Names of a neighbor's values: of each offer, by its number, what stays and what changes all the
# time; and what tasks take and give, each signature once for all tasks of which it is true.
_OFFERS, _LOADS, _TAKES = "offers", "loads", "takes"

_encode = msgspec.msgpack.Encoder().encode


class _Load(msgspec.Struct, frozen=True, array_like=True):
    """Part of an offer that changes all the time."""

    service_s: float
    spare_per_s: float


class _Takes(msgspec.Struct, frozen=True, array_like=True):
    """A signature, and the tasks that have it."""

    signature: Signature
    tasks: list[str]


# Fields that stand behind those known are left aside.
_decode: Final = {
    _OFFERS: msgspec.msgpack.Decoder(Offer).decode,
    _LOADS: msgspec.msgpack.Decoder(_Load).decode,
}
_takes = msgspec.msgpack.Decoder(list[_Takes]).decode


class NeighborOffers:
    """Offers of one neighbor, taken with care; what is not is counted in `refused`.

    `offers` are those that can be, with round trips from the reader, by task, variant and node, and
    `takes` what tasks take and give, where that can be. If nothing more is heard they hold until
    `until_s`. `ways` has, by node that serves any of them, round trips, s, and paths: there are
    few, and many offers; whoever passes requests on looks there for each.
    """

    def __init__(
        self, me: str, neighbor: str, rtt_s: float, refused: Counter[tuple[str, str]]
    ) -> None:
        self._me, self._neighbor, self._rtt_s, self._refused = me, neighbor, rtt_s, refused
        self.forget()

    def forget(self) -> None:
        """Know nothing: the neighbor has gone."""
        self._said: dict[str, dict[str, Any]] = {_OFFERS: {}, _LOADS: {}}
        self._by_number: dict[str, Offer] = {}
        self.offers: tuple[Offer, ...] = ()
        self.takes: Mapping[str, Signature] = {}
        self.ways: dict[str, set[tuple[float, tuple[str, ...]]]] = {}
        self.until_s = -math.inf

    def take(self, name: str, data: bytes | None) -> None:
        """Take in a value; what makes no sense is counted."""
        part, _, number = name.partition("/")
        try:
            if part == _TAKES:
                said = [] if data is None else _takes(data)
                sound = [one for one in said if _sound(one.signature)]
                self.takes = {task: one.signature for one in sound for task in one.tasks}
                if len(sound) < len(said):
                    self._refused[self._neighbor, "no signature"] += 1
            elif part not in self._said:
                raise ValueError(name)
            elif data is None:
                self._said[part].pop(number, None)
            else:
                self._said[part][number] = _decode[part](data)
        except UNREADABLE:
            self._refused[self._neighbor, "no menu"] += 1
            return
        self._by_number.pop(number, None)
        fixed, load = self._said[_OFFERS].get(number), self._said[_LOADS].get(number)
        if fixed is None or load is None:
            return
        offer = msgspec.structs.replace(
            fixed, service_s=load.service_s, spare_per_s=load.spare_per_s
        )
        try:
            self._by_number[number] = received(offer, self._neighbor, self._rtt_s, me=self._me)
        except ValueError:
            self._refused[self._neighbor, "impossible"] += 1

    def put_together(self) -> None:
        """Make the offers of what has come."""
        by_name = {
            (offer.task, offer.variant, offer.node): offer for offer in self._by_number.values()
        }
        # In an order that does not depend on what was offered before.
        self.offers = tuple(by_name[name] for name in sorted(by_name))
        self.ways = defaultdict(set)
        for offer in self.offers:
            self.ways[offer.node].add((offer.rtt_s, offer.path))


class OfferTable:
    """A node's offers.

    `node` hears why no repository can be reached. `peers` are its neighbors, not yet open, with
    round-trip times `links_s`, and `upstream` the one towards the nearest repository; None at a
    repository. `signature` says what a task takes and gives, as far as the node itself knows, and
    `changed` is called with the tasks for which what the node goes by has changed. Values, or
    offers in them, that were not taken are counted in `refused`, by (neighbor, reason).
    """

    def __init__(
        self,
        node: NodeCondition,
        peers: Peers,
        *,
        links_s: Mapping[str, float],
        upstream: str | None,
        changed: Callable[[set[str]], None],
        signature: Callable[[str], Signature | None] = lambda task: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._book = node, OfferBook(node.name, upstream)
        self.refused: Counter[tuple[str, str]] = Counter()
        self._peers, self._changed, self._now, self._knows = peers, changed, now, signature
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._heard = {
            neighbor: NeighborOffers(node.name, neighbor, rtt_s, self.refused)
            for neighbor, rtt_s in links_s.items()
        }
        # Neighbors that have said something since the last look, and tasks of which it was known
        # before what they take.
        self._news: dict[str, Set[str]] = {}
        self._shut: set[str] = set()
        self._gathering: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        peers.on_sample(self._sample)
        peers.on_neighbor(self._neighbor)

    def begin(self) -> None:
        """Tell, and forget what has expired, from now on."""
        self._task = asyncio.create_task(self._refresh())

    def leave(self) -> None:
        """Take all offers back: the node is about to go."""
        self._book.leaving = True
        self._gather()

    def end(self) -> None:
        """Tell nothing more."""
        for handle in (self._task, self._gathering):
            if handle is not None:
                handle.cancel()
        self._task = self._gathering = None

    def offer(self, own: Iterable[Offer]) -> None:
        """Say what the node itself runs and can spare."""
        if self._book.offer(own):
            self._gather()

    def offers(self, task: str) -> Sequence[Offer]:
        """Offers that the node goes by: offers of a task, round trips from here."""
        return self._book.used.get(task, ())

    def signature(self, task: str) -> Signature | None:
        """Find a task's inputs and outputs, as far as the node or a neighbor knows."""
        if (own := self._knows(task)) is not None:
            return own
        known = (self._heard[neighbor].takes.get(task) for neighbor in self._live())
        return next((one for one in known if one is not None), None)

    @property
    def all(self) -> Sequence[Offer]:
        """Offers of all tasks that the node goes by."""
        return self._book.all

    def reach(self, neighbor: str, works: bool) -> None:
        """Say whether requests reach a neighbor: its offers hold only while they do.

        Offers take another way than requests. One that offers much and answers no request is of
        no use, neither to this node nor to those who would come through it.
        """
        (self._shut.discard if works else self._shut.add)(neighbor)
        self._look()

    def next_hop(self, destination: str, been: Set[bytes] = frozenset()) -> str | None:
        """Name the neighbor by which a node is reached; None where none is known.

        A way that leads again through nodes that a request has come through, `been` as headers have
        them, is the last resort.
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
        book = self._book
        if book.upstream is None or (book.source is not None and book.reaches(book.source)):
            return ""
        if self._answers(book.upstream):
            return f"node {book.node} reaches no repository beyond {book.upstream}"
        return f"node {book.node} reaches no repository: {book.upstream} does not answer"

    def _live(self) -> list[str]:
        """Neighbors whose offers hold."""
        now = self._now()
        return [
            neighbor
            for neighbor, heard in self._heard.items()
            if self._answers(neighbor) and heard.until_s > now
        ]

    def _answers(self, neighbor: str) -> bool:
        return neighbor in self._peers.alive and neighbor not in self._shut

    def _sample(self, neighbor: str, kind: str, name: str, data: bytes | None) -> None:
        if kind != MENU:
            return
        heard, now_s = self._heard[neighbor], self._now()
        expired, heard.until_s = heard.until_s <= now_s, now_s + EXPIRES_S
        if name:
            if not self._news:  # what comes together is looked at together
                asyncio.get_running_loop().call_soon(self._take_news)
            self._news.setdefault(neighbor, heard.takes.keys())
            heard.take(name, data)
        elif expired:  # what was said before holds again
            self._look()

    def _take_news(self) -> None:
        news, self._news = self._news, {}
        learned: set[str] = set()
        for neighbor, known in news.items():
            heard = self._heard[neighbor]
            heard.put_together()
            self._book.heard[neighbor] = heard.offers
            learned |= heard.takes.keys() - known
        self._look(learned)

    def _neighbor(self, neighbor: str, alive: bool) -> None:
        if not alive:
            self._heard[neighbor].forget()
            self._book.heard[neighbor] = ()
        self._look()

    def _look(self, learned: Set[str] = frozenset()) -> None:
        """Choose whom to go by, and say for which tasks that changed anything.

        Of the tasks in `learned` it has just been said what they take.
        """
        tasks, differs = self._book.look(self._live(), learned)
        self._node.degraded = self.degraded
        if tasks:
            self._changed(tasks)
        if differs:
            self._gather()

    def _gather(self) -> None:
        if self._gathering is None and self._task is not None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_S, self._tell)

    def _tell(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        live, now_s = self._live(), self._now()
        for neighbor in self._heard:
            offers = self._book.news(neighbor, live, now_s)
            if offers is not None:
                self._peers.publish(neighbor, MENU, self._values(offers))

    def _values(self, offers: Iterable[Offer]) -> dict[str, bytes]:
        numbers, values = self._numbers, dict[str, bytes]()
        of: dict[Signature, list[str]] = {}
        for offer in offers:
            number = numbers.setdefault((offer.task, offer.variant, offer.node), len(numbers))
            values[f"{_OFFERS}/{number}"], values[f"{_LOADS}/{number}"] = _written(offer)
        for task in dict.fromkeys(offer.task for offer in offers):
            if (signature := self.signature(task)) is not None:
                of.setdefault(signature, []).append(task)
        return values | {_TAKES: _encode([_Takes(*one) for one in of.items()])} if values else {}

    async def _refresh(self) -> None:
        while True:
            try:
                self._look()
                self._tell()
            except Exception as error:  # a node that tells nothing more is lost to its neighbors
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "offers were not looked through", "exception": error}
                )
            await asyncio.sleep(REFRESH_S / 2)


@functools.lru_cache(maxsize=1 << 14)
def _written(offer: Offer) -> tuple[bytes, bytes]:
    """Write what stays and what changes of an offer; most are told many times as they are."""
    stays = msgspec.structs.replace(offer, service_s=0.0, spare_per_s=0.0)
    return _encode(stays), _encode(_Load(offer.service_s, offer.spare_per_s))


def _sound(said: Signature) -> bool:
    tensors = (*said.inputs, *said.outputs)
    return bool(said.inputs and said.outputs) and all(
        one.datatype in DTYPES and one.shape[:1] == (-1,) and min(one.shape) >= -1
        for one in tensors
    )
