"""Control messages between neighbors on a path ([SiSalem23], Sec. III-E and IV-B).

Every message is about one request type, rho. Costs are those of the type's requests, round trips
from their entry included, so they mean the same at every node of the path.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Floor(msgspec.Struct, tag=0, array_like=True, frozen=True):
    """Down, once: no option at the sender or above it costs less than this."""

    rho: int
    cost: float


class Needed(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """Up, at the end of a slot: how much of a request type the fractional state serves so far."""

    rho: int
    slot: int
    requests: float
    """The multiplicity r."""
    served: float
    """The cumulative counter Z."""
    pending: tuple[tuple[float, float], ...]
    """(cost, z) that a cheaper option further up may have to precede, by cost."""


class Worst(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Down, in answer: the cost of the worst needed option, gamma of K*."""

    rho: int
    slot: int
    cost: float


class Offers(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Down, when allocations change: what the sender and the nodes above it can serve."""

    rho: int
    offers: tuple[tuple[float, float], ...]
    """(cost, requests per slot), by cost."""


Message = Floor | Needed | Worst | Offers


class Letter(NamedTuple):
    """An encoded message and the neighbor that it is for."""

    to: int
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """Encode a message as MessagePack."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Decode a message; ValueError or RecursionError where the bytes are none."""
    return _decoder.decode(data)
