"""Ports for servers that must be told theirs before they listen."""

from __future__ import annotations

import os
import random
import socket
from collections import deque
from typing import Final

_CANDIDATES: Final = range(10_000, 32_000)
"""Below those that the kernel gives to connections."""
_AT_ONCE: Final = 200
"""Claims that a process holds: more than a test needs, and few beside the files it may open."""
_CLAIMS: Final[deque[int]] = deque()


def free_ports(count: int) -> list[int]:
    """Find ports of 127.0.0.1 that nobody listens at, and that no other test is given meanwhile.

    Each is claimed by a UDP socket with its number, which is in no TCP server's way. It is held by
    this process until it ends or has claimed 200 others.
    """
    found: list[int] = []
    # Of its own numbers: Hypothesis, among others, sets those that all share.
    for port in random.SystemRandom().sample(_CANDIDATES, 1_000):
        if len(found) == count:
            break
        if (claim := _claimed(port)) is not None:
            found.append(port)
            _CLAIMS.append(claim)
    if len(found) < count:
        raise AssertionError(f"{count} free ports are needed, and {len(found)} were found")
    while len(_CLAIMS) > max(_AT_ONCE, count):
        os.close(_CLAIMS.popleft())
    return found


def _claimed(port: int) -> int | None:
    """Give the descriptor of the claim, or nothing where the port is taken."""
    with socket.socket(type=socket.SOCK_DGRAM) as claim, socket.socket() as listener:
        try:
            claim.bind(("127.0.0.1", port))
            listener.bind(("127.0.0.1", port))
        except OSError:
            return None
        return claim.detach()
