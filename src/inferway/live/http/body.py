"""A body on its way to its handler: unpacked and read at once where it is small, else beside.

Clients send parameters of other servers along, and those are ignored, as the protocol's extensions
ask. One that is two letters from ours was meant to be ours, and is refused.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from typing import Any, Final

import msgspec
from numpy.typing import NDArray

from inferway.live.http.beside import SteppedWork
from inferway.live.http.compression import unpacking
from inferway.live.http.exchange import Exchange, Prepared
from inferway.live.http.limits import Limits
from inferway.protocol import DTYPES
from inferway.protocol.messages import (
    Count,
    InferMessage,
    InferParameters,
    InputMessage,
    RequestedOutput,
    TensorParameters,
    decode_infer,
)
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


def prepare(exchange: Exchange, limits: Limits, received_s: float, *, numbers: bool) -> bool:
    """Unpack a body that was whole at a time and read its JSON, where these are much work.

    The exchange gets `prepared` where its body is packed, or its JSON long; long lists of numbers
    are read too where that is asked. Returns False where the exchange's handler will be found again
    when that is done.
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


class _Tensor(msgspec.Struct, gc=False):
    """An input or a requested output with any parameters."""

    name: str
    parameters: dict[str, msgspec.Raw] | None = None


class _Input(_Tensor, gc=False, kw_only=True):
    """An input with any parameters."""

    datatype: str
    shape: list[Count]
    data: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct, gc=False):
    """A request with any parameters."""

    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, msgspec.Raw] | None = None
    outputs: list[_Tensor] | None = None


class PatchedMessage(InferMessage, gc=False, kw_only=True):
    """A request without the parameters that mean nothing here; `ignored` of them were left out."""

    ignored: int


_decode = msgspec.json.Decoder(_Message).decode
_encode = msgspec.json.Encoder().encode


def patched(text: bytes | bytearray | memoryview) -> PatchedMessage:
    """Read a request that has parameters which mean nothing here, and leave these out.

    RefusalError when one of them was meant to be another; else as decoding.
    """
    found = _decode(text)
    ignored = 0

    def left(given: dict[str, msgspec.Raw] | None, kind: type[Any]) -> Any:
        nonlocal ignored
        if given is None:
            return None
        unknown = unknown_in(given, kind)
        ignored += len(unknown)
        kept = {name: value for name, value in given.items() if name not in unknown}
        return msgspec.json.decode(_encode(kept), type=kind)

    inputs = [
        InputMessage(
            one.name, one.datatype, one.shape, left(one.parameters, TensorParameters), one.data
        )
        for one in found.inputs
    ]
    outputs = None
    if found.outputs is not None:
        outputs = [
            RequestedOutput(one.name, left(one.parameters, TensorParameters))
            for one in found.outputs
        ]
    parameters = left(found.parameters, InferParameters)
    return PatchedMessage(
        inputs=inputs, id=found.id, parameters=parameters, outputs=outputs, ignored=ignored
    )


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
