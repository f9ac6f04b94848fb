"""A body on its way to its handler: unpacked and read at once where it is small, else beside.

Clients send parameters of other servers along, and those are ignored, as the protocol's extensions
ask. One that is two letters from ours was meant to be ours, and is refused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Iterable
from typing import Any, Final

import msgspec
from numpy.typing import NDArray

from inferway.live.http.compression import unpacking
from inferway.live.http.exchange import Exchange, Prepared
from inferway.live.http.limits import Limits
from inferway.protocol import DTYPES
from inferway.protocol.messages import InferMessage, InferParameters, TensorParameters, decode_infer
from inferway.protocol.refusal import RefusalError, long_json
from inferway.protocol.tensors import LARGE, long_from_json
from inferway.spelling import edits
from inferway.unreadable import UNREADABLE, fault

_UNKNOWN: Final = "contains unknown field"
"""What msgspec says of a parameter that is none of ours."""
_READ: Final = frozenset(DTYPES) - {"BYTES"}
_NEAR: Final = 2
"""Edits from one of ours within which a name is a slip."""
_LONGEST_SHOWN: Final = 40
_FAMILIES: Final = ("binary_data", "sequence_", "shared_memory_", "triton_")
"""How names of known conventions begin."""
_KNOWN: Final = frozenset({"classification", "content_type", "headers", "priority", "timeout"})
"""Other names of known conventions: Triton's, and MLServer's."""
_Fields = dict[str, msgspec.Raw]


def prepare(exchange: Exchange, limits: Limits, received_s: float, *, numbers: bool) -> bool:
    """Unpack a body that was whole at a time and read its JSON, where these are much work.

    The exchange gets `prepared` where its body is packed, or its JSON long; long lists of numbers
    are read too where that is asked. Returns False where the exchange's handler will be found again
    when that is done.
    """
    packed = exchange.encoding is not None
    if not packed and _json_end(exchange, exchange.body) <= LARGE:
        return True
    connection = exchange.connection
    listener = connection.listener
    work = _work(exchange, limits, received_s, numbers)
    counted = 0

    def count(size: int) -> None:
        nonlocal counted
        more, counted = size - counted, max(size, counted)
        if more > 0 and not connection.grow(exchange, more):
            raise RefusalError(503, listener.bodies.reason)

    def keep(prepared: Prepared) -> None:
        if prepared.data is not exchange.body:
            count(len(prepared.data))
        exchange.prepared = prepared

    async def rest() -> None:
        try:
            keep(await listener.beside.result(work, count))
        except RefusalError as refusal:
            exchange.prepared = Prepared(received_s, refusal)
        except Exception as error:
            listener.broken(error)
            failure = RefusalError(500, "the server failed on this request")
            exchange.prepared = Prepared(received_s, failure)
        exchange.request = exchange.withdraw = None
        connection.again(exchange)

    try:
        try:
            if packed:  # most bodies end with the first step
                count(next(work))
        except StopIteration as end:
            keep(end.value)
            return True
    except RefusalError as refusal:
        exchange.prepared = Prepared(received_s, refusal)
        return True
    exchange.request = listener.beside.begin(rest())
    exchange.withdraw = asyncio.Task.cancel
    return False


def read(text: bytes | bytearray | memoryview) -> tuple[InferMessage, int]:
    """Read the JSON of a request; how many of its parameters mean nothing here and are left out.

    RefusalError where it is none, or where one of these was meant to be another.
    """
    try:
        try:
            return decode_infer(text), 0
        except msgspec.ValidationError as error:
            if _UNKNOWN not in str(error):
                raise
            return _without_unknown(text)
    except UNREADABLE as error:
        raise RefusalError(400, f"the request is not valid: {fault(error)}") from None


def _without_unknown(text: bytes | bytearray | memoryview) -> tuple[InferMessage, int]:
    ignored = 0

    def kept(given: _Fields, kind: type[msgspec.Struct]) -> dict[str, Any]:
        nonlocal ignored
        parameters = msgspec.json.decode(given.get("parameters", b"null"), type=_Fields | None)
        unknown = unknown_in(parameters or (), kind)
        ignored += len(unknown)
        if not unknown:
            return given
        left = {name: value for name, value in (parameters or {}).items() if name not in unknown}
        return given | {"parameters": left}

    message: dict[str, Any] = msgspec.json.decode(text, type=_Fields)
    for name in ("inputs", "outputs"):
        if name in message:
            tensors = msgspec.json.decode(message[name], type=list[_Fields] | None)
            if tensors is not None:
                message[name] = [kept(tensor, TensorParameters) for tensor in tensors]
    message = kept(message, InferParameters)
    return decode_infer(msgspec.json.encode(message)), ignored


def unknown_in(names: Iterable[str], kind: type[msgspec.Struct]) -> set[str]:
    """Find the names that are no parameters of a kind.

    RefusalError when one of them is near to one of the kind's, and of no known convention.
    """
    ours = kind.__struct_fields__
    unknown = {name for name in names if name not in ours}
    for name in unknown:
        if name in _KNOWN or name.startswith(_FAMILIES):
            continue
        apart, near = min((edits(name, one, _NEAR), one) for one in ours)
        if apart <= _NEAR:
            raise RefusalError(
                400, f"unknown parameter {name[:_LONGEST_SHOWN]!r}; did you mean {near!r}?"
            )
    return unknown


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
    body: bytes | bytearray = exchange.body
    if exchange.encoding is not None:
        limit, beyond = limits.body_bytes, ""
        if exchange.header_length is None and limits.json_bytes < limit:
            limit, beyond = limits.json_bytes, long_json(limits.json_bytes)
        body = yield from unpacking(exchange.body, exchange.encoding, limit, beyond)
    end = _json_end(exchange, body)
    if not LARGE < end <= limits.json_bytes:
        return Prepared(received_s, None, body)
    yield 0
    message, ignored = read(memoryview(body)[:end])
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
    return Prepared(received_s, None, body, message, ignored, arrays)
