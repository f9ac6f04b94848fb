"""The infer endpoint: body to checked request, outcome to response."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Mapping
from typing import Any, Final, NamedTuple, cast

from numpy.typing import NDArray

from inferway.live.http.body import prepare, read
from inferway.live.http.compression import SMALLEST, accepted, compress, packing
from inferway.live.http.exchange import JSON, OCTETS, RETRY, Exchange
from inferway.live.intake import Intake, answer_parameters
from inferway.live.request import LONGEST_RETRY_S, STATUS, InferRequest, Outcome
from inferway.live.upstream.headers import ResponseHeaders
from inferway.protocol import Tensor
from inferway.protocol import tensors as codec
from inferway.protocol.messages import (
    AnswerMessage,
    BinarySize,
    InferMessage,
    InputMessage,
    OutputMessage,
    encode,
)
from inferway.protocol.refusal import RefusalError, long_json
from inferway.runtime import Arrays

LONG: Final = 16 * 1024
"""Elements of an answer in JSON that are written beside the loop: two milliseconds."""
LONG_PACKED: Final = 128 * 1024
"""Bytes of an answer that are packed there."""
_VARY: Final = b"Vary: Accept-Encoding\r\n"


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
        outputs = self.site.signature.outputs
        # What goes to another node is decoded there; batches of open shapes look at each other's.
        self._later = self.site.pool.forwards(intake.classes) and not any(
            -1 in tensor.shape[1:] for tensor in self.site.signature.inputs
        )
        self._forms = [[(tensor, raw) for tensor in outputs] for raw in (False, True)]

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
        elif (exchange.encoding is not None or len(exchange.body) > codec.LARGE) and not prepare(
            exchange, self.intake.limits, received_s, numbers=not self._later
        ):
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
        message: InferMessage | None = None
        ignored, read_before = 0, None
        if exchange.prepared is not None:
            _, refusal, body, message, ignored, read_before = exchange.prepared
            if refusal is not None:
                raise refusal
        json_end = len(body)
        text: bytes | bytearray | memoryview = body
        if exchange.header_length is not None:
            json_end = _header_length(exchange.header_length, len(body))
            text = memoryview(body)[:json_end]
            limit = self.intake.limits.json_bytes
            if json_end > limit:
                raise RefusalError(413, long_json(limit))
        if message is None:
            message, ignored = read(text)
        self.site.stats.ignored += ignored
        arrays = self._arrays(message.inputs, body, json_end, read_before or {})
        parameters = message.parameters
        raw = parameters is not None and parameters.binary_data_output
        outputs = self._outputs(message, raw) if message.outputs else self._forms[raw]
        wanted = Wanted(self, exchange, message.id, outputs)
        return self.intake.request(arrays, parameters, reply, wanted, received_s)

    def _arrays(
        self,
        inputs: list[InputMessage],
        body: bytes | bytearray,
        binary_at: int,
        read_before: Mapping[int, NDArray[Any]],
    ) -> Arrays:
        arrays: Arrays = {}
        schema = self.intake.schema
        for place, given in enumerate(inputs):
            name, datatype = given.name, given.datatype
            shape = schema.input(name, datatype, given.shape, arrays)
            parameters = given.parameters
            size = None if parameters is None else parameters.binary_data_size
            if size is None:
                if parameters is not None and parameters.shared_memory_region is not None:
                    raise RefusalError(501, "shared memory is not offered; send the data")
                if not memoryview(given.data).nbytes:
                    raise RefusalError(400, f"input {name!r} has neither data nor binary_data_size")
                if place in read_before:
                    arrays[name] = read_before[place]
                elif self._later:
                    arrays[name] = cast("Any", codec.LazyTensor(name, datatype, shape, given.data))
                else:
                    arrays[name] = codec.from_json(name, datatype, shape, given.data)
                continue
            if memoryview(given.data).nbytes:
                raise RefusalError(400, f"input {name!r} has both data and binary_data_size")
            if binary_at + size > len(body):
                raise RefusalError(
                    400,
                    f"input {name!r} announces {size} bytes of binary data; "
                    f"{len(body) - binary_at} are left after the JSON and the inputs before it",
                )
            arrays[name] = codec.from_bytes(name, datatype, shape, body, binary_at, size)
            binary_at += size
        schema.complete(arrays)
        if binary_at != len(body):
            raise RefusalError(
                400, f"{len(body) - binary_at} bytes of binary data belong to no input"
            )
        return arrays

    def _outputs(self, message: InferMessage, raw: bool) -> list[tuple[Tensor, bool]]:
        wanted: dict[str, tuple[Tensor, bool]] = {}
        for output in message.outputs or ():
            own = output.parameters
            tensor = self.intake.schema.output(output.name, wanted, own)
            as_raw = raw if own is None or own.binary_data is None else own.binary_data
            wanted[output.name] = tensor, as_raw
        return list(wanted.values())


def reply(request: InferRequest) -> None:
    """Send what came of a request; RefusalError when the protocol cannot hold the answer."""
    wanted: Wanted = request.context
    exchange, site = wanted.exchange, wanted.infer.site
    exchange.request = exchange.withdraw = None
    headers = wanted.infer.headers
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
    if _is_long(request, wanted):
        # The request has ended, and its place is free; only its answer is still being written.
        beside = exchange.connection.listener.beside
        exchange.request = beside.begin(_reply_later(request, wanted, extra))
        exchange.withdraw = asyncio.Task.cancel
        return
    body, tensors = _encoded(request, wanted, None)
    if exchange.accept_encoding is None and tensors is None:  # most of them
        exchange.respond(200, body, JSON, extra)
        return
    lines, kind = _lines(wanted, body, tensors)
    if exchange.accept_encoding is not None:
        packed = body if tensors is None else b"".join((body, *tensors))
        encoding = accepted(exchange.accept_encoding) if len(packed) >= SMALLEST else None
        if encoding is not None:
            body, tensors = compress(packed, encoding), None
            lines += b"Content-Encoding: %s\r\n" % encoding
    exchange.respond(200, body, kind, extra + lines, tensors)


def _is_long(request: InferRequest, wanted: Wanted) -> bool:
    """Tell an answer that would hold up the event loop: much JSON, or much to pack."""
    outputs, elements, size = request.outputs, 0, 0
    assert outputs is not None
    for tensor, raw in wanted.outputs:
        array = outputs[tensor.name]
        if tensor.datatype == "BYTES":
            return False  # what cannot be written is to be said before the request has ended
        if not raw:
            elements += array.size
        size += array.nbytes
    return elements > LONG or (size > LONG_PACKED and wanted.exchange.accept_encoding is not None)


async def _reply_later(request: InferRequest, wanted: Wanted, extra: bytes) -> None:
    exchange = wanted.exchange
    listener = exchange.connection.listener
    try:
        lines, kind, tensors = await listener.beside.result(_written(request, wanted))
    except Exception as error:
        exchange.request = exchange.withdraw = None
        listener.broken(error)
        exchange.refuse(500, "the answer could not be sent", extra)
    else:
        exchange.request = exchange.withdraw = None
        exchange.respond(200, b"", kind, extra + lines, tensors)


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
    body, tensors = _encoded(request, wanted, lists)
    lines, kind = _lines(wanted, body, tensors)
    parts = [body, *(tensors or ())]
    encoding = accepted(wanted.exchange.accept_encoding or b"")
    if encoding is not None:
        yield 0
        parts = yield from packing(parts, encoding)
        lines += b"Content-Encoding: %s\r\n" % encoding
    return lines, kind, parts


def _encoded(
    request: InferRequest, wanted: Wanted, lists: Mapping[str, Any] | None
) -> tuple[bytes, list[bytes] | None]:
    """Encode an answer: its JSON, and the raw outputs or None when all are in the JSON.

    `lists` has the JSON of outputs that has been written before.
    """
    outputs = request.outputs
    assert outputs is not None
    messages = []
    tensors: list[bytes] = []
    for tensor, raw in wanted.outputs:
        name, datatype = tensor.name, tensor.datatype
        array = outputs[name]
        if raw:
            tensors.append(codec.to_bytes(datatype, array))
            size = BinarySize(len(tensors[-1]))
            messages.append(OutputMessage(name, datatype, array.shape, size))
        else:
            data = lists[name] if lists else codec.to_json(name, datatype, array)
            messages.append(OutputMessage(name, datatype, array.shape, None, data))
    parameters = answer_parameters(request)
    if wanted.exchange.hop is not None:
        parameters.accuracy_balance = None
    task = wanted.infer.site.task
    message = AnswerMessage(task, request.variant, parameters, messages, wanted.id)
    return encode(message), tensors or None


def _lines(wanted: Wanted, body: bytes, tensors: list[bytes] | None) -> tuple[bytes, bytes]:
    """Write the header lines, and the type, of an answer that may be packed or have raw tensors."""
    lines = b"" if wanted.exchange.accept_encoding is None else _VARY
    if tensors is None:
        return lines, JSON
    return lines + b"Inference-Header-Content-Length: %d\r\n" % len(body), OCTETS


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
