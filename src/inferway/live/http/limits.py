"""What a listener accepts from a client before it says no."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one request, and on what one client and all of them can occupy.

    Attributes
    ----------
    body_bytes
        Largest body, as sent and after decompression.
    head_bytes
        Request line and headers together.
    elements
        Largest number of elements in one tensor.
    pipelined
        Requests of one connection that may wait for their answers before reading pauses.
    queued_bytes
        Bodies of one connection, unpacked, that may wait for their answers before reading pauses.
    connections
        Open connections of one listener; more are told to come back later.
    receive_s
        Time for one request to arrive whole, and for a client to go on reading its answers.
    idle_s
        Time that an unused connection stays open.
    """

    body_bytes: int = 64 * 1024**2
    head_bytes: int = 64 * 1024
    elements: int = 16 * 1024**2
    pipelined: int = 64
    queued_bytes: int = 64 * 1024**2
    connections: int = 4096
    receive_s: int = 60
    idle_s: int = 300
