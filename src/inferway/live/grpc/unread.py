"""Answers on their way out: what they hold together, and how long they may take.

gRPC keeps an answer for as long as its client does not read on, and a call whose answer is being
sent can no longer be ended. So the connection of a client that reads too slowly is cut.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from inferway.live.grpc.wires import Peer, cut, peer_of
from inferway.live.http.limits import Limits

SMALLEST: Final = 64 * 1024
"""Bytes up to which an answer is not followed: one fits a connection's window."""
LOOK_S: Final = 1.0
"""How often it is looked who reads too slowly."""


class Unread:
    """Follows large answers until they have been read.

    Parameters
    ----------
    limits
        Caps on the answers of one client and of all.
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
        if peer not in self._due_s:
            self._due_s[peer] = loop.time() + self._limits.receive_s
        self._due_s[peer] += size / self._limits.read_rate
        self.bytes[peer] += size
        context.add_done_callback(lambda _: self._read(peer, size))
        self._relieve()
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look)

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _read(self, peer: Peer, size: int) -> None:
        if peer not in self._due_s:  # it has been cut
            return
        self.bytes[peer] -= size
        if not self.bytes[peer]:
            self._forget(peer)

    def _relieve(self) -> None:
        while self.bytes.total() > self._limits.bodies_bytes and len(self.bytes) > 1:
            ((peer, _),) = self.bytes.most_common(1)
            self._cut(peer)

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for peer, due_s in list(self._due_s.items()):
            if now_s > due_s:
                self._cut(peer)
        self._timer = None
        if self._due_s:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _cut(self, peer: Peer) -> None:
        cut(self.port, peer)
        self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        del self.bytes[peer], self._due_s[peer]
