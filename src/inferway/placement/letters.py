"""Letters that nodes exchange about placement, as bytes: messages about one request type each.

Costs are those of the type's requests, round trips from their entry included, so they mean the same
at every node of the path.
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
    requests: float  # The multiplicity r
    served: float  # The cumulative counter Z
    # (cost, z) that a cheaper option further up may have to precede, by cost.
    pending: tuple[tuple[float, float], ...]


class Worst(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Down, in answer: the cost of the worst needed option, gamma of K*."""

    rho: int
    slot: int
    cost: float


class Offers(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """Down, when allocations change: what the sender and the nodes above it can serve."""

    rho: int
    offers: tuple[tuple[float, float], ...]  # (cost, requests per slot), by cost


class Above(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Down, at the end of a slot: what runs at the sender and further up its path."""

    rho: int
    slot: int
    # (node, its pair, cost, requests of this type that it served, room that nobody used), from
    # the sender upwards.
    running: tuple[tuple[int, int, float, float, float], ...]


class Below(msgspec.Struct, tag=5, array_like=True, frozen=True):
    """Up, once the sender has decided: a type's forecast, and what now runs before it comes."""

    rho: int
    slot: int
    requests: float
    # (node, its pair, cost, room for requests that go to the reader, what the node would gain in
    # costs times requests if the copy were gone), from the entry upwards.
    running: tuple[tuple[int, int, float, float, float], ...]


class Quiet(msgspec.Struct, tag=6, array_like=True, frozen=True):
    """Up, when that changes: whether the type's entry serves it all, as well as anybody could."""

    rho: int
    on: bool


def dearer(message: Above | Below, more: float) -> tuple[tuple[int, int, float, float, float], ...]:
    """List what runs elsewhere at costs that are higher by so many ms."""
    return tuple((node, p, cost + more, *rest) for node, p, cost, *rest in message.running)  # type: ignore[misc]


Message = Floor | Needed | Worst | Offers | Above | Below | Quiet
encode = msgspec.msgpack.Encoder().encode
# ValueError or RecursionError where the bytes are no message.
decode = msgspec.msgpack.Decoder[Message](Message).decode


class Letter(NamedTuple):
    """An encoded message and the neighbor that it is for."""

    to: int
    data: bytes
