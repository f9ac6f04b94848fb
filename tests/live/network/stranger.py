"""Who talks nonsense: to everybody that connects, and to whomever it connects to."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from typing import Final

LIMIT_S: Final = 5.0
PIECES: Final = (
    b"\x00\xff\xfe" * 500,
    b"HTTP/1.1 200 OK\r\nContent-Length: minus one\r\n\r\n",
    b"HTTP/9.9 banana\r\n\r\n",
    b"A" * 70_000,
    b"POST /v2/models/digits-0/infer HTTP/1.1\r\nHost: x\r\nInferway-Node: \xff\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


class Stranger:
    """Listens with these sockets, and answers each connection with nonsense.

    Parameters
    ----------
    listeners
        Bound and listening already, in whatever namespace.
    """

    def __init__(self, *listeners: socket.socket) -> None:
        self._listeners = listeners
        self._chance = random.Random(1)
        self.met = 0
        """Connections that came."""
        self._threads = [
            threading.Thread(target=self._accept, args=(one,), daemon=True) for one in listeners
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Listen no more."""
        for one in self._listeners:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(2 * LIMIT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                wire, _ = listener.accept()
            except OSError:
                return
            self.met += 1
            with wire, suppress(OSError):
                wire.settimeout(0.2)
                with suppress(TimeoutError):
                    wire.recv(65536)
                wire.sendall(self._chance.choice(PIECES))


def pester(wires: list[socket.socket], address: tuple[str, int]) -> None:
    """Say one piece of nonsense on each of these sockets, to somebody."""
    for wire, piece in zip(wires, PIECES, strict=True):
        with wire, suppress(OSError):
            wire.settimeout(LIMIT_S)
            wire.connect(address)
            wire.sendall(piece)
            wire.settimeout(0.2)
            wire.recv(65536)
