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
LONG, LONG_PACKED = 16 * 1024, 128 * 1024
_VARY: Final = b"Vary: Accept-Encoding\r\n"
# What msgspec says of a parameter that is none of ours.
_UNKNOWN: Final = "contains unknown field"
_READ: Final = frozenset(DTYPES) - {"BYTES"}
# Edits from one of ours within which a name is a slip.
_NEAR: Final = 2
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


class Infer:
    """Answers POST .../infer for one task, or for the variant that the path pins."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.site = site = intake.site
        self.headers = None if site.node is None else ResponseHeaders(site.node)
        self._look()

    def _look(self) -> None:
        """Look at the fleet that answers now: what goes on undecoded, and the forms of answers."""
        pool = self.site.pool
        signature = pool.signature
        # What goes to another node is decoded there. Batches of open shapes look at each other's,
        # and where answers are looked at, what is sent on is written anew.
        looks = pool.dispatcher.settles and self.intake.counted
        self._later = (
            pool.forwards(self.intake.classes)
            and not looks
            and not any(-1 in tensor.shape[1:] for tensor in signature.inputs)
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
        if self.intake.follow():
            self._look()
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
        binary_at, limit = len(body), self.intake.limits.json_bytes
        if HEADER_LENGTH in exchange.headers:
            binary_at = _json_end(exchange, body)
            if binary_at > limit:
                raise RefusalError(413, long_json(limit))
        if message is None:
            message, ignored = read(
                body if binary_at == len(body) else memoryview(body)[:binary_at]
            )
        self.site.stats.ignored += ignored
        schema = self.intake.schema
        arrays: Arrays = {}
        for place, given in enumerate(message.inputs):
            name, datatype = given.name, given.datatype
            shape = schema.input(name, datatype, given.shape, arrays)
            parameters = given.parameters
            size = None if parameters is None else parameters.binary_data_size
            has_data = given.data is not messages.NO_DATA
            if size is not None:
                if has_data:
                    raise RefusalError(400, f"input {name!r} has both data and binary_data_size")
                if size > (left := len(body) - binary_at):
                    reason = f"{left} are left after the JSON and the inputs before it"
                    raise RefusalError(
                        400, f"input {name!r} announces {size} bytes of binary data; {reason}"
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
        # The form in which the client wants its answer: its id, and the outputs, raw or not.
        return self.intake.request(arrays, asked, self.reply, (message.id, outputs), received_s)

    def _outputs(self, message: messages.InferMessage, raw: bool) -> list[tuple[Tensor, bool]]:
        wanted: dict[str, tuple[Tensor, bool]] = {}
        for output in message.outputs or ():
            own = output.parameters
            tensor = self.intake.schema.output(output.name, wanted, own)
            as_raw = raw if own is None or own.binary_data is None else own.binary_data
            wanted[output.name] = tensor, as_raw
        return list(wanted.values())

    def reply(self, request: InferRequest) -> None:
        """Send what came of a request; RefusalError when the protocol cannot hold the answer."""
        exchange: Exchange = request.raw
        site, headers = self.site, self.headers
        extra, answer = b"", request.passed
        if answer is not None and request.outputs is None:  # another node's, its body as it came
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
        if headers is not None and answer is None:
            extra = headers.own(exchange.path, request.latency_s, request.variant, False)
        elif headers is not None:
            extra = headers.passed(answer, exchange.path, request.latency_s)
        packed = ACCEPT_ENCODING in exchange.headers
        if _is_long(request, packed=packed):
            # The request has ended, and its place is free; only its answer is still being written.
            beside = exchange.connection.listener.beside
            exchange.request = beside.begin(self._reply_later(request, extra))
            exchange.withdraw = asyncio.Task.cancel
            return
        if packed:
            lines, kind, parts = codec.finished(self._packed(request, {}))
        else:  # most of them
            lines, kind, parts = self._encoded(request, {})
        exchange.respond(200, parts[0], kind, extra + lines, parts[1:])

    async def _reply_later(self, request: InferRequest, extra: bytes) -> None:
        exchange: Exchange = request.raw
        listener = exchange.connection.listener
        try:
            lines, kind, parts = await listener.beside.result(self._written(request))
        except Exception as error:
            listener.broken(error)
            exchange.refuse(500, "the answer could not be sent", extra)
        else:
            exchange.respond(200, b"", kind, extra + lines, parts)

    def _written(
        self, request: InferRequest
    ) -> Generator[int, None, tuple[bytes, bytes, list[bytes]]]:
        """Write a long answer step by step, as `_packed` does."""
        lists, outputs = {}, request.outputs or {}
        for tensor, raw in request.context[1]:
            if not raw:
                lists[tensor.name] = yield from codec.long_to_json(outputs[tensor.name])
        return (yield from self._packed(request, lists))

    def _packed(
        self, request: InferRequest, lists: Mapping[str, Any]
    ) -> Generator[int, None, tuple[bytes, bytes, list[bytes]]]:
        """Encode an answer, and pack it where the client can take that and it is worth it."""
        lines, kind, parts = self._encoded(request, lists)
        wish = request.raw.headers.get(ACCEPT_ENCODING, b"")
        encoding = accepted(wish) if sum(map(len, parts)) >= SMALLEST else None
        if encoding is not None:
            yield 0
            parts = yield from packing(parts, encoding)
            lines += b"Content-Encoding: %s\r\n" % encoding
        return lines, kind, parts

    def _encoded(
        self, request: InferRequest, lists: Mapping[str, Any]
    ) -> tuple[bytes, bytes, list[bytes]]:
        """Encode an answer: header lines, type, and its JSON with the raw outputs after it.

        `lists` has the JSON of outputs that has been written before.
        """
        outputs, exchange = request.outputs or {}, request.raw
        identity, wanted = request.context
        described = []
        parts = [b""]
        for tensor, raw in wanted:
            name, datatype = tensor.name, tensor.datatype
            array, size, data = outputs[name], None, None
            if raw:
                parts.append(codec.to_bytes(datatype, array))
                size = messages.BinarySize(len(parts[-1]))
            else:
                data = lists[name] if lists else codec.to_json(name, datatype, array)
            described.append(messages.OutputMessage(name, datatype, array.shape, size, data))
        parameters = answer_parameters(request)
        if exchange.connection.listener.hops:
            parameters.accuracy_balance = None
        message = messages.AnswerMessage(
            self.site.task, request.variant, parameters, described, identity
        )
        parts[0] = messages.encode(message)
        lines = _VARY if ACCEPT_ENCODING in exchange.headers else b""
        if len(parts) == 1:
            return lines, JSON, parts
        return lines + b"Inference-Header-Content-Length: %d\r\n" % len(parts[0]), OCTETS, parts


def _is_long(request: InferRequest, *, packed: bool) -> bool:
    """Tell an answer that would hold up the event loop: much JSON, or much to pack."""
    outputs, elements, size = request.outputs or {}, 0, 0
    for tensor, raw in request.context[1]:
        array = outputs[tensor.name]
        if tensor.datatype == "BYTES":
            return False  # what cannot be written is to be said before the request has ended
        elements += 0 if raw else array.size
        size += array.nbytes
    return elements > LONG or (packed and size > LONG_PACKED)


def prepare(exchange: Exchange, limits: Limits, received_s: float, *, numbers: bool) -> bool:
    """Unpack a body that was whole at a time, and read its JSON where that is long, step by step.

    The exchange gets `prepared`; long lists of `numbers` are read too where that is asked. Returns
    False where the exchange's handler will be found again when that is done.
    """
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
                error = RefusalError(500, "the server failed on this request")
            exchange.prepared = Prepared(received_s, error)
        connection.handle(exchange)

    try:
        try:
            count(next(work))  # most bodies end with the first step
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
    """Find where the JSON of a body ends; RefusalError where its header is wrong about it."""
    value, size = exchange.headers.get(HEADER_LENGTH), len(body)
    if value is None:
        return size
    if not value.isdigit() or len(value) > 18:
        shown = value[:32].decode("latin-1")
        raise RefusalError(400, f"Inference-Header-Content-Length is {shown!r}, expected a number")
    if (length := int(value)) > size:
        raise RefusalError(
            400, f"Inference-Header-Content-Length is {length}, the body has {size} bytes"
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
                raise RefusalError(400, f"unknown parameter {name[:40]!r}; did you mean {near!r}?")
    return unknown
