"""A node's decisions about its fleets, without sockets and clocks.

The live node and the event twin drive the same. A task's fleet at a node is what runs there and,
behind these, a class of virtual servers for each offer (`inferway.network.offers`). An offer that
is taken back keeps its class for a while, since most come again: until then nothing is sent to it.
Another way, or batches that need more servers than there are, make another fleet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from inferway.dispatch.batching import (
    Rule,
    foresee,
    least_s,
    most_per_s,
    row_s_of,
    rule_of,
    rules_of,
)
from inferway.dispatch.contract import settles
from inferway.dispatch.deployed import dispatcher_on
from inferway.network.offers import Offer, fleet_at, lasting_classes
from inferway.site.confidence import confidence_tables

if TYPE_CHECKING:
    from inferway.deployment import Batch, Deployment, Task
    from inferway.dispatch.dispatcher import Dispatcher
    from inferway.dispatch.recording import Recording

REMEMBERED_S: Final = 60.0  # so long an offer that was taken back keeps its class
_RARE_PER_S: Final = 1e-3  # where a task's clients are elsewhere, or come later

Way = tuple[str, str, tuple[str, ...]]  # variant, node, and the path there


def way_of(offer: Offer) -> Way:
    """Tell where an offer leads, and how."""
    return offer.variant, offer.node, offer.path


class NodeFleet(NamedTuple):
    """A fleet that has been made: its dispatcher, and by class the offer (None for the node's own).

    `rules` say by class how batches are formed; None where no class forms any. `batches` are those
    that the file offers of each class on this node's hardware; None of another node's.
    """

    dispatcher: Dispatcher
    stands_for: Sequence[Offer | None]
    rules: list[Rule] | None
    batches: Sequence[Batch | None]


@dataclass
class TaskFleets:
    """The fleets of one task at a node, one after the other.

    Attributes
    ----------
    deployment, kind, task
        The file, the task in it, and the name that clients ask for.
    node, hardware, repository
        Where it stands.
    buffer
        Places at each server, the one in service included; None where the file says none.
    drops
        Whether a request whose deadline passes in a queue is dropped.
    rate_per_s, peak_per_s
        Mean arrival rate of the task's clients at the node, 1/s, and the most at any time; 0 where
        none enter there.
    elsewhere
        Whether clients ask for the task at any node.
    targets
        Targets over several tasks as the policies of the node are told of them.
    own
        Copies that the present fleet was made of, by variant.
    """

    deployment: Deployment
    kind: Task
    task: str
    node: str
    hardware: str
    repository: bool
    buffer: int | None
    drops: bool
    rate_per_s: float = 0.0
    peak_per_s: float = 0.0
    elsewhere: bool = False
    targets: Sequence[Mapping[str, Any]] = ()
    own: Mapping[str, int] = field(default_factory=dict)
    _ways: frozenset[Way] = frozenset()
    _stands_for: Sequence[Offer | None] = ()
    # Offers by variant and node, and since when each holds no more; inf while it does.
    _remembered: dict[tuple[str, str], tuple[Offer, float]] = field(default_factory=dict)

    def heed(self, offers: Iterable[Offer]) -> tuple[frozenset[tuple[str, str]], int, bool]:
        """Hold the offers of now against the classes of the present fleet.

        Returns
        -------
        gone
            Variant and node of the offers that hold no more: nothing is sent there.
        lasting
            Bit mask of the classes that are the last resort.
        outdated
            Whether another fleet is to be made.
        """
        now = {way_of(offer): offer for offer in offers}
        room = {way_of(offer): offer.together for offer in self._stands_for if offer is not None}
        grown = any(offer.together > room.get(way, math.inf) for way, offer in now.items())
        # The same may be offered by another way, which the fleet does not know.
        gone = frozenset((variant, node) for variant, node, _ in self._ways - now.keys())
        lasting = self._lasting(self._stands_for, now.keys())
        return gone, lasting, grown or not now.keys() <= self._ways

    def remember(self, offers: Iterable[Offer], now_s: float) -> list[Offer]:
        """List the offers of now, and others of the last minute to which there is no way now."""
        present = list(offers)
        held = {(one.variant, one.node): (one, math.inf) for one in present}
        gone = {
            key: (one, min(since_s, now_s))
            for key, (one, since_s) in self._remembered.items()
            if key not in held and now_s - since_s <= REMEMBERED_S
        }
        self._remembered = held | gone
        return present + [one for one, _ in gone.values()]

    def make(
        self, own: Mapping[str, int], offers: Sequence[Offer], *, measure: bool = True
    ) -> NodeFleet:
        """Make a fleet of copies by variant and of offers, and its dispatcher.

        Raises
        ------
        ValueError
            Where there is neither a copy nor an offer, or the policy cannot run there.
        """
        deployment, kind, network = self.deployment, self.kind, self.deployment.network
        variants = [(kind.variants[name], copies) for name, copies in own.items()]
        policy = deployment.policy_of(kind).policy
        fleet, stands_for = fleet_at(
            self.task,
            [(v.name, v.accuracy, v.service_on(self.hardware).rate, n) for v, n in variants],
            offers,
            self.buffer,
            node=self.node,
            rate_per_s=self.peak_per_s,
            energies={
                name: energy
                for name, one in kind.variants.items()
                if (energy := one.energy_on(self.hardware)) is not None
            },
            # By the profiles of this node's file; neighbors tell of an offer's accuracy alone.
            tables=partial(confidence_tables, kind) if settles(policy, deployment.folder) else None,
        )
        rate_per_s: float | None = None
        if self.rate_per_s > 0.0:
            rate_per_s = self.rate_per_s
        elif self.elsewhere and not deployment.policy_of(kind).options.get("window"):
            # What neighbors send has been decided on: the policy here has next to nothing to do.
            rate_per_s = _RARE_PER_S
        dispatcher = dispatcher_on(
            deployment,
            kind,
            fleet,
            rate_per_s=rate_per_s,
            measure=measure,
            narrow=self.drops,
            max_wait_s=None if network is None else network.max_wait,
            lasting=self._lasting(stands_for, set(map(way_of, offers))),
            best_effort=True,
            targets=self.targets,
        )
        batches = [
            kind.variants[name].batch_on(self.hardware) if offer is None else None
            for name, offer in zip(fleet.variants, stands_for, strict=True)
        ]
        foresee(dispatcher.site, batches)
        rules = rules_of(dispatcher.site, batches) if any(batches) else None
        return NodeFleet(dispatcher, stands_for, rules, batches)

    def unchanged(self, fleet: NodeFleet) -> set[str]:
        """Name the classes whose service times are still true: their own, and by the same way."""
        return {
            name
            for name, offer in zip(fleet.dispatcher.fleet.variants, fleet.stands_for, strict=True)
            if offer is None or way_of(offer) in self._ways
        }

    def adopt(
        self,
        own: Mapping[str, int],
        offers: Iterable[Offer] = (),
        stands_for: Sequence[Offer | None] = (),
    ) -> None:
        """Say what the present fleet was made of, from now on."""
        self.own, self._ways = dict(own), frozenset(map(way_of, offers))
        self._stands_for = stands_for

    def _lasting(self, stands_for: Sequence[Offer | None], ways: Collection[Way]) -> int:
        """Tell the classes that are the last resort: of repositories that can be reached."""
        within_reach = [
            offer
            if offer is None or way_of(offer) in ways
            else msgspec.structs.replace(offer, repository=False)
            for offer in stands_for
        ]
        return lasting_classes(within_reach, repository=self.repository)


class ClientRates:
    """Rates at which a node's own clients take its copies' time, as of the last look.

    `per_s` has requests a second by whatever is counted; nothing had been at `now_s`. What
    neighbors take of the copies is not counted: offers say what is left for these.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.per_s: dict[Any, float] = {}
        self._seen_s, self._seen = now_s, Counter[Any]()

    def look(self, now_s: float, counted: Counter[Any]) -> None:
        """Take in what was served since the last look: half of the rate that counts is of then."""
        passed_s = now_s - self._seen_s
        if passed_s <= 0.0:
            return
        for key in counted:
            rate = (counted[key] - self._seen[key]) / passed_s
            self.per_s[key] = 0.5 * self.per_s.get(key, rate) + 0.5 * rate
        self._seen_s, self._seen = now_s, counted.copy()


class Capability(NamedTuple):
    """Capability of one copy of a variant, as far as measured.

    Attributes
    ----------
    least_s
        Service time of the smallest run that it begins.
    most_per_s
        Requests per second while it is never idle, in the batches that pay most.
    largest
        Requests that it takes in one run, at most.
    """

    least_s: float
    most_per_s: float
    largest: int = 1

    @classmethod
    def of(
        cls, dispatcher: Dispatcher | Recording, variant: str, batch: Batch | None
    ) -> Capability:
        """Take it from what was measured of a variant's class."""
        rule, k = rule_of(batch), dispatcher.fleet.variants.index(variant)
        row_s = row_s_of(dispatcher.site, k)
        return cls(least_s(row_s, rule), most_per_s(row_s, rule), rule.largest)


def offered(
    node: str,
    task: str,
    variant: str,
    accuracy: float,
    copies: int,
    one: Capability,
    taken_per_s: float,
    repository: bool,
    energy: float | None = None,
) -> Offer:
    """Offer the neighbors what a node's copies can spare beside what is taken of them, 1/s.

    A request takes `energy` there, J; None where the file does not say it.
    """
    spare_per_s = max(0.0, copies * one.most_per_s - taken_per_s)
    together = copies * one.largest if one.largest > 1 else 0
    way = (node,)
    return Offer(
        task,
        variant,
        node,
        accuracy,
        one.least_s,
        0.0,
        spare_per_s,
        way,
        repository,
        together,
        energy,
    )
