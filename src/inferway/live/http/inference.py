"""The infer endpoint: body to checked request, outcome to response.

A body is unpacked and read at once where it is small, else beside. Clients send parameters of other
servers along, and those are ignored, as the protocol's extensions ask; one that is two letters from
ours was meant to be ours, and is refused.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple, cast

import msgspec
from numpy.typing import NDArray

from inferway.live.http.compression import SMALLEST, accepted, packing, unpacking
from inferway.live.http.exchange import (
    ACCEPT_ENCODING,
    ENCODING,
    FAILED,
    HEADER_LENGTH,
    JSON,
    OCTETS,
    RETRY,
    Exchange,
    Limits,
)
from inferway.live.intake import Intake, answer_parameters
from inferway.live.request import LONGEST_RETRY_S, STATUS, InferRequest, Outcome
from inferway.live.upstream.headers import ResponseHeaders
from inferway.protocol import DTYPES, RefusalError, Tensor, messages
from inferway.protocol import tensors as codec
from inferway.protocol.schema import long_json
from inferway.runtime import Arrays
from inferway.spelling import edits
from inferway.unreadable import UNREADABLE, fault

# Elements of an answer in JSON that are written beside the loop, two milliseconds, and bytes of one
# that are packed there.
LONG: Final = 16 * 1024
LONG_PACKED: Final = 128 * 1024
_VARY: Final = b"Vary: Accept-Encoding\r\n"
# What msgspec says of a parameter that is none of ours.
_UNKNOWN: Final = "contains unknown field"
_READ: Final = frozenset(DTYPES) - {"BYTES"}
# Edits from one of ours within which a name is a slip, and how much of it is shown.
_NEAR: Final = 2
_LONGEST_SHOWN: Final = 40
# Names of known conventions, Triton's and MLServer's, and how others begin.
_FAMILIES: Final = ("binary_data", "sequence_", "shared_memory_", "triton_")
_KNOWN: Final = frozenset({"classification", "content_type", "headers", "priority", "timeout"})
_Fields = dict[str, msgspec.Raw]


class Prepared(NamedTuple):
    """A body that has been unpacked and read beside, or why that could not be.

    It was whole at `received_s` on the site's clock. `data` is the body, unpacked, `message` its
    JSON, None where that is left to the handler, with so many parameters that were ignored, and
    `arrays` long lists of numbers by the input's place in the message.
    """

    received_s: float
    refusal: RefusalError | None
    data: bytes | bytearray = b""
    message: messages.InferMessage | None = None
    ignored: int = 0
    arrays: Mapping[int, NDArray[Any]] = {}


class Wanted(NamedTuple):
    """The form in which the client wants its answer: its id, and the outputs, raw or not."""

    infer: Infer
    exchange: Exchange
    id: str
    outputs: list[tuple[Tensor, bool]]


class Infer:
    """Answers POST .../infer for one task, or for the variant that the path pins."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.site = site = intake.site
        self.headers = None if site.node is None else ResponseHeaders(site.node)
        signature = site.pool.signature
        # What goes to another node is decoded there; batches of open shapes look at each other's.
        self._later = site.pool.forwards(intake.classes) and not any(
            -1 in tensor.shape[1:] for tensor in signature.inputs
        )
        self._forms = [[(tensor, raw) for tensor in signature.outputs] for raw in (False, True)]

    def __call__(self, exchange: Exchange) -> None:
        """Check a whole request and submit it."""
        request = self.take(exchange, self.site.now())
        if request is not None:
            self.site.submit(request)

    def take(self, exchange: Exchange, received_s: float) -> InferRequest | None:
        """Check a whole request; one that does not fit is refused, and None comes back.

        So it does of one whose body is prepared beside; its handler is found again.
        """
        site = self.site
        if exchange.prepared is not None:
            received_s = exchange.prepared.received_s
        elif ENCODING in exchange.headers or len(exchange.body) > codec.LARGE:
            limits = self.intake.limits
            if not prepare(exchange, limits, received_s, numbers=not self._later):
                return None
        try:
            if not site.ready:
                raise RefusalError(503, site.unready)
            request = self._parse(exchange, received_s)
        except RefusalError as refusal:
            unready = refusal.status == 503
            site.stats.ended(Outcome.UNAVAILABLE if unready else Outcome.INVALID)
            extra = RETRY * unready
            if self.headers is not None:
                took_s = site.now() - received_s
                extra += self.headers.own(exchange.path, took_s, "", unready)
            exchange.refuse(refusal.status, refusal.reason, extra)
            return None
        request.identity = identity = exchange.name()
        request.id = identity.id
        request.raw, request.undecoded = exchange, self._later
        exchange.request, exchange.withdraw = request, site.cancel
        return request

    def _parse(self, exchange: Exchange, received_s: float) -> InferRequest:
        """Decode and check the body; RefusalError with status 4xx and the reason."""
        body: bytes | bytearray = exchange.body
        message: messages.InferMessage | None = None
        before: Mapping[int, NDArray[Any]] = {}
        ignored = 0
        if exchange.prepared is not None:
            _, refusal, body, message, ignored, before = exchange.prepared
            if refusal is not None:
                raise refusal
        binary_at = len(body)
        text: bytes | bytearray | memoryview = body
        if (value := exchange.headers.get(HEADER_LENGTH)) is not None:
            binary_at = _header_length(value, binary_at)
            text = memoryview(body)[:binary_at]
            if binary_at > (limit := self.intake.limits.json_bytes):
                raise RefusalError(413, long_json(limit))
        if message is None:
            message, ignored = read(text)
        self.site.stats.ignored += ignored
        schema, arrays = self.intake.schema, Arrays()
        for place, given in enumerate(message.inputs):
            name, datatype = given.name, given.datatype
            shape = schema.input(name, datatype, given.shape, arrays)
            parameters = given.parameters
            size = None if parameters is None else parameters.binary_data_size
            has_data = memoryview(given.data).nbytes > 0
            if size is not None:
                if has_data:
                    raise RefusalError(400, f"input {name!r} has both data and binary_data_size")
                if binary_at + size > len(body):
                    raise RefusalError(
                        400,
                        f"input {name!r} announces {size} bytes of binary data; "
                        f"{len(body) - binary_at} are left after the JSON and the inputs before it",
                    )
                arrays[name] = codec.from_bytes(name, datatype, shape, body, binary_at, size)
                binary_at += size
            elif parameters is not None and parameters.shared_memory_region is not None:
                raise RefusalError(501, "shared memory is not offered; send the data")
            elif not has_data:
                raise RefusalError(400, f"input {name!r} has neither data nor binary_data_size")
            elif place in before:
                arrays[name] = before[place]
            elif self._later:
                arrays[name] = cast("Any", codec.LazyTensor(name, datatype, shape, given.data))
            else:
                arrays[name] = codec.from_json(name, datatype, shape, given.data)
        schema.complete(arrays)
        if left := len(body) - binary_at:
            raise RefusalError(400, f"{left} bytes of binary data belong to no input")
        asked = message.parameters
        raw = asked is not None and asked.binary_data_output
        outputs = self._outputs(message, raw) if message.outputs else self._forms[raw]
        wanted = Wanted(self, exchange, message.id, outputs)
        return self.intake.request(arrays, asked, reply, wanted, received_s)

    def _outputs(self, message: messages.InferMessage, raw: bool) -> list[tuple[Tensor, bool]]:
        wanted: dict[str, tuple[Tensor, bool]] = {}
        for output in message.outputs or ():
            own = output.parameters
            tensor = self.intake.schema.output(output.name, wanted, own)
            as_raw = raw if own is None or own.binary_data is None else own.binary_data
            wanted[output.name] = tensor, as_raw
        return list(wanted.values())


def prepare(exchange: Exchange, limits: Limits, received_s: float, *, numbers: bool) -> bool:
    """Unpack a body that was whole at a time and read its JSON, where these are much work.

    The exchange gets `prepared` where its body is packed, or its JSON long; long lists of numbers
    are read too where that is asked. Returns False where the exchange's handler will be found again
    when that is done.
    """
    packed = ENCODING in exchange.headers
    if not packed and _json_end(exchange, exchange.body) <= codec.LARGE:
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
        except Exception as error:
            if not isinstance(error, RefusalError):
                listener.broken(error)
                error = RefusalError(500, FAILED)
            exchange.prepared = Prepared(received_s, error)
        exchange.request = exchange.withdraw = None
        connection.handle(exchange)

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


def _work(
    exchange: Exchange, limits: Limits, received_s: float, numbers: bool
) -> Generator[int, None, Prepared]:
    """Yield how many bytes are to be counted beside the body as it came."""
    body: bytes | bytearray = exchange.body
    if (encoding := exchange.headers.get(ENCODING)) is not None:
        limit, beyond = limits.body_bytes, ""
        if HEADER_LENGTH not in exchange.headers and limits.json_bytes < limit:
            limit, beyond = limits.json_bytes, long_json(limits.json_bytes)
        body = yield from unpacking(exchange.body, encoding, limit, beyond)
    end = _json_end(exchange, body)
    if not codec.LARGE < end <= limits.json_bytes:
        return Prepared(received_s, None, body)
    yield 0
    message, ignored = read(memoryview(body)[:end])
    arrays: dict[int, NDArray[Any]] = {}
    for place, given in enumerate(message.inputs if numbers else ()):
        size = memoryview(given.data).nbytes
        if size > codec.LARGE and given.datatype in _READ:
            yield 0
            # What does not fit its shape is refused where that is checked, before any is read.
            if all(given.shape) and math.prod(given.shape) <= min(limits.elements, size):
                arrays[place] = yield from codec.long_from_json(
                    given.name, given.datatype, tuple(given.shape), bytes(given.data)
                )
    return Prepared(received_s, None, body, message, ignored, arrays)


def _json_end(exchange: Exchange, body: bytes | bytearray) -> int:
    value = exchange.headers.get(HEADER_LENGTH)
    if value is None:
        return len(body)
    # What is wrong with it is said where the body is taken apart.
    return min(int(value), len(body)) if value.isdigit() and len(value) <= 18 else 0


def _header_length(value: bytes, limit: int) -> int:
    if not value.isdigit() or len(value) > 18:
        shown = value[:32].decode("latin-1")
        raise RefusalError(400, f"Inference-Header-Content-Length is {shown!r}, expected a number")
    length = int(value)
    if length > limit:
        raise RefusalError(
            400, f"Inference-Header-Content-Length is {length}, the body has {limit} bytes"
        )
    return length


def read(text: bytes | bytearray | memoryview) -> tuple[messages.InferMessage, int]:
    """Read the JSON of a request; how many of its parameters mean nothing here and are left out.

    RefusalError where it is none, or where one of these was meant to be another.
    """
    try:
        try:
            return messages.decode_infer(text), 0
        except msgspec.ValidationError as error:
            if _UNKNOWN not in str(error):
                raise
            return _without_unknown(text)
    except UNREADABLE as error:
        raise RefusalError(400, f"the request is not valid: {fault(error)}") from None


def _without_unknown(text: bytes | bytearray | memoryview) -> tuple[messages.InferMessage, int]:
    ignored = 0

    def kept(given: _Fields, kind: type[msgspec.Struct]) -> dict[str, Any]:
        nonlocal ignored
        said = given.get("parameters", b"null")
        parameters = msgspec.json.decode(said, type=_Fields | None) or {}
        unknown = unknown_in(parameters, kind)
        ignored += len(unknown)
        left = {name: value for name, value in parameters.items() if name not in unknown}
        return given | {"parameters": left} if unknown else given

    message: dict[str, Any] = msgspec.json.decode(text, type=_Fields)
    for name in ("inputs", "outputs"):
        if name in message:
            tensors = msgspec.json.decode(message[name], type=list[_Fields] | None)
            if tensors is not None:
                message[name] = [kept(tensor, messages.TensorParameters) for tensor in tensors]
    message = kept(message, messages.InferParameters)
    return messages.decode_infer(messages.encode(message)), ignored


def unknown_in(names: Iterable[str], kind: type[msgspec.Struct]) -> set[str]:
    """Find the names that are no parameters of a kind.

    RefusalError when one of them is near to one of the kind's, and of no known convention.
    """
    ours = kind.__struct_fields__
    unknown = set(names).difference(ours)
    for name in unknown:
        if name not in _KNOWN and not name.startswith(_FAMILIES):
            apart, near = min((edits(name, one, _NEAR), one) for one in ours)
            if apart <= _NEAR:
                raise RefusalError(
                    400, f"unknown parameter {name[:_LONGEST_SHOWN]!r}; did you mean {near!r}?"
                )
    return unknown


def reply(request: InferRequest) -> None:
    """Send what came of a request; RefusalError when the protocol cannot hold the answer."""
    wanted: Wanted = request.context
    exchange, site, headers = wanted.exchange, wanted.infer.site, wanted.infer.headers
    exchange.request = exchange.withdraw = None
    extra = b""
    if request.passed is not None:  # another node's answer, its body as it came
        answer = request.passed
        extra = answer.lines
        if headers is not None:
            extra = headers.passed(answer, exchange.path, site.now() - request.received_s)
        exchange.respond(answer.status, answer.body, answer.kind, extra)
        return
    if request.outcome is not Outcome.ANSWERED:
        assert request.outcome is not None
        busy = request.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE)
        if busy:
            wait_s = min(LONGEST_RETRY_S, request.retry_after_s)
            extra = b"Retry-After: %d\r\n" % max(1, math.ceil(wait_s))
        if headers is not None:
            # What has begun to run may have been run, unless whoever ran it said otherwise.
            unserved = busy and (request.unserved or not request.started_s) and not request.lost
            took_s = site.now() - request.received_s
            extra += headers.own(exchange.path, took_s, request.variant, unserved)
        exchange.refuse(request.status or STATUS[request.outcome], request.reason, extra)
        return
    if headers is not None:
        extra = headers.own(exchange.path, request.latency_s, request.variant, False)
    encoding = exchange.headers.get(ACCEPT_ENCODING)
    if _is_long(request, wanted.outputs, packed=encoding is not None):
        # The request has ended, and its place is free; only its answer is still being written.
        beside = exchange.connection.listener.beside
        exchange.request = beside.begin(_reply_later(request, wanted, extra))
        exchange.withdraw = asyncio.Task.cancel
        return
    lines, kind, parts = _encoded(request, wanted, {})
    if encoding is not None and sum(map(len, parts)) >= SMALLEST:
        encoding = accepted(encoding)
        if encoding is not None:
            parts = codec.finished(packing(parts, encoding))
            lines += b"Content-Encoding: %s\r\n" % encoding
    exchange.respond(200, parts[0], kind, extra + lines, parts[1:])


def _is_long(request: InferRequest, wanted: list[tuple[Tensor, bool]], *, packed: bool) -> bool:
    """Tell an answer that would hold up the event loop: much JSON, or much to pack."""
    outputs, elements, size = request.outputs, 0, 0
    assert outputs is not None
    for tensor, raw in wanted:
        array = outputs[tensor.name]
        if tensor.datatype == "BYTES":
            return False  # what cannot be written is to be said before the request has ended
        elements += 0 if raw else array.size
        size += array.nbytes
    return elements > LONG or (packed and size > LONG_PACKED)


async def _reply_later(request: InferRequest, wanted: Wanted, extra: bytes) -> None:
    exchange = wanted.exchange
    listener = exchange.connection.listener
    try:
        lines, kind, parts = await listener.beside.result(_written(request, wanted))
    except Exception as error:
        exchange.request = exchange.withdraw = None
        listener.broken(error)
        exchange.refuse(500, "the answer could not be sent", extra)
    else:
        exchange.request = exchange.withdraw = None
        exchange.respond(200, b"", kind, extra + lines, parts)


def _written(
    request: InferRequest, wanted: Wanted
) -> Generator[int, None, tuple[bytes, bytes, list[bytes]]]:
    """Write a long answer step by step: header lines, type, and the body in pieces."""
    outputs = request.outputs
    assert outputs is not None
    lists = {}
    for tensor, raw in wanted.outputs:
        if not raw:
            lists[tensor.name] = yield from codec.long_to_json(outputs[tensor.name])
    lines, kind, parts = _encoded(request, wanted, lists)
    encoding = accepted(wanted.exchange.headers.get(ACCEPT_ENCODING, b""))
    if encoding is not None:
        yield 0
        parts = yield from packing(parts, encoding)
        lines += b"Content-Encoding: %s\r\n" % encoding
    return lines, kind, parts


def _encoded(
    request: InferRequest, wanted: Wanted, lists: Mapping[str, Any]
) -> tuple[bytes, bytes, list[bytes]]:
    """Encode an answer: header lines, type, and its JSON with the raw outputs after it.

    `lists` has the JSON of outputs that has been written before.
    """
    outputs, exchange = request.outputs, wanted.exchange
    assert outputs is not None
    listed = []
    parts = [b""]
    for tensor, raw in wanted.outputs:
        name, datatype = tensor.name, tensor.datatype
        array, size, data = outputs[name], None, None
        if raw:
            parts.append(codec.to_bytes(datatype, array))
            size = messages.BinarySize(len(parts[-1]))
        else:
            data = lists[name] if lists else codec.to_json(name, datatype, array)
        listed.append(messages.OutputMessage(name, datatype, array.shape, size, data))
    parameters = answer_parameters(request)
    if exchange.connection.listener.hops:
        parameters.accuracy_balance = None
    task = wanted.infer.site.task
    message = messages.AnswerMessage(task, request.variant, parameters, listed, wanted.id)
    parts[0] = messages.encode(message)
    lines = _VARY if ACCEPT_ENCODING in exchange.headers else b""
    if len(parts) == 1:
        return lines, JSON, parts
    return lines + b"Inference-Header-Content-Length: %d\r\n" % len(parts[0]), OCTETS, parts
