"""The connections to a port of this process, which gRPC keeps to itself, as the kernel has them.

How much has come on each, and who reads answers too slowly and is cut.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from inferway.live.http.limits import Limits

Peer = tuple[str, int]
"""Address and port of the other end."""

_OPEN_FILES: Final = Path("/proc/self/fd")
# Where struct tcp_info of Linux 4.2 and newer has tcpi_bytes_received.
_RECEIVED_AT: Final = 128
_COUNT: Final = struct.Struct("=Q")

SMALLEST: Final = 64 * 1024
"""Bytes up to which an answer is not followed: one fits a connection's window."""
LOOK_S: Final = 1.0
"""How often it is looked who reads too slowly."""


class Unread:
    """Follows large answers until they have been read, within the limits of one client and of all.

    gRPC keeps an answer for as long as its client does not read on, and a call whose answer is
    being sent can no longer be ended. So the connection of a client that reads too slowly is cut.
    """

    def __init__(self, limits: Limits) -> None:
        self.port = 0
        """Own port of the connections."""
        self.bytes: Counter[Peer] = Counter()
        """Bytes of answers that wait to be read, by the other end."""
        self._limits = limits
        self._due_s: dict[Peer, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, context: Any, size: int) -> None:
        """Bound an answer of so many bytes, which is about to be sent."""
        if size <= SMALLEST:
            return
        loop = asyncio.get_running_loop()
        peer = peer_of(context.peer())
        due_s = self._due_s.setdefault(peer, loop.time() + self._limits.receive_s)
        self._due_s[peer] = due_s + size / self._limits.read_rate
        self.bytes[peer] += size
        context.add_done_callback(lambda _: self._read(peer, size))
        while self.bytes.total() > self._limits.bodies_bytes and len(self.bytes) > 1:
            self._cut(self.bytes.most_common(1)[0][0])
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _read(self, peer: Peer, size: int) -> None:
        if peer in self._due_s:  # it has not been cut
            self.bytes[peer] -= size
            if not self.bytes[peer]:
                del self.bytes[peer], self._due_s[peer]

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        for peer in [peer for peer, due_s in self._due_s.items() if loop.time() > due_s]:
            self._cut(peer)
        self._timer = loop.call_later(LOOK_S, self._look) if self._due_s else None

    def _cut(self, peer: Peer) -> None:
        """End the connection, whatever is on its way; nothing where there is none."""
        for wire, there in _wires(self.port):
            if there == peer:
                with suppress(OSError):
                    wire.shutdown(socket.SHUT_RDWR)
        del self.bytes[peer], self._due_s[peer]


def received(port: int) -> dict[Peer, int]:
    """Count the bytes that have come on each connection to an own port, by the other end.

    Empty where the kernel does not tell.
    """
    counts: dict[Peer, int] = {}
    for wire, peer in _wires(port):
        with suppress(OSError):  # closed meanwhile
            told = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(told) >= _RECEIVED_AT + _COUNT.size:
                counts[peer] = _COUNT.unpack_from(told, _RECEIVED_AT)[0]
    return counts


def peer_of(text: str) -> Peer:
    """Read the other end of a call as gRPC writes it, such as ``ipv4:HOST:PORT``."""
    _, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdecimal() else 0


def _wires(port: int) -> Iterator[tuple[socket.socket, Peer]]:
    """Look through this process's connections with such a port; each is lent until the next."""
    try:
        files = list(_OPEN_FILES.iterdir())
    except OSError:
        return
    for file in files:
        with suppress(OSError):  # no socket, none that is connected, or closed meanwhile
            wire = socket.socket(fileno=int(file.name))
            try:
                internet = wire.family in (socket.AF_INET, socket.AF_INET6)
                if internet and wire.getsockname()[1] == port:
                    host, there = wire.getpeername()[:2]
                    yield wire, (_plain(host), there)
            finally:
                wire.detach()  # it is gRPC's own, and stays open


def _plain(host: str) -> str:
    return host.partition("%")[0].removeprefix("::ffff:")
