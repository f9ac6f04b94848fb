"""A listening port: its connections, its clock and who handles which path."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from inferway.live.bodies import Bodies
from inferway.live.http.beside import Beside
from inferway.live.http.connection import Connection
from inferway.live.http.exchange import Clock, Exchange
from inferway.live.http.limits import Limits
from inferway.live.security.keys import Guard, Role

Handler = Callable[[Exchange], None]
Find = Callable[[bytes, bytes], Handler]


class Listener:
    """Accepts connections on one address.

    Parameters
    ----------
    find
        Gives the handler for a method and a request target; unknown ones get a handler too, one
        that refuses.
    broken
        Told of an exception in a handler.
    limits
        Caps on requests.
    guard
        Looks at the keys of requests. None lets everybody in.
    role
        Tells which of a key's roles a request target asks for; an administrator's without it.
    bodies
        Account of the bodies that are held, with other listeners'; one of its own by default.
    beat
        Called every second.
    hops
        Whether neighboring nodes ask here, whose hop headers count.
    """

    def __init__(
        self,
        find: Find,
        broken: Callable[[BaseException], None],
        limits: Limits | None = None,
        guard: Guard | None = None,
        role: Callable[[bytes], int] = lambda target: Role.ADMIN,
        *,
        bodies: Bodies | None = None,
        beat: Callable[[], None] | None = None,
        hops: bool = False,
    ) -> None:
        self.find = find
        self.hops = hops
        self.broken = broken
        self.limits = limits or Limits()
        self.bodies = bodies or Bodies(self.limits.bodies_bytes)
        self.text_cap = min(self.limits.body_bytes, self.limits.json_bytes)
        """Largest body without raw tensors, bytes."""
        self.guard, self.role = guard, role
        self.clock = Clock()
        self.connections: set[Connection] = set()
        self.unread = 0
        """Bytes of answers that clients have not read."""
        self.beside = Beside()
        self._beat = beat
        self.draining = False
        self.port = 0
        self._server: asyncio.AbstractServer | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, **options: Any) -> None:
        """Listen; port 0 takes a free one, told in `port`. OSError where it cannot be had."""
        self.loop = asyncio.get_running_loop()
        place: dict[str, Any] = {"host": host, "port": port}
        if host == "::":
            # As gRPC's and Zenoh's: asyncio would leave IPv4 out.
            place = {"sock": _of_both_families(port)}
        self._server = await self.loop.create_server(
            lambda: Connection(self), **place, backlog=1024, **options
        )
        bound: socket.socket = self._server.sockets[0]
        self.port = bound.getsockname()[1]
        self._timer = self.loop.call_later(1.0, self._tick)

    def close(self) -> None:
        """Accept no more; open connections end with their last answer."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()

    def abort(self) -> None:
        """Close what is still open."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.abort()
        self.beside.close()

    def relieve(self) -> None:
        """Cut off whoever has left most answers unread, where all have left too many."""
        while self.unread > self.limits.bodies_bytes:
            behind = [connection for connection in self.connections if connection.unread]
            if len(behind) < 2:
                return  # one answer may be larger
            max(behind, key=lambda connection: connection.unread).abort()

    def _tick(self) -> None:
        self.clock.advance()
        for connection in list(self.connections):
            connection.expire()
        if self._beat is not None:
            self._beat()
        self._timer = self.loop.call_later(1.0, self._tick)


def _of_both_families(port: int) -> socket.socket:
    return socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=socket.has_dualstack_ipv6()
    )
