"""A body on its way to its handler: unpacked and read at once where it is small, else beside."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, Final, NamedTuple

import msgspec
from numpy.typing import NDArray

from inferway.live.http.beside import SteppedWork
from inferway.live.http.compression import unpacking
from inferway.live.http.exchange import Exchange
from inferway.live.http.limits import Limits
from inferway.live.http.parameters import patched
from inferway.protocol import DTYPES
from inferway.protocol.messages import InferMessage, decode_infer
from inferway.protocol.refusal import RefusalError, long_json
from inferway.protocol.tensors import LARGE, long_from_json
from inferway.unreadable import UNREADABLE, fault

_UNKNOWN: Final = "contains unknown field"
"""What msgspec says of a parameter that is none of ours."""
_READ: Final = frozenset(DTYPES) - {"BYTES"}


class Prepared(NamedTuple):
    """What has been made of a body beside.

    Attributes
    ----------
    received_s
        When the body was whole, on the site's clock.
    refusal
        Why it cannot be read; None where it can.
    data
        The body, unpacked; empty where it is refused.
    message
        Its JSON; None where that is left to the handler.
    arrays
        Of long lists of numbers, by the input's place in the message.
    """

    received_s: float
    refusal: RefusalError | None
    data: bytes | bytearray = b""
    message: InferMessage | None = None
    arrays: dict[int, NDArray[Any]] | None = None


def prepare(exchange: Exchange, limits: Limits, received_s: float, *, numbers: bool) -> bool:
    """Unpack a body and read its JSON, where these are much work.

    Parameters
    ----------
    exchange
        Gets `prepared` where its body is packed, or its JSON long.
    limits
        Caps on requests.
    received_s
        When the body was whole.
    numbers
        Whether long lists of numbers are read too.

    Returns
    -------
    bool
        False where the exchange's handler will be found again when that is done.
    """
    packed = exchange.encoding is not None
    if not packed and _json_end(exchange, exchange.body) <= LARGE:
        return True
    work = _work(exchange, limits, received_s, numbers)
    counted = 0

    def count(size: int) -> None:
        nonlocal counted
        more, counted = size - counted, max(size, counted)
        connection = exchange.connection
        if more > 0 and not connection.grow(exchange, more):
            raise RefusalError(503, connection.listener.bodies.reason)

    def keep(prepared: Prepared | None, error: Exception | None) -> None:
        if prepared is not None and prepared.data is not exchange.body:
            try:
                count(len(prepared.data))
            except RefusalError as refusal:
                error = refusal
        if error is not None:
            if not isinstance(error, RefusalError):
                exchange.connection.listener.broken(error)
                error = RefusalError(500, "the server failed on this request")
            prepared = Prepared(received_s, error)
        exchange.prepared = prepared

    def done(prepared: Prepared | None, error: Exception | None) -> None:
        exchange.request = exchange.withdraw = None
        keep(prepared, error)
        exchange.connection.again(exchange)

    if packed:  # most bodies end with the first step
        try:
            count(next(work))
        except StopIteration as end:
            keep(end.value, None)
            return True
        except RefusalError as refusal:
            keep(None, refusal)
            return True
    exchange.request = exchange.connection.listener.beside.run(work, count, done)
    exchange.withdraw = SteppedWork.cancel
    return False


def read(text: bytes | bytearray | memoryview) -> InferMessage:
    """Read the JSON of a request; `RefusalError` where it is none."""
    try:
        try:
            return decode_infer(text)
        except msgspec.ValidationError as error:
            if _UNKNOWN not in str(error):
                raise
            return patched(text)
    except UNREADABLE as error:
        raise RefusalError(400, f"the request is not valid: {fault(error)}") from None


def _json_end(exchange: Exchange, body: bytes | bytearray) -> int:
    value = exchange.header_length
    if value is None:
        return len(body)
    # What is wrong with it is said where the body is taken apart.
    return min(int(value), len(body)) if value.isdigit() and len(value) <= 18 else 0


def _work(
    exchange: Exchange, limits: Limits, received_s: float, numbers: bool
) -> Generator[int, None, Prepared]:
    """Yield how many bytes are to be counted beside the body as it came."""
    body, data = exchange.body, exchange.body
    unpacked: bytes | bytearray = data
    if exchange.encoding is not None:
        limit, beyond = limits.body_bytes, ""
        if exchange.header_length is None and limits.json_bytes < limit:
            limit, beyond = limits.json_bytes, long_json(limits.json_bytes)
        unpacked = yield from unpacking(body, exchange.encoding, limit, beyond)
    end = _json_end(exchange, unpacked)
    if not LARGE < end <= limits.json_bytes:
        return Prepared(received_s, None, unpacked)
    yield 0
    message = read(memoryview(unpacked)[:end])
    arrays: dict[int, NDArray[Any]] = {}
    for place, given in enumerate(message.inputs if numbers else ()):
        size = memoryview(given.data).nbytes
        if size > LARGE and given.datatype in _READ:
            yield 0
            # What does not fit its shape is refused where that is checked, before any is read.
            if all(given.shape) and math.prod(given.shape) <= min(limits.elements, size):
                arrays[place] = yield from long_from_json(
                    given.name, given.datatype, tuple(given.shape), bytes(given.data)
                )
    return Prepared(received_s, None, unpacked, message, arrays)
