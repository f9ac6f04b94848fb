"""One task at one node: the dispatcher that the live node has, and the servers behind it.

Whenever the node's own copies or the offers from upstream change, a new site takes over, as live:
it gets all requests from then on, and the old one answers what it has. What was measured, the
balance and what the policy has learned go along.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from inferway.dispatch.dispatcher import Dispatcher
from inferway.dispatch.offers import Offer
from inferway.dispatch.service_times import carry_over

if TYPE_CHECKING:
    from inferway.twin.network.services import ServiceTimes


class Request:
    """One request on its way."""

    __slots__ = ("deadline_s", "draw", "entered_s", "kind", "refused", "server", "slot", "there")

    def __init__(self, kind: int, entered_s: float, slot: int, deadline_s: float, draw: int):
        self.kind = kind
        """Its request type."""
        self.entered_s = entered_s
        self.slot = slot
        """In which it entered."""
        self.deadline_s = deadline_s
        self.draw = draw
        self.server: Server
        """At its entry: an instance, or a virtual server that forwards."""
        self.there: Server | None = None
        """Where it was forwarded to."""
        self.refused = False
        """Whether some node has refused it already."""


class Server:
    """An instance, or a virtual server that forwards to where an offer says.

    `queue` holds those that wait behind `busy`; `began_s` is when that one was begun.
    """

    __slots__ = (
        "began_s",
        "busy",
        "half_s",
        "index",
        "key",
        "model",
        "offer",
        "queue",
        "service_s",
        "site",
        "times",
    )

    def __init__(self, site: Site, index: int, key: int, offer: Offer | None) -> None:
        self.site = site
        self.index = index
        """Its number in the dispatcher."""
        self.key = key
        """Its class."""
        self.offer = offer
        self.half_s = 0.0 if offer is None else 0.5 * offer.rtt_s
        """The way there, s."""
        self.model = -1
        """Which of `Terrain.models` it is a copy of, or forwards to."""
        self.times: ServiceTimes | None = None
        self.busy: Request | None = None
        self.queue: deque[Request] = deque()
        self.began_s = self.service_s = 0.0


class Site:
    """A dispatcher and its servers.

    Parameters
    ----------
    node, task
        Where it stands, as indices.
    dispatcher
        On the fleet of `inferway.dispatch.offers.fleet_at`.
    stands_for
        (K,) the offer of each class; None for the node's own.
    drops
        Whether requests whose deadline passes in a queue are dropped.
    """

    def __init__(
        self,
        node: int,
        task: int,
        dispatcher: Dispatcher,
        stands_for: Sequence[Offer | None],
        *,
        drops: bool,
    ) -> None:
        self.node, self.task, self.drops = node, task, drops
        self.dispatcher = dispatcher
        self.stands_for = stands_for
        fleet = dispatcher.fleet
        self.servers: list[Server] = []
        for k, (count, offer) in enumerate(zip(fleet.count, stands_for, strict=True)):
            for _ in range(int(count)):
                self.servers.append(Server(self, len(self.servers), k, offer))
        self.masks = {
            name: 1 << k
            for k, (name, offer) in enumerate(zip(fleet.variants, stands_for, strict=True))
            if offer is None
        }
        """By variant: the class of the node's own instances, as a mask."""
        self.in_flight = 0
        self.heir: Site | None = None
        self.gone: Callable[[], None] | None = None
        """To be told when a site that was replaced has answered its last request."""

    def inherit(self, old: Site) -> None:
        """Take over from the site that stood here."""
        ways = {name: _way(offer) for name, offer in old._classes()}
        same = {name for name, offer in self._classes() if ways.get(name, "") == _way(offer)}
        carry_over(self.dispatcher, old.dispatcher, same)
        self.dispatcher.site.balance[0] = old.dispatcher.balance
        _teach(self.dispatcher, old.dispatcher)
        old.heir = self

    def withdraw(self, server: Server, position: int, now_s: float, counted: bool) -> None:
        """Undo a dispatch; the balance of who has taken over since then too."""
        before = self.dispatcher.balance
        self.dispatcher.withdraw(server.index, position, now_s, counted)
        moved = self.dispatcher.balance - before
        heir = self.heir
        while heir is not None:
            heir.dispatcher.site.balance[0] += moved
            heir = heir.heir

    def _classes(self) -> list[tuple[str, Offer | None]]:
        return list(zip(self.dispatcher.fleet.variants, self.stands_for, strict=True))


def _way(offer: Offer | None) -> tuple[str, ...]:
    return () if offer is None else offer.path


def _teach(new: Dispatcher, old: Dispatcher) -> None:
    """Hand over what the policy has learned, where it is of the very same classes, as live."""
    if not hasattr(old.policy, "learn") or new.policy._fields != old.policy._fields:
        return
    if new.fleet.variants != old.fleet.variants or not (
        np.array_equal(new.fleet.rate, old.fleet.rate)
        and np.array_equal(new.fleet.accuracy, old.fleet.accuracy)
    ):
        return
    learned = [
        pair for pair in zip(new.policy, old.policy, strict=True) if isinstance(pair[0], np.ndarray)
    ]
    if all(mine.shape == theirs.shape for mine, theirs in learned):
        for mine, theirs in learned:
            mine[:] = theirs
