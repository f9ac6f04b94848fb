"""Offers: what the nodes further up can serve, and the fleet that a node makes of its own and them.

[SiSalem23], Sec. III-E: a node tells its downstream neighbors what it serves and at which cost, and
what it has heard from further up unless it serves that itself at less. The paper compares costs;
here an instance beats an offer where it is no slower, the way there included, no less accurate, and
takes no more energy. Then it costs less by eq. 6 for every alpha, and no accuracy target, energy
budget or deadline is met worse.

To a dispatch policy an offer is one more server class, of virtual servers that forward: its service
takes the service time there and the way there and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from inferway.deployment.nodes import MAX_HOPS
from inferway.site.confidence import ConfidenceTables
from inferway.site.fleet import Fleet
from inferway.site.view import MAX_CLASSES, Floats

# Virtual servers of an offer, at most, where nothing says how much is asked for: requests that are
# under way to it at once.
MAX_SERVERS: Final = 64
# As many, at most, however much is.
MANY_SERVERS: Final = 1024
# As many, at most, where less than half of them would do for all that is expected.
FEW_SERVERS: Final = 8
# Places at each server of a node that forwards, where the file says no number: what would wait for
# longer has somewhere else to go.
PLACES: Final = 128
# After so long a neighbor is told again, changed or not, s.
REFRESH_S: Final = 2.0
# How often a node looks how much its copies have to spare, s.
LOOK_S: Final = 1.0
# Spare rates change all the time; what changes by a smaller part is told with the next refresh.
_WORTH: Final = 0.2


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """An offer to serve a variant.

    Attributes
    ----------
    task, variant
        What is served.
    node
        Who serves it.
    accuracy
        The variant's, 0..1.
    service_s
        Its service time there, s.
    rtt_s
        Round-trip time from the reader to `node`, s.
    spare_per_s
        Requests per second that it takes from the reader, those included that already come from
        there.
    path
        From the neighbor that tells of it to `node`, both included.
    repository
        Whether `node` is a repository, the last resort.
    together
        Requests that all its copies take in one run each, at most, where they form batches: so
        many more may have to be under way at once. 0 where each request is run by itself.
    energy
        Mean energy of a request there, J; None where its teller does not say.
    """

    task: str
    variant: str
    node: str
    accuracy: float
    service_s: float
    rtt_s: float
    spare_per_s: float
    path: tuple[str, ...]
    repository: bool
    together: int = 0
    energy: float | None = None

    @property
    def response_s(self) -> float:
        """Service time and the way there and back, s."""
        return self.service_s + self.rtt_s


def received(offer: Offer, neighbor: str, rtt_s: float, *, me: str = "") -> Offer:
    """Take in what a neighbor told: the round trip to it, s, comes on top.

    ValueError where the neighbor could not have meant it: other nodes on its path than from the
    neighbor to the one that serves, the reader (`me`) or a node twice on it, impossible numbers.
    """
    path, fault = offer.path, ""
    if not path or path[0] != neighbor or path[-1] != offer.node:
        shown = " -> ".join(path) or "no path"
        fault = f"by {shown}, which does not lead from the one to the other"
    elif len(set(path)) < len(path) or me in path:
        fault = f"by a loop, {' -> '.join(path)}"
    elif len(path) > MAX_HOPS:
        fault = f"over {len(path)} nodes, more than {MAX_HOPS}"
    elif not (
        0 <= offer.accuracy <= 1
        and 0 < offer.service_s < math.inf
        and 0 <= offer.rtt_s < math.inf
        and 0 <= offer.spare_per_s < math.inf
        and offer.together >= 0
        and 0 <= (offer.energy or 0.0) < math.inf
    ):
        energy = "" if offer.energy is None else f", energy {offer.energy:g} J"
        fault = (
            f"with impossible numbers: accuracy {offer.accuracy:g}, service {offer.service_s:g} s, "
            f"round trip {offer.rtt_s:g} s, spare {offer.spare_per_s:g}/s, {offer.together} in one "
            f"run{energy}"
        )
    if fault:
        raise ValueError(f"{neighbor} offers {offer.variant} at {offer.node} {fault}")
    return msgspec.structs.replace(offer, rtt_s=offer.rtt_s + rtt_s)


def prune(own: Iterable[Offer], heard: Iterable[Offer]) -> list[Offer]:
    """Leave out what the node's own instances beat, and longer ways to the same, in the same order.

    An instance with nothing to spare beats nothing, for what it cannot take goes on. Offers of
    repositories stay: they are the last resort.
    """
    able: dict[str, list[Offer]] = {}
    for mine in own:
        if mine.spare_per_s > 0:
            able.setdefault(mine.task, []).append(mine)
    return [
        offer
        for offer in _shortest(heard)
        if offer.repository
        or not any(
            mine.accuracy >= offer.accuracy
            and mine.service_s <= offer.response_s
            and (mine.energy or 0.0) <= (offer.energy or 0.0)
            for mine in able.get(offer.task, ())
        )
    ]


def passed_on(
    me: str, own: Iterable[Offer], heard: Iterable[Offer], *, neighbor: str = ""
) -> list[Offer]:
    """List a node's offers to a downstream neighbor, from what it runs and has `received`.

    Left out is what leads back to the neighbor. Round-trip times are from `me`: the neighbor adds
    those of the link.
    """
    mine = list(own)
    # What leads back goes first: behind it there may be a longer way to the same that does not.
    elsewhere = [
        offer
        for offer in heard
        if me not in offer.path and neighbor not in offer.path and len(offer.path) < MAX_HOPS
    ]
    return mine + [
        msgspec.structs.replace(offer, path=(me, *offer.path)) for offer in prune(mine, elsewhere)
    ]


def servers_for(offer: Offer, rate_per_s: float | None = None) -> int:
    """Count the virtual servers of an offer: how many requests may be under way to it at once.

    Those that its spare rate keeps under way (Little's law), rounded up, and one more, so that an
    offer with nothing to spare can still be tried; all that there may be for a repository. Never
    more than twice what the expected requests, 1/s, would keep under way. Where batches are formed,
    as many more as all its copies take in one run each: they have to be there at the same time, and
    fewer than a copy waits for would wait until their deadlines pass.
    """
    most = MAX_SERVERS
    if rate_per_s is not None:
        all_of_them = 2.0 * rate_per_s * offer.response_s
        most = max(FEW_SERVERS, math.ceil(min(all_of_them, MANY_SERVERS)))
    if not offer.repository:
        under_way = offer.spare_per_s * offer.response_s
        most = min(most, 1 + math.ceil(min(under_way, MANY_SERVERS)))
    return min(most + offer.together, MANY_SERVERS)


def fleet_at(
    task: str,
    own: Sequence[tuple[str, float, float, int]],
    offers: Iterable[Offer],
    buffer: int | None,
    *,
    node: str = "",
    rate_per_s: float | None = None,
    energies: Mapping[str, float] = MappingProxyType({}),
    tables: Callable[[Sequence[str], Floats], ConfidenceTables | None] | None = None,
) -> tuple[Fleet, list[Offer | None]]:
    """Make the fleet of a node that also forwards, and say which offer each class stands for.

    The node runs `own`: variant, accuracy, service rate of one instance (1/s), instances; their
    classes stand for None. Of several ways to the same offer the shortest counts; what the node's
    own instances beat may be among them, for it takes what these cannot. Offers are classes
    ``VARIANT@NODE``; beyond the classes that a site can have, the slowest are left out,
    repositories last. A buffer of None is `PLACES`, and no limit where there are no offers.
    `energies` has what a request takes by variant, J, where the file says it; what an offer says of
    itself counts more.
    `tables` makes what confidences say, of the variant of each class and its accuracy; nothing does
    where no second variant is ever asked. ValueError where there is neither an instance nor an
    offer, or as `Fleet`.
    """
    known = sorted(
        (offer for offer in _shortest(offers) if offer.task == task),
        key=lambda offer: (not offer.repository, offer.response_s),
    )[: MAX_CLASSES - len(own)]
    if not own and not known:
        raise ValueError(f"nothing runs for task {task!r} at {node or 'the node'} or is offered")
    names = [f"{offer.variant}@{offer.node}" for offer in known]
    mine = [variant for variant, *_ in own]
    accuracy = np.array([*(accuracy for _, accuracy, *_ in own), *(o.accuracy for o in known)])
    fleet = Fleet(
        variants=(*mine, *names),
        rate=np.array([*(rate for *_, rate, _ in own), *(1.0 / o.response_s for o in known)]),
        accuracy=accuracy,
        count=np.array(
            [*(count for *_, count in own), *(servers_for(o, rate_per_s) for o in known)]
        ),
        buffer=PLACES if buffer is None and known else buffer,
        task=task,
        node=node,
        energy=np.array(
            [
                *(energies.get(variant, 0.0) for variant in mine),
                *(energies.get(o.variant, 0.0) if o.energy is None else o.energy for o in known),
            ]
        ),
        confidence=tables and tables([*mine, *(offer.variant for offer in known)], accuracy),
    )
    by_name = dict(zip(names, known, strict=True))
    return fleet, [by_name.get(name) for name in fleet.variants]


def lasting_classes(stands_for: Sequence[Offer | None], *, repository: bool = False) -> int:
    """Bit mask of the classes that are the last resort, and so are never saturated.

    Those of repositories, the node's own among them if it is one; or all where no repository can be
    reached, for then nobody else takes what they do not.
    """
    lasting = sum(
        (repository if offer is None else offer.repository) << k
        for k, offer in enumerate(stands_for)
    )
    return lasting or (1 << len(stands_for)) - 1


def _shortest(offers: Iterable[Offer]) -> list[Offer]:
    """Keep one way to each variant at each node: by time, then hops, then names."""
    ways: dict[tuple[str, str, str], list[Offer]] = {}
    for offer in offers:
        ways.setdefault((offer.task, offer.variant, offer.node), []).append(offer)
    return [min(one, key=lambda way: (way.rtt_s, len(way.path), way.path)) for one in ways.values()]


class OfferBook:
    """The offers at a node: what it runs, what its neighbors tell it, and whose it goes by.

    The live node and the event twin drive the same: it has no sockets and no clock. A node goes by
    the offers of one neighbor, that towards the nearest repository. Where that tells nothing, or
    reaches no repository itself, the node goes by those of another that does. So neighbors that are
    further away are told what could help them, and the one that the node itself relies on is told
    only of ways that do not lead back through it. `live` are the neighbors whose offers hold.

    Attributes
    ----------
    own
        What the node runs itself.
    heard
        By neighbor, what it has told last, as `received`.
    source
        The neighbor that the node goes by; None for nobody.
    all, used
        What it goes by, and the same by task.
    leaving
        Whether all that was offered is taken back.
    """

    def __init__(self, node: str, upstream: str | None) -> None:
        self.node, self.upstream = node, upstream
        self.source: str | None = None
        self.own: Sequence[Offer] = ()
        self.heard: dict[str, Sequence[Offer]] = {}
        self.all: Sequence[Offer] = ()
        self.used: dict[str, list[Offer]] = {}
        self.leaving = False
        self._told: dict[str, tuple[list[Offer], float]] = {}

    def offer(self, own: Iterable[Offer]) -> bool:
        """Say what the node itself runs and can spare; returns whether it is worth telling."""
        before, self.own = self.own, list(own)
        return _differ(before, self.own)

    def reaches(self, neighbor: str) -> bool:
        """Tell whether a neighbor knows a way to a repository."""
        return any(offer.repository for offer in self.heard.get(neighbor, ()))

    def look(self, live: Sequence[str], learned: Set[str] = frozenset()) -> tuple[set[str], bool]:
        """Choose whom to go by.

        Returns
        -------
        tasks
            Those whose offers are others than before, and of `learned` those that are offered.
        differs
            Whether that is worth telling the neighbors.
        """
        self.source = self._choose(live)
        before, went_by = self.used, self.all
        self.all, self.used = () if self.source is None else self.heard.get(self.source, ()), {}
        for offer in self.all:
            self.used.setdefault(offer.task, []).append(offer)
        tasks = {
            task
            for task in before.keys() | self.used.keys()
            if _classes(before.get(task, ())) != _classes(self.used.get(task, ()))
            or (task in learned and task in self.used)
        }
        return tasks, _differ(went_by, self.all)

    def news(self, neighbor: str, live: Sequence[str], now_s: float) -> list[Offer] | None:
        """List all that a neighbor is to be told now; None where it goes by that already."""
        offers = self._for(neighbor, live)
        told, at_s = self._told.get(neighbor, ([], -math.inf))
        # A little before its time, so that a refresh never waits for the next one.
        if now_s - at_s > 0.9 * REFRESH_S or _differ(told, offers):
            self._told[neighbor] = offers, now_s
            return offers
        return None

    def _choose(self, live: Sequence[str]) -> str | None:
        if self.upstream is None:
            return None
        able = [neighbor for neighbor in live if self.reaches(neighbor)]
        if able and self.upstream not in able:
            return min(able, key=lambda one: min(o.rtt_s for o in self.heard[one] if o.repository))
        return self.upstream if self.upstream in live else None

    def _for(self, neighbor: str, live: Sequence[str]) -> list[Offer]:
        """List what a neighbor goes by of this node's, by task, variant and node."""
        if self.leaving:
            return []
        heard: Iterable[Offer] = self.all
        if neighbor == self.source:
            # Whom this node relies on hears only of ways around itself.
            heard = [
                offer
                for other in live
                if other != neighbor
                for offer in self.heard.get(other, ())
                if neighbor not in offer.path
            ]
            if not any(offer.repository for offer in heard):
                return []
        offers = passed_on(self.node, self.own, heard, neighbor=neighbor)
        by_name = {(offer.task, offer.variant, offer.node): offer for offer in offers}
        return [by_name[name] for name in sorted(by_name)]


def _differ(one: Sequence[Offer], other: Sequence[Offer]) -> bool:
    """Tell whether two lists differ in more than what spare rates do from moment to moment."""
    return len(one) != len(other) or any(
        abs(a.spare_per_s - b.spare_per_s) > _WORTH * max(a.spare_per_s, b.spare_per_s)
        or _fixed(a) != _fixed(b)
        for a, b in zip(one, other, strict=True)
    )


def _fixed(one: Offer) -> tuple[object, ...]:
    fixed = one.accuracy, one.energy, one.repository, one.together
    return one.task, one.variant, one.path, *fixed


def _classes(offers: Iterable[Offer]) -> set[tuple[str, str, tuple[str, ...], int]]:
    return {(offer.variant, offer.node, offer.path, offer.together) for offer in offers}
