"""The connections to a port of this process, which gRPC keeps to itself, as the kernel has them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

Peer = tuple[str, int]
"""Address and port of the other end."""

_OPEN_FILES: Final = Path("/proc/self/fd")
# Where struct tcp_info of Linux 4.2 and newer has tcpi_bytes_received.
_RECEIVED_AT: Final = 128
_COUNT: Final = struct.Struct("=Q")


def received(port: int) -> dict[Peer, int]:
    """Count the bytes that have come on each connection since it was made.

    Parameters
    ----------
    port
        The own one of the connections.

    Returns
    -------
    dict
        Bytes by the other end; empty where the kernel does not tell.
    """
    counts: dict[Peer, int] = {}
    for wire, peer in _wires(port):
        with suppress(OSError):  # closed meanwhile
            told = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(told) >= _RECEIVED_AT + _COUNT.size:
                counts[peer] = _COUNT.unpack_from(told, _RECEIVED_AT)[0]
    return counts


def cut(port: int, peer: Peer) -> None:
    """End the connection to another end, whatever is on its way; nothing where there is none."""
    for wire, there in _wires(port):
        if there == peer:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)


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
