"""Health of instances: one that fails at whatever it is given rests until it answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

from inferway.live.instance import Instance

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
"""Waits between probes: none before the first, then these two and doublings in between."""


class Health:
    """Knows which instances rest, and probes them.

    An instance rests when it has failed at `FAILURES` requests in a row and then at zeros. One that
    is back is on trial: until it has answered a request, one failure and zeros send it away again,
    and the waits between its probes go on growing.

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
        self._stopped = False

    def stop(self) -> None:
        """Probe no more."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()

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

    def rest(self, server: int, reason: str, *, probed: bool = False) -> None:
        """The server has failed too often; told again while it rests, nothing happens.

        Parameters
        ----------
        server
            Which one.
        reason
            Why.
        probed
            Whether somebody else finds out when it works, and calls `again` then.
        """
        if not self.healthy[server]:
            return
        if probed:
            self._due_s[server] = asyncio.get_running_loop().time() + FIRST_WAIT_S
            self._set(server, False, reason)
            return
        instance = self._instances[server]
        if instance.proven:
            instance.proven = False
            self._wait_s[server] = 0.0
        self._set(server, False, reason)
        self._try_later(server)

    def again(self, server: int) -> None:
        """The server takes requests again."""
        if not self.healthy[server] and not self._stopped:
            self._set(server, True, "")

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
