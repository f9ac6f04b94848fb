"""A listening port: its connections and its clock."""

from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate
from typing import Any

from inferway.live.http.connection import Connection
from inferway.live.http.exchange import Port


class Listener(Port):
    """Accepts connections on one address; its parameters are a `Port`'s."""

    port = 0
    _server: asyncio.AbstractServer | None = None
    _timer: asyncio.TimerHandle | None = None

    async def start(self, host: str, port: int, **options: Any) -> None:
        """Listen; port 0 takes a free one, told in `port`. OSError where it cannot be had."""
        place: dict[str, Any] = {"host": host, "port": port}
        if host == "::":
            # As gRPC's and Zenoh's: asyncio would leave IPv4 out.
            both = socket.has_dualstack_ipv6()
            place["sock"] = socket.create_server(
                ("::", port), family=socket.AF_INET6, dualstack_ipv6=both
            )
            del place["host"], place["port"]
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Connection(self), **place, backlog=1024, **options
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self._advance()

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

    def _advance(self) -> None:
        self.tick += 1
        self.date = f"Date: {formatdate(usegmt=True)}\r\n".encode()
        for connection in list(self.connections):
            connection.expire()
        if self.beat is not None and self.tick > 1:
            self.beat()
        self._timer = asyncio.get_running_loop().call_later(1.0, self._advance)
