"""How much has come on each connection to a port of this process, as the kernel counts it."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote

__all__ = ["Peer", "peer_of", "received"]

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
    try:
        files = list(_OPEN_FILES.iterdir())
    except OSError:
        return counts
    for file in files:
        with suppress(OSError):  # no socket, none that is connected, or closed meanwhile
            _look(int(file.name), port, counts)
    return counts


def peer_of(text: str) -> Peer:
    """Read the other end of a call as gRPC writes it, such as ``ipv4:HOST:PORT``."""
    _, _, place = unquote(text).partition(":")
    host, _, port = place.rpartition(":")
    return _plain(host.strip("[]")), int(port) if port.isdecimal() else 0


def _look(file: int, port: int, counts: dict[Peer, int]) -> None:
    one = socket.socket(fileno=file)
    try:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
            return
        host, there = one.getpeername()[:2]
        told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(told) >= _RECEIVED_AT + _COUNT.size:
            counts[_plain(host), there] = _COUNT.unpack_from(told, _RECEIVED_AT)[0]
    finally:
        one.detach()  # it is gRPC's own, and stays open


def _plain(host: str) -> str:
    return host.partition("%")[0].removeprefix("::ffff:")
