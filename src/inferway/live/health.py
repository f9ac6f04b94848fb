"""Health of a fleet's servers: those that fail, alone or together, rest until they answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from inferway.live.instance import Instance
from inferway.live.upstream.upstream import Upstream

WITHDRAWN: Final = "the node does not offer this any more"
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
"""Waits between probes: none before the first, then these two and doublings in between."""


class Health:
    """Knows which servers take requests, and probes those that rest.

    An instance rests when it has failed at `FAILURES` requests in a row and then at zeros. One that
    is back is on trial: until it has answered a request, one failure and zeros send it away again,
    and the waits between its probes go on growing. What stands for another node rests while the way
    there does not work, or its offer is withdrawn; the way probes itself.

    Parameters
    ----------
    instances
        One per server.
    class_of
        Class of each server.
    changed
        Called with a server, whether it takes requests from now on, and why not.
    """

    def __init__(
        self,
        instances: Sequence[Instance],
        class_of: Sequence[int],
        changed: Callable[[int, bool, str], None],
    ) -> None:
        self._instances, self._class_of, self._changed = instances, class_of, changed
        self.healthy = [True] * len(instances)
        # The same, one byte each, for those who keep it.
        self.flags = bytes(self.healthy)
        self._wait_s = [0.0] * len(instances)
        self._due_s = [math.inf] * len(instances)
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._groups: dict[Upstream, list[int]] = {}
        for server, instance in enumerate(instances):
            if instance.group is not None:
                self._groups.setdefault(instance.group, []).append(server)
        self._watchers: list[tuple[Upstream, Callable[[bool, str], None]]] = []
        self._withdrawn: frozenset[int] = frozenset()
        self._stopped = False

    def start(self) -> None:
        """Probe from now on what rests, and watch what fails together."""
        for server, instance in enumerate(self._instances):
            if instance.resting:
                self.rest(server, f"{instance.name} failed: {instance.complaint}")
        for group, servers in self._groups.items():
            watcher = partial(self._mark_group, servers)
            self._watchers.append((group, watcher))
            group.watch(watcher)
            if group.works and self._withdrawn:
                watcher(True, "")

    def stop(self) -> None:
        """Probe and watch no more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        for group, watcher in self._watchers:
            group.unwatch(watcher)
        self._watchers.clear()

    def any_of(self, classes: int) -> bool:
        """Tell whether a server of these classes takes requests."""
        return any(
            healthy and classes >> k & 1
            for healthy, k in zip(self.healthy, self._class_of, strict=True)
        )

    def retry_s(self, classes: int) -> float:
        """Time until a server of these classes that rests is tried again."""
        loop = asyncio.get_running_loop()
        due_s = (
            due_s
            for due_s, healthy, k in zip(self._due_s, self.healthy, self._class_of, strict=True)
            if not healthy and classes >> k & 1
        )
        return max(0.0, min(due_s, default=math.inf) - loop.time())

    def behind(self, server: int) -> int:
        """Classes whose servers fail together with a server's, as a bit mask; 0 where none does."""
        group = self._instances[server].group
        classes = () if group is None else {self._class_of[one] for one in self._groups[group]}
        return sum(1 << k for k in classes)

    def withdraw(self, classes: frozenset[int]) -> None:
        """Have the servers of these classes, and of no others, rest as withdrawn."""
        turned, self._withdrawn = self._withdrawn ^ classes, classes
        for group, servers in self._groups.items():
            those = [server for server in servers if self._class_of[server] in turned]
            self._mark_group(those, group.works, group.reason)

    def _mark_group(self, servers: Sequence[int], works: bool, reason: str) -> None:
        # All rest before the first is marked: what it had queued is not to go to the next of them.
        takes = {
            server: works and self._class_of[server] not in self._withdrawn for server in servers
        }
        for server in servers:
            self._instances[server].resting = not takes[server]
        for server in servers:
            if takes[server] == self.healthy[server]:
                continue
            if not takes[server]:
                self._due_s[server] = asyncio.get_running_loop().time() + FIRST_WAIT_S
                self._set(server, False, reason or WITHDRAWN)
            elif not self._stopped:
                self._set(server, True, "")

    def rest(self, server: int, reason: str) -> None:
        """The server has failed too often; told again while it rests, nothing happens."""
        if not self.healthy[server]:
            return
        instance = self._instances[server]
        if instance.proven:
            instance.proven = False
            self._wait_s[server] = 0.0
        self._set(server, False, reason)
        self._try_later(server)

    def _set(self, server: int, healthy: bool, reason: str) -> None:
        self.healthy[server] = healthy
        self.flags = bytes(self.healthy)
        self._changed(server, healthy, reason)

    def _try_later(self, server: int) -> None:
        wait_s = self._wait_s[server]
        self._wait_s[server] = min(LONGEST_WAIT_S, max(FIRST_WAIT_S, 2.0 * wait_s))
        if self._instances[server].cold:
            wait_s = max(FIRST_WAIT_S, wait_s)
        loop = asyncio.get_running_loop()
        self._due_s[server] = loop.time() + wait_s
        self._timers[server] = loop.call_later(wait_s, self._try, server)

    def _try(self, server: int) -> None:
        loop = asyncio.get_running_loop()

        def tell(failure: str) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._tried, server, failure)

        self._instances[server].probe(tell)

    def _tried(self, server: int, failure: str) -> None:
        if self._stopped:
            return
        if failure:
            self._try_later(server)
        else:
            self._set(server, True, "")
