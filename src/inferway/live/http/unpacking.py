"""A packed body on its way to its handler: unpacked at once where it is small, else beside."""

from __future__ import annotations

from typing import NamedTuple

from inferway.live.http.beside import Steps
from inferway.live.http.compression import unpacking
from inferway.live.http.exchange import Exchange
from inferway.live.http.limits import Limits
from inferway.live.http.refusal import RefusalError, long_json


class Unpacked(NamedTuple):
    """A body as it was before it was packed.

    Attributes
    ----------
    data
        The body; empty where it is refused.
    refusal
        Why it cannot be unpacked; None where it can.
    received_s
        When the packed body was whole, on the site's clock.
    """

    data: bytes | bytearray
    refusal: RefusalError | None
    received_s: float


def unpack(exchange: Exchange, limits: Limits, received_s: float) -> bool:
    """Set an exchange's `unpacked`; False where its handler is found again when that is done."""
    body, encoding = exchange.body, exchange.encoding
    assert encoding is not None
    limit, beyond = limits.body_bytes, ""
    if exchange.header_length is None and limits.json_bytes < limit:
        limit, beyond = limits.json_bytes, long_json(limits.json_bytes)
    work = unpacking(body, encoding, limit, beyond)
    taken = 0

    def took(size: int) -> None:
        nonlocal taken
        more, taken = size - taken, size
        connection = exchange.connection
        if not connection.grow(exchange, more):
            raise RefusalError(503, connection.listener.bodies.reason)

    def keep(data: bytes | bytearray | None, error: Exception | None) -> None:
        if error is None:
            assert data is not None
            try:
                if data is not body:
                    took(len(data))
            except RefusalError as refusal:
                error = refusal
        if error is not None:
            if not isinstance(error, RefusalError):
                raise error
            data = b""
        exchange.unpacked = Unpacked(data or b"", error, received_s)

    def done(data: bytes | bytearray | None, error: Exception | None) -> None:
        exchange.request = exchange.withdraw = None
        keep(data, error)
        exchange.connection.again(exchange)

    try:
        took(next(work))
    except StopIteration as end:
        keep(end.value, None)
    except RefusalError as refusal:
        keep(None, refusal)
    else:
        exchange.request = exchange.connection.listener.beside.run(work, took, done)
        exchange.withdraw = Steps.cancel
        return False
    return True
