"""Caps on what a listener accepts from a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inferway.deployment.nodes import NodeLimits


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one request, and on what one client and all of them can occupy.

    Attributes
    ----------
    body_bytes
        Largest body, as sent and after decompression.
    json_bytes
        Longest JSON of one request, as sent and after decompression, raw tensors apart.
    memory_bytes
        Growth of resident memory while requests run.
    bodies_bytes
        Bodies of all connections together that have come in part, or wait; and, of each listener,
        answers that wait to be read.
    head_bytes
        Request line and headers together.
    elements
        Largest number of elements in one tensor.
    pipelined
        Requests of one connection that may wait for their answers before reading pauses.
    queued_bytes
        Bodies of one connection, unpacked, that may wait for their answers before reading pauses,
        and answers of one connection that may wait to be read before others are dropped.
    connections
        Open connections of one listener; more are told to come back later.
    receive_s
        Time for one request to arrive whole, and for a client to go on reading its answers.
    read_rate
        Bytes of its answers that a client must read in a second, once `receive_s` are over.
    idle_s
        Time that an unused connection stays open.
    """

    body_bytes: int = 64 * 1024**2
    json_bytes: int = 8 * 1024**2
    memory_bytes: int = 512 * 1024**2
    bodies_bytes: int = 256 * 1024**2
    head_bytes: int = 64 * 1024
    elements: int = 16 * 1024**2
    pipelined: int = 64
    queued_bytes: int = 64 * 1024**2
    connections: int = 4096
    receive_s: int = 60
    read_rate: int = 1024**2
    idle_s: int = 300

    @classmethod
    def of(cls, written: NodeLimits, **given: int | None) -> Limits:
        """Take those that a deployment file gives its node; fields that are given count instead."""
        chosen: dict[str, int] = {"memory_bytes": written.memory, "bodies_bytes": written.bodies}
        chosen |= {name: value for name, value in given.items() if value is not None}
        return cls(**chosen)
