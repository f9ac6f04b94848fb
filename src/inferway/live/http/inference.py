"""The infer endpoint: body to checked request, outcome to response."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, Final, cast

from numpy.typing import NDArray

from inferway.live.http.beside import SteppedWork
from inferway.live.http.body import PatchedMessage, prepare, read
from inferway.live.http.compression import SMALLEST, accepted, compress, packing
from inferway.live.http.exchange import JSON, OCTETS, Exchange
from inferway.live.intake import Intake, answer_parameters
from inferway.live.request import LONGEST_RETRY_S, STATUS, Arrays, Outcome, Request
from inferway.live.site import Site
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

LONG: Final = 16 * 1024
"""Elements of an answer in JSON that are written beside the loop: two milliseconds."""
LONG_PACKED: Final = 128 * 1024
"""Bytes of an answer that are packed there."""


class Wanted:
    """The form in which the client wants its answer: its id, and the outputs."""

    __slots__ = ("exchange", "id", "infer", "outputs")

    def __init__(
        self,
        infer: Infer,
        exchange: Exchange,
        id: str,  # noqa: A002 - the protocol's own name
        outputs: list[tuple[Tensor, bool]],
    ) -> None:
        self.infer = infer
        self.exchange = exchange
        self.id = id
        self.outputs = outputs


class Infer:
    """Answers POST .../infer for one task, or for the variant that the path pins."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.site = intake.site
        outputs = self.site.signature.outputs
        # What goes to another node is decoded there; batches of open shapes look at each other's.
        tensors = self.site.signature.inputs
        self._later = self.site.pool.forwards(intake.classes) and not any(
            -1 in tensor.shape[1:] for tensor in tensors
        )
        self.as_json = [(tensor, False) for tensor in outputs]
        self.as_binary = [(tensor, True) for tensor in outputs]

    def __call__(self, exchange: Exchange) -> None:
        """Check a whole request and submit it."""
        site = self.site
        received_s = site.now()
        request = self.take(exchange, received_s)
        if request is not None:
            site.submit(request)

    def take(self, exchange: Exchange, received_s: float) -> Request | None:
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
                raise RefusalError(503, f"task {site.task!r} is not ready")
            request = self.parse(exchange, received_s)
        except RefusalError as refusal:
            unready = refusal.status == 503
            site.stats.ended(Outcome.UNAVAILABLE if unready else Outcome.INVALID)
            extra = b"Retry-After: 1\r\n" * unready
            if site.response_headers is not None:
                took_s = site.now() - received_s
                extra += site.response_headers.own(exchange.path, took_s, "", unready)
            exchange.refuse(refusal.status, refusal.reason, extra)
            return None
        request.identity = identity = exchange.name()
        request.id = identity.id
        exchange.request = request
        exchange.withdraw = site.cancel
        return request

    def parse(self, exchange: Exchange, received_s: float) -> Request:
        """Decode and check the body; RefusalError with status 4xx and the reason."""
        body: bytes | bytearray = exchange.body
        message: InferMessage | None = None
        found: Mapping[int, NDArray[Any]] | None = None
        if exchange.prepared is not None:
            _, refusal, body, message, found = exchange.prepared
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
            message = read(text)
        if type(message) is PatchedMessage:
            self.site.stats.ignored += message.ignored
        arrays = self._arrays(message.inputs, body, json_end, found)
        wanted = Wanted(self, exchange, message.id, self._wanted(message))
        request = self.intake.request(arrays, message.parameters, reply, wanted, received_s)
        request.raw, request.undecoded = exchange, self._later
        return request

    def _arrays(
        self,
        inputs: list[InputMessage],
        body: bytes | bytearray,
        binary_at: int,
        found: Mapping[int, NDArray[Any]] | None,
    ) -> Arrays:
        arrays: Arrays = {}
        for place, given in enumerate(inputs):
            name, datatype = given.name, given.datatype
            shape = self.intake.schema.input(name, datatype, given.shape, arrays)
            parameters = given.parameters
            size = None if parameters is None else parameters.binary_data_size
            if size is None:
                if parameters is not None and parameters.shared_memory_region is not None:
                    raise RefusalError(501, "shared memory is not offered; send the data")
                if not memoryview(given.data).nbytes:
                    raise RefusalError(400, f"input {name!r} has neither data nor binary_data_size")
                if found is not None and place in found:
                    arrays[name] = found[place]
                    continue
                later = codec.LazyTensor(name, datatype, shape, given.data)
                arrays[name] = cast("Any", later) if self._later else later.decoded()
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
        self.intake.schema.complete(arrays)
        if binary_at != len(body):
            raise RefusalError(
                400, f"{len(body) - binary_at} bytes of binary data belong to no input"
            )
        return arrays

    def _wanted(self, message: InferMessage) -> list[tuple[Tensor, bool]]:
        parameters = message.parameters
        binary = parameters is not None and parameters.binary_data_output
        if not message.outputs:
            return self.as_binary if binary else self.as_json
        wanted: dict[str, tuple[Tensor, bool]] = {}
        for output in message.outputs:
            own = output.parameters
            tensor = self.intake.schema.output(output.name, wanted, own)
            raw = binary if own is None or own.binary_data is None else own.binary_data
            wanted[output.name] = (tensor, raw)
        return list(wanted.values())


def reply(request: Request) -> None:
    """Send what came of a request; RefusalError when the protocol cannot hold the answer."""
    wanted: Wanted = request.context
    exchange, site = wanted.exchange, wanted.infer.site
    exchange.request = exchange.withdraw = None
    if request.passed is not None:
        _pass_on(exchange, site, request)
        return
    if request.outcome is not Outcome.ANSWERED:
        assert request.outcome is not None
        extra = b""
        busy = request.outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE)
        if busy:
            wait_s = min(LONGEST_RETRY_S, request.retry_after_s)
            extra = b"Retry-After: %d\r\n" % max(1, math.ceil(wait_s))
        if site.response_headers is not None:
            # What has begun to run may have been run, unless whoever ran it said otherwise.
            unserved = busy and (request.unserved or not request.started_s) and not request.lost
            took_s = site.now() - request.received_s
            extra += site.response_headers.own(exchange.path, took_s, request.variant, unserved)
        exchange.refuse(request.status or STATUS[request.outcome], request.reason, extra)
        return
    extra = b""
    if site.response_headers is not None:
        extra = site.response_headers.own(exchange.path, request.latency_s, request.variant, False)
    if _is_long(request, wanted):
        # The request has ended, and its place is free; only its answer is still being written.
        beside = exchange.connection.listener.beside
        exchange.request = beside.run(
            _written(request, wanted), _pass, partial(_end, exchange, extra)
        )
        exchange.withdraw = SteppedWork.cancel
        return
    body, tensors = answer(request, wanted)
    if exchange.accept_encoding is not None:
        _send_packed(exchange, body, tensors, extra)
    elif tensors is None:
        exchange.respond(200, body, JSON, extra)
    else:
        extra += b"Inference-Header-Content-Length: %d\r\n" % len(body)
        exchange.respond(200, body, OCTETS, extra, tensors)


def _pass_on(exchange: Exchange, site: Site, request: Request) -> None:
    """Send what another node has answered, its body as it came."""
    answer = request.passed
    extra = answer.lines
    if site.response_headers is not None:
        extra = site.response_headers.passed(answer, exchange.path, site.now() - request.received_s)
    exchange.respond(answer.status, answer.body, answer.kind, extra)


def _is_long(request: Request, wanted: Wanted) -> bool:
    """Tell an answer that would hold up the event loop: much JSON, or much to pack."""
    outputs, elements_, size = request.outputs, 0, 0
    assert outputs is not None
    for tensor, binary in wanted.outputs:
        array = outputs[tensor.name]
        if tensor.datatype == "BYTES":
            return False  # what cannot be written is to be said before the request has ended
        if not binary:
            elements_ += array.size
        size += array.nbytes
    return elements_ > LONG or (size > LONG_PACKED and wanted.exchange.accept_encoding is not None)


def _written(
    request: Request, wanted: Wanted
) -> Generator[int, None, tuple[bytes, bytes, bytes, list[bytes]]]:
    """Write a long answer step by step: header lines, type, body, and what follows it."""
    outputs, exchange = request.outputs, wanted.exchange
    assert outputs is not None
    lists = {}
    for tensor, binary in wanted.outputs:
        if not binary:
            lists[tensor.name] = yield from codec.long_to_json(outputs[tensor.name])
    body, tensors = answer(request, wanted, lists)
    extra, kind = b"", JSON
    if tensors is not None:
        extra, kind = b"Inference-Header-Content-Length: %d\r\n" % len(body), OCTETS
    if exchange.accept_encoding is not None:
        extra += b"Vary: Accept-Encoding\r\n"
        encoding = accepted(exchange.accept_encoding)
        if encoding is not None:
            yield 0
            packed = yield from packing([body, *(tensors or [])], encoding)
            extra += b"Content-Encoding: %s\r\n" % encoding
            return extra, kind, b"", packed
    return extra, kind, body, tensors or []


def _pass(_: int) -> None:
    """Nothing is counted between two steps."""


def _end(
    exchange: Exchange,
    extra: bytes,
    written: tuple[bytes, bytes, bytes, list[bytes]] | None,
    error: Exception | None,
) -> None:
    exchange.request = exchange.withdraw = None
    if written is None:
        assert error is not None
        exchange.connection.listener.broken(error)
        exchange.refuse(500, "the answer could not be sent", extra)
        return
    lines, kind, body, tensors = written
    exchange.respond(200, body, kind, extra + lines, tensors)


def answer(
    request: Request, wanted: Wanted, lists: Mapping[str, Any] | None = None
) -> tuple[bytes, list[bytes] | None]:
    """Encode an answer: its JSON, and the raw outputs or None when all are in the JSON.

    `lists` has the JSON of outputs that has been written before.
    """
    outputs = request.outputs
    assert outputs is not None
    messages = []
    tensors: list[bytes] | None = None
    for tensor, binary in wanted.outputs:
        name, datatype = tensor.name, tensor.datatype
        array = outputs[name]
        if binary:
            raw = codec.to_bytes(datatype, array)
            if tensors is None:
                tensors = []
            tensors.append(raw)
            messages.append(OutputMessage(name, datatype, array.shape, BinarySize(len(raw))))
        else:
            data = lists[name] if lists else codec.to_json(name, datatype, array)
            messages.append(OutputMessage(name, datatype, array.shape, None, data))
    parameters = answer_parameters(request)
    if wanted.exchange.hop is not None:
        parameters.accuracy_balance = None
    message = AnswerMessage(
        wanted.infer.site.task,
        request.variant,
        parameters,
        messages,
        wanted.id,
    )
    return encode(message), tensors


def _send_packed(
    exchange: Exchange, body: bytes, tensors: list[bytes] | None, extra: bytes
) -> None:
    extra, kind = extra + b"Vary: Accept-Encoding\r\n", JSON
    if tensors is not None:
        extra += b"Inference-Header-Content-Length: %d\r\n" % len(body)
        kind = OCTETS
        body = b"".join((body, *tensors))
    if len(body) >= SMALLEST:
        encoding = accepted(exchange.accept_encoding or b"")
        if encoding is not None:
            body = compress(body, encoding)
            extra += b"Content-Encoding: %s\r\n" % encoding
    exchange.respond(200, body, kind, extra)


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
