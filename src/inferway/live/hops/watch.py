"""Tells a site what its hops know: which servers behind them to leave out, and how far they are.

Servers are marked as their hop's breaker says, so that no policy sees them; and when a way takes
longer than it did, or less, the predicted times of all servers at its end move at once. Left to
themselves, each would have to serve a slow request first, and none would see that it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from inferway.live.health import Health
from inferway.live.hops.forwarder import Forwarder, Forwarding
from inferway.live.hops.hop import Hop, Watcher
from inferway.live.hops.ways import Told, differ

WITHDRAWN = "the node does not offer this any more"


class Watch:
    """Between the hops of a site's forwarders and the site's health.

    Parameters
    ----------
    instances
        One per server, forwarders among them.
    health
        Of the servers.
    class_of
        Class of each server.
    shift
        Called with a range of servers, from the first to before the last, by how many seconds
        longer their services are predicted to take, and with the least that they can.
    """

    def __init__(
        self,
        instances: Sequence[Any],
        health: Health,
        class_of: Sequence[int],
        shift: Callable[[int, int, float, float], None],
    ) -> None:
        self._instances, self._health, self._class_of = instances, health, class_of
        self._shift = shift
        self._servers: dict[Hop, list[int]] = {}
        for server, one in enumerate(instances):
            if isinstance(one, Forwarder):
                self._servers.setdefault(one.forwarding.hop, []).append(server)
        self._watchers: list[tuple[Hop, Watcher]] = []
        self._following: list[tuple[Forwarding, Told]] = []
        self._withdrawn: frozenset[int] = frozenset()

    def beside(self, server: int) -> int:
        """Classes that a server's failure to send says something about, as a bit mask.

        Its own, and where it is a forwarder whose hop is of no use, those of the same hop.
        """
        mask = 1 << self._class_of[server]
        return mask | self.behind(server) if self.out(server) else mask

    def behind(self, server: int) -> int:
        """Classes that the same hop leads to as a server's, as a bit mask; 0 where none does."""
        one = self._instances[server]
        if not isinstance(one, Forwarder):
            return 0
        mask = 0
        for other in self._servers[one.forwarding.hop]:
            mask |= 1 << self._class_of[other]
        return mask

    def out(self, server: int) -> bool:
        """Whether the server is another node's and its hop is of no use: it gets nothing more."""
        one = self._instances[server]
        return isinstance(one, Forwarder) and not one.forwarding.hop.breaker.closed

    def forwards(self, server: int) -> bool:
        """Whether the server is another node's."""
        return isinstance(self._instances[server], Forwarder)

    def begin(self) -> None:
        """Follow the breakers from now on."""
        for hop, servers in self._servers.items():

            def watcher(works: bool, reason: str, servers: list[int] = servers) -> None:
                self._mark(servers, works, reason)

            self._watchers.append((hop, watcher))
            hop.watch(watcher)
            if hop.works and self._withdrawn:
                watcher(True, "")
        for low, high, forwarding in self._classes():
            path, hop = forwarding.path, forwarding.hop
            told = partial(self._shift, low, high)
            rtt_s = hop.round_trip_s(path)
            counted_s = forwarding.rtt_s
            if rtt_s is not None and counted_s is not None and differ(rtt_s, counted_s):
                told(rtt_s - counted_s, rtt_s)
            self._following.append((forwarding, told))
            hop.follow(path, told, me=self._instances[low].node)

    def withdraw(self, classes: Collection[int]) -> None:
        """Have servers of these classes take nothing, and those of others as their hops do."""
        before, self._withdrawn = self._withdrawn, frozenset(classes)
        turned = before ^ self._withdrawn
        for hop, servers in self._servers.items():
            those = [server for server in servers if self._class_of[server] in turned]
            self._mark(those, hop.works, hop.reason)

    def end(self) -> None:
        """Follow them no more."""
        for hop, watcher in self._watchers:
            hop.unwatch(watcher)
        self._watchers.clear()
        for forwarding, told in self._following:
            forwarding.hop.unfollow(forwarding.path, told)
        self._following.clear()

    def _classes(self) -> list[tuple[int, int, Forwarding]]:
        """First server, the one after the last, and where to, of each class that forwards."""
        found: dict[int, tuple[int, int, Forwarding]] = {}
        for server, one in enumerate(self._instances):
            if isinstance(one, Forwarder):
                low = found.get(self._class_of[server], (server,))[0]
                found[self._class_of[server]] = low, server + 1, one.forwarding
        return list(found.values())

    def _mark(self, servers: Sequence[int], works: bool, reason: str) -> None:
        # All rest before the first is marked: what it had queued is not to go to the next of them.
        able = [works and self._class_of[server] not in self._withdrawn for server in servers]
        for server, takes in zip(servers, able, strict=True):
            self._instances[server].resting = not takes
        for server, takes in zip(servers, able, strict=True):
            if takes:
                self._health.again(server)
            else:
                self._health.rest(server, reason or WITHDRAWN, probed=True)
