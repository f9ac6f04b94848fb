"""ModelInfer: message to checked request, outcome to message.

Source: Open Inference Protocol v2 over gRPC, `InferTensorContents`. Raw contents are the same bytes
as in the binary tensor extension over HTTP: see `inferway.protocol.tensors`.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any, Final

import grpc
import msgspec
import numpy as np
from numpy.typing import NDArray

from inferway.live.grpc import messages
from inferway.live.http.exchange import TraceContext
from inferway.live.http.inference import unknown_in
from inferway.live.intake import Intake, answer_parameters
from inferway.live.request import LONGEST_RETRY_S, STATUS, InferRequest, Outcome
from inferway.live.site import TaskSite
from inferway.live.stats import Stats
from inferway.protocol import DTYPES, RefusalError, Tensor
from inferway.protocol import tensors as codec
from inferway.protocol.messages import InferParameters, TensorParameters
from inferway.runtime import Arrays

_NAMES: Final = ("x-request-id", "traceparent", "tracestate")
_PARAMETER: Final[dict[type, str]] = {
    bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param",
}  # fmt: skip
# Where the elements of each datatype are; FP16 has no field.
FIELDS: Final = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip

_CARRIER: Final = {
    "bool_contents": np.bool_, "uint_contents": np.uint32, "uint64_contents": np.uint64,
    "int_contents": np.int32, "int64_contents": np.int64, "fp32_contents": np.float32,
    "fp64_contents": np.float64,
}  # fmt: skip

# The gRPC status for each status with which HTTP refuses.
CODES: Final = {
    status: grpc.StatusCode[name]
    for status, name in {
        400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
        413: "INVALID_ARGUMENT",  # RESOURCE_EXHAUSTED would say that it may fit later
        429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 501: "UNIMPLEMENTED", 503: "UNAVAILABLE",
        504: "DEADLINE_EXCEEDED",
    }.items()
}  # fmt: skip


def ask(message: Any, intake: Intake, context: Any) -> InferRequest:
    """Check a `ModelInferRequest` by the intake that it names; RefusalError where it does not fit.

    Nothing of the message is kept: it holds all tensors once more. The request, which is not
    submitted yet, has in `context` a future of the answer's message, None where there is no answer.
    """
    site = intake.site
    received_s = site.now()
    raw, named = len(message.raw_input_contents) > 0, message.id
    end: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def deliver(request: InferRequest) -> None:
        answered = request.outcome is Outcome.ANSWERED
        if not end.done():
            end.set_result(_answer(named, intake, request, wanted, raw) if answered else None)
            return
        # The client has gone, and the site is about to hear of it.
        request.abandoned = True
        if answered:
            raise ConnectionResetError("the client has gone")

    try:
        if not site.ready:
            raise RefusalError(503, site.unready)
        arrays = _arrays(message, intake)
        wanted = _wanted(message, intake)
        parameters = _parameters(message.parameters, InferParameters, site.stats)
        request = intake.request(arrays, parameters, deliver, end, received_s)
    except RefusalError as refusal:
        unready = refusal.status == 503
        site.stats.ended(Outcome.UNAVAILABLE if unready else Outcome.INVALID)
        raise
    remaining_s = context.time_remaining()
    if remaining_s is not None:
        request.deadline_s = min(request.deadline_s, received_s + remaining_s)
    request.identity = identity = _identity(context)
    request.id = identity.id
    context.set_trailing_metadata(called(request))
    return request


async def answer(site: TaskSite, request: InferRequest) -> Any:
    """Have a request answered, and return the answer's message; CallError when it is not.

    The task in which this runs is canceled when the client cancels the call, goes away, or its
    deadline passes; the request is withdrawn then.
    """
    site.submit(request)
    try:
        message = await request.context
    except asyncio.CancelledError:
        site.cancel(request)
        raise
    if message is not None:
        return message
    outcome = request.outcome
    assert outcome is not None
    busy = outcome in (Outcome.REJECTED, Outcome.UNAVAILABLE)
    after = called(request) + (retry(request.retry_after_s) if busy else ())
    raise CallError(code_of(outcome), request.reason, after)


def _identity(context: Any) -> TraceContext:
    given: dict[str, bytes] = {}
    for key, value in context.invocation_metadata() or ():
        if key in _NAMES:
            value = value.encode() if isinstance(value, str) else value
            joined = key == "tracestate" and key in given
            given[key] = b"%s,%s" % (given[key], value) if joined else value
    return TraceContext(*map(given.get, _NAMES))


def _arrays(message: Any, intake: Intake) -> Arrays:
    arrays: Arrays = {}
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RefusalError(
            400,
            f"the request has {len(message.inputs)} inputs and {len(raw)} raw_input_contents; "
            "there must be one for each, or none",
        )
    for i, given in enumerate(message.inputs):
        name, datatype = given.name, given.datatype
        shape = intake.schema.input(name, datatype, given.shape, arrays)
        parameters = _parameters(given.parameters, TensorParameters, intake.site.stats)
        if parameters is not None and parameters.shared_memory_region is not None:
            raise RefusalError(501, "shared memory is not offered; send the data")
        if not raw:
            arrays[name] = from_contents(name, datatype, shape, given.contents)
            continue
        if given.HasField("contents"):
            raise RefusalError(400, f"input {name!r} has both contents and raw_input_contents")
        data = raw[i]
        arrays[name] = codec.from_bytes(name, datatype, shape, data, 0, len(data))
    intake.schema.complete(arrays)
    return arrays


def _wanted(message: Any, intake: Intake) -> list[Tensor]:
    if not message.outputs:
        return list(intake.site.pool.signature.outputs)
    wanted: dict[str, Tensor] = {}
    for output in message.outputs:
        parameters = _parameters(output.parameters, TensorParameters, intake.site.stats)
        wanted[output.name] = intake.schema.output(output.name, wanted, parameters)
    return list(wanted.values())


def _parameters(given: Any, kind: Any, counters: Stats) -> Any:
    if not given:
        return None
    values = {
        name: getattr(parameter, choice)
        for name, parameter in given.items()
        if (choice := parameter.WhichOneof("parameter_choice")) is not None
    }
    unknown = unknown_in(values, kind)
    counters.ignored += len(unknown)
    ours = {name: value for name, value in values.items() if name not in unknown}
    try:
        # Not strict: clients of older versions of the protocol, which have no double_param, write
        # numbers as strings.
        return msgspec.convert(ours, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RefusalError(400, f"the parameters are not valid: {error}") from None


def _answer(
    named: str, intake: Intake, request: InferRequest, wanted: list[Tensor], raw: bool
) -> Any:
    outputs = request.outputs or {}
    answer = messages.ModelInferResponse(
        model_name=intake.site.task, model_version=request.variant, id=named
    )
    for name, value in msgspec.structs.asdict(answer_parameters(request)).items():
        if value is not None:
            setattr(answer.parameters[name], _PARAMETER[type(value)], value)
    # One output that only raw contents can hold makes all of them raw, as the protocol asks.
    raw = raw or any(tensor.datatype not in FIELDS for tensor in wanted)
    for tensor in wanted:
        array = outputs[tensor.name]
        output = answer.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        if raw:
            answer.raw_output_contents.append(codec.to_bytes(tensor.datatype, array))
        else:
            to_contents(tensor.datatype, array, output.contents)
    return answer


def from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> NDArray[Any]:
    """Read an input's array from an `InferTensorContents`; every axis is at least 1.

    RefusalError when the elements are in another datatype's field, out of range, too many or too
    few.
    """
    field, size = FIELDS.get(datatype), math.prod(shape)
    if field is None:
        raise RefusalError(
            400, f"input {name!r} is {datatype}, which only raw_input_contents can hold"
        )
    given = [descriptor.name for descriptor, _ in contents.ListFields()]
    if given != [field]:
        named = " and ".join(given) or "no contents"
        raise RefusalError(400, f"input {name!r} is {datatype} and has {named}, expected {field}")
    elements = getattr(contents, field)
    if (count := len(elements)) != size:
        raise codec.INPUT.wrong("count", name=name, given=count, shape=[*shape], size=size)
    if datatype == "BYTES":
        return codec.objects(elements).reshape(shape)
    wide: NDArray[Any] = np.fromiter(elements, _CARRIER[field], size)
    array = wide.astype(DTYPES[datatype], copy=False)
    if array is not wide and not np.array_equal(array, wide):
        raise RefusalError(
            400, f"the contents of input {name!r} are out of the range of {datatype}"
        )
    return array.reshape(shape)


def to_contents(datatype: str, array: NDArray[Any], contents: Any) -> None:
    """Write an output into an `InferTensorContents`; its datatype must be one of `FIELDS`."""
    values: list[Any] = array.ravel().tolist()
    if datatype == "BYTES":
        values = [codec.raw(value) for value in values]
    getattr(contents, FIELDS[datatype]).extend(values)


class CallError(Exception):
    """Ends a call that is not answered: status, reason in a sentence, trailing metadata."""

    def __init__(self, code: grpc.StatusCode, reason: str, trailing: Any = ()) -> None:
        super().__init__(reason)
        self.code, self.reason, self.trailing = code, reason, trailing


def refused(refusal: RefusalError) -> CallError:
    """End a call for what is wrong with it."""
    code = CODES.get(refusal.status, grpc.StatusCode.UNKNOWN)
    return CallError(code, refusal.reason, retry(1.0) if refusal.status == 503 else ())


def code_of(outcome: Outcome) -> grpc.StatusCode:
    """Tell the status of a request that was not answered."""
    return CODES[STATUS[outcome]] if outcome in STATUS else grpc.StatusCode.CANCELLED


def called(request: InferRequest) -> Any:
    """Name a request in trailing metadata: by this it can be explained."""
    return (("x-request-id", request.id.decode()),)


def retry(after_s: float) -> Any:
    """Say when another try may be worth it, within 1 ms and a minute, as trailing metadata.

    People are told as HTTP does it, gRPC's retries by `grpc-retry-pushback-ms` of its proposal A6.
    """
    wait_s = min(LONGEST_RETRY_S, max(0.001, after_s))
    return (
        ("retry-after", str(math.ceil(wait_s))),
        ("grpc-retry-pushback-ms", str(math.ceil(wait_s * 1e3))),
    )
