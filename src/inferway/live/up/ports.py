"""Addresses for nodes that share a machine: ports of the loopback that nobody uses."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from inferway.live.node.addresses import Addresses
from inferway.live.up.error import UpError

HOST: Final = "127.0.0.1"
_LOWEST: Final = 10_000
_EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EACH: Final = ("http", "peer", "control", "admin")


def on_loopback(nodes: Sequence[str]) -> dict[str, Addresses]:
    """Find four free ports for each node.

    They lie below those that the kernel gives to connections, so that a node which starts again
    finds its ports still free.

    Raises
    ------
    UpError
        If there are too few.
    """
    ports = _free(len(nodes) * len(_EACH))
    return {name: Addresses(**{key: f"{HOST}:{ports.pop()}" for key in _EACH}) for name in nodes}


def _free(count: int) -> list[int]:
    try:
        end = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError):
        end = 32_768
    # Any order but a fixed one: several networks may be looking for ports at once.
    candidates = list(range(_LOWEST, max(end, _LOWEST + 1_000)))
    random.shuffle(candidates)
    found: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                break
            one = held.enter_context(socket.socket())
            # As servers do: what is left of connections that have ended is no obstacle.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        raise UpError(f"{count} free ports are needed on {HOST}, and {len(found)} were found")
    return found
