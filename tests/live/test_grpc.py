"""The gRPC endpoint over real sockets: NVIDIA's client and stubs, gRPC's own health checks."""

from __future__ import annotations

import asyncio
import json
import queue
import shlex
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from inferway.live import Keys, Limits, Outcome, TaskSite
from inferway.live.grpc import endpoint_class
from inferway.protocol import Signature, Tensor
from inferway.runtime import NullRuntime

LIMIT_S = 20.0
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
RIGHT = "Bearer a-key-of-enough-length"
VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False], "UINT8": [0, 255], "UINT16": [0, 2**16 - 1], "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**64 - 1], "INT8": [-(2**7), 2**7 - 1], "INT16": [-(2**15), 2**15 - 1],
    "INT32": [-(2**31), 2**31 - 1], "INT64": [-(2**63), 2**63 - 1], "FP16": [-0.5, 65504.0],
    "FP32": [-1.5, 2.0**127], "FP64": [-0.1, 1e300], "BYTES": [b"", b"\xff\x00a"],
}  # fmt: skip
FIELD = {
    "BOOL": "bool_contents", "UINT8": "uint_contents", "UINT16": "uint_contents",
    "UINT32": "uint_contents", "UINT64": "uint64_contents", "INT8": "int_contents",
    "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


class Speaking(NamedTuple):
    """A server that answers over gRPC, too."""

    running: Any
    endpoint: Any
    channel: Any
    broken: list[Any]

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.endpoint.port}"

    @property
    def stub(self) -> Any:
        return GRPCInferenceServiceStub(self.channel)

    def check(self, service: str) -> Any:
        """Ask for a service's health, with messages written by hand."""
        call = self.channel.unary_unary("/grpc.health.v1.Health/Check")
        return call(named(service), timeout=LIMIT_S)

    def watch(self, service: str) -> Any:
        call = self.channel.unary_stream("/grpc.health.v1.Health/Watch")
        return call(named(service), timeout=LIMIT_S)


def named(service: str) -> bytes:
    return b"\x0a" + bytes([len(service)]) + service.encode() if service else b""


def status(code: int) -> bytes:
    return bytes([0x08, code])


@pytest.fixture
def speak(
    start: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[..., Speaking]]:
    """Start servers with a gRPC port, and stop them after the test; nothing may break silently."""
    speaking: list[Speaking] = []

    def begin(*sites: Any, serve: bool = True, **options: Any) -> Speaking:
        running = start(*sites)
        broken: list[Any] = []
        endpoint = endpoint_class()(lambda: running.server.ready, broken.append, **options)
        running.loop.set_exception_handler(lambda _, context: broken.append(context))
        running.wait(endpoint.start("127.0.0.1", 0))
        if serve:
            running.call(lambda: endpoint.serve(running.server.served()))
        channel = grpc.insecure_channel(f"127.0.0.1:{endpoint.port}")
        speaking.append(Speaking(running, endpoint, channel, broken))
        return speaking[-1]

    yield begin
    for one in speaking:
        one.running.wait(one.endpoint.stop(2.0))
        one.channel.close()
        assert not one.broken
    logged = [one for one in caplog.get_records("call") if one.name.startswith("grpc")]
    assert not logged


@pytest.fixture
def digits_over_grpc(speak: Callable[..., Speaking], site_of: Callable[..., Any]) -> Speaking:
    return speak(site_of())


@pytest.fixture
def client(digits_over_grpc: Speaking) -> Iterator[Any]:
    made = tritonclient.grpc.InferenceServerClient(digits_over_grpc.url)
    yield made
    made.close()


def image(rows: int = 1) -> Any:
    values = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    tensor = tritonclient.grpc.InferInput("image", list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return tensor


def raw_request(rows: int = 1, **fields: Any) -> Any:
    """Build a request of zeros for the task `digits`."""
    request = ModelInferRequest(model_name="digits")
    request.inputs.add(name="image", datatype="FP32", shape=[rows, 4])
    request.raw_input_contents.append(bytes(16 * rows))
    request.MergeFrom(ModelInferRequest(**fields))
    return request


def failure(call: Callable[[], Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    return error.code(), error.details()


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "big")
    assert not client.is_model_ready("digits", "huge")
    assert not client.is_model_ready("other")
    about = client.get_server_metadata(as_json=True)
    extensions = ["binary_tensor_data", "model_configuration", "statistics"]
    assert (about["name"], about["extensions"]) == ("inferway", extensions)
    assert client.get_model_metadata("digits", "big", as_json=True) == {
        "name": "digits",
        "versions": ["tiny", "big"],
        "platform": "inferway",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": ["-1", "4"]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": ["-1", "3"]}],
    }
    for unknown in (("other", ""), ("digits", "huge")):
        with pytest.raises(
            InferenceServerException, match=r"unknown task|has no variant"
        ) as caught:
            client.get_model_metadata(*unknown)
        assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_configuration(client: Any) -> None:
    config = client.get_model_config("digits", "big", as_json=True)["config"]
    assert config == {
        "name": "digits",
        "platform": "inferway",
        "version_policy": {"all": {}},
        "max_batch_size": 64,
        "input": [{"name": "image", "data_type": "TYPE_FP32", "dims": ["4"]}],
        "output": [{"name": "scores", "data_type": "TYPE_FP32", "dims": ["3"]}],
        "instance_group": [{"name": "digits/big", "kind": "KIND_MODEL", "count": 1}],
        "parameters": {
            "accuracy": {"string_value": "0.9"},
            "accuracy_target": {"string_value": "0.8"},
        },
    }
    groups = client.get_model_config("digits").config.instance_group
    assert [one.name for one in groups] == ["digits/tiny", "digits/big"]
    for unknown, sentence in ((("other", ""), "unknown task"), (("digits", "huge"), "no variant")):
        with pytest.raises(InferenceServerException, match=sentence) as caught:
            client.get_model_config(*unknown)
        assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_statistics(client: Any) -> None:
    for version, rows in (("big", 3), ("big", 1), ("tiny", 70)):
        client.infer("digits", [image(rows)], model_version=version)
    (big,) = client.get_inference_statistics("digits", "big").model_stats
    assert (big.name, big.version, big.inference_count, big.execution_count) == (
        "digits", "big", 4, 2,
    )  # fmt: skip
    stats = big.inference_stats
    assert stats.success.count == stats.queue.count == stats.compute_infer.count == 2
    assert stats.success.ns == pytest.approx(stats.queue.ns + stats.compute_infer.ns, abs=2)
    assert stats.compute_infer.ns > 0
    assert (stats.fail.count, stats.cache_hit.count) == (0, 0)
    assert time.time() - big.last_inference / 1e3 == pytest.approx(0.0, abs=LIMIT_S)
    sizes = [(one.batch_size, one.compute_infer.count) for one in big.batch_stats]
    assert sizes == [(1, 1), (3, 1)]
    both = client.get_inference_statistics("digits").model_stats
    assert [one.version for one in both] == ["tiny", "big"]
    # Rows beyond a run's are further runs.
    assert [(one.batch_size, one.compute_infer.count) for one in both[0].batch_stats] == [
        (6, 1), (64, 1),
    ]  # fmt: skip
    assert client.get_inference_statistics().model_stats == both
    for unknown, sentence in (
        (("other", ""), "unknown task"),
        (("digits", "huge"), "no variant"),
        (("", "big"), "asked for without a name"),
    ):
        with pytest.raises(InferenceServerException, match=sentence):
            client.get_inference_statistics(*unknown)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("named_output", [True, False])
def test_infer(client: Any, named_output: bool, compression: str | None) -> None:
    outputs = [tritonclient.grpc.InferRequestedOutput("scores")] if named_output else None
    result = client.infer(
        "digits", [image(3)], outputs=outputs, request_id="a-7", compression_algorithm=compression
    )
    assert result.as_numpy("scores").shape == (3, 3)
    assert result.as_numpy("scores").dtype == np.float32
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("a-7", "digits", "tiny")
    assert response.parameters["variant"].string_param == "tiny"
    assert response.parameters["latency_ms"].double_param > 0.0
    assert response.parameters["predicted_latency_ms"].double_param > 0.0
    assert response.parameters["accuracy_balance"].double_param == pytest.approx(-0.3)
    assert len(response.parameters) == 4


def test_pinning_does_not_move_the_balance(client: Any) -> None:
    def ask(**options: Any) -> Any:
        return client.infer("digits", [image(2)], **options).get_response()

    answers = [ask(), ask(model_version="big"), ask()]
    assert [answer.model_version for answer in answers] == ["tiny", "big", "tiny"]
    balances = [answer.parameters["accuracy_balance"].double_param for answer in answers]
    assert balances == pytest.approx([-0.2, -0.2, -0.4])


class Echo(NullRuntime):
    """Answers with what it is asked; the outputs are named like the inputs."""

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs


def echo_of(site_of: Callable[..., Any], task: str, *datatypes: str) -> Any:
    tensors = tuple(Tensor(datatype, datatype, (-1, 2)) for datatype in datatypes)
    signature = Signature(tensors, tensors)
    return site_of([Echo(signature), Echo(signature)], task=task, signature=signature)


def packed(datatype: str) -> bytes:
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(one)) + one for one in VALUES["BYTES"])
    letters = {"BOOL": "?", "FP16": "e", "FP32": "f", "FP64": "d"}
    sizes = {"8": "b", "16": "h", "32": "i", "64": "q"}
    letter = letters.get(datatype) or sizes[datatype.strip("UINT")]
    return struct.pack(f"<2{letter.upper() if datatype[0] == 'U' else letter}", *VALUES[datatype])


def test_every_datatype_raw(speak: Callable[..., Speaking], site_of: Callable[..., Any]) -> None:
    speaking = speak(echo_of(site_of, "echo", *VALUES))
    request = ModelInferRequest(model_name="echo")
    for datatype in VALUES:
        request.inputs.add(name=datatype, datatype=datatype, shape=[1, 2])
        request.raw_input_contents.append(packed(datatype))
    answer = speaking.stub.ModelInfer(request, timeout=LIMIT_S)
    assert answer.raw_output_contents == request.raw_input_contents
    assert [output.datatype for output in answer.outputs] == list(VALUES)
    assert all(list(output.shape) == [1, 2] for output in answer.outputs)
    assert not any(output.HasField("contents") for output in answer.outputs)


def typed(task: str, *datatypes: str) -> Any:
    request = ModelInferRequest(model_name=task)
    for datatype in datatypes:
        given = request.inputs.add(name=datatype, datatype=datatype, shape=[1, 2])
        getattr(given.contents, FIELD[datatype]).extend(VALUES[datatype])
    return request


def test_every_datatype_typed(speak: Callable[..., Speaking], site_of: Callable[..., Any]) -> None:
    speaking = speak(echo_of(site_of, "echo", *FIELD))
    request = typed("echo", *FIELD)
    answer = speaking.stub.ModelInfer(request, timeout=LIMIT_S)
    assert not answer.raw_output_contents
    assert [output.contents for output in answer.outputs] == [
        given.contents for given in request.inputs
    ]
    request.outputs.add(name="INT8")
    request.outputs.add(name="BYTES")
    some = speaking.stub.ModelInfer(request, timeout=LIMIT_S)
    assert [output.name for output in some.outputs] == ["INT8", "BYTES"]


class Halve(NullRuntime):
    """Answers in half precision, which typed contents cannot hold."""

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"half": inputs["FP32"].astype(np.float16), "FP32": inputs["FP32"]}


def test_a_typed_request_is_answered_raw_where_typed_contents_cannot_hold_it(
    speak: Callable[..., Speaking], site_of: Callable[..., Any]
) -> None:
    full, half = Tensor("FP32", "FP32", (-1, 2)), Tensor("half", "FP16", (-1, 2))
    signature = Signature((full,), (half, full))
    halves = [Halve(signature), Halve(signature)]
    speaking = speak(site_of(halves, task="halve", signature=signature))
    request = typed("halve", "FP32")
    request.inputs[0].contents.ClearField("fp32_contents")
    request.inputs[0].contents.fp32_contents.extend([0.5, -2.0])
    answer = speaking.stub.ModelInfer(request, timeout=LIMIT_S)
    assert list(answer.raw_output_contents) == [
        struct.pack("<2e", 0.5, -2.0),
        struct.pack("<2f", 0.5, -2.0),
    ]
    request.outputs.add(name="FP32")
    answer = speaking.stub.ModelInfer(request, timeout=LIMIT_S)
    assert list(answer.outputs[0].contents.fp32_contents) == [0.5, -2.0]
    assert not answer.raw_output_contents


def change(request: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def wrong_requests() -> Iterator[tuple[Any, str, str]]:
    yield change(raw_request(), model_name="other"), "NOT_FOUND", "unknown task 'other'"
    unknown = "task 'digits' has no variant 'huge'; there is tiny, big"
    yield change(raw_request(), model_version="huge"), "NOT_FOUND", unknown
    # Names are cut: what a client sends must not fill its answer's metadata.
    yield change(raw_request(), model_name="x" * 20_000), "NOT_FOUND", "xxx'; there is digits"
    request = raw_request()
    request.inputs[0].shape[1] = 5
    yield request, "INVALID_ARGUMENT", "has shape [1, 5], expected [-1, 4]"
    request = raw_request()
    request.inputs[0].datatype = "FP64"
    yield request, "INVALID_ARGUMENT", "has datatype 'FP64', expected FP32"
    yield ModelInferRequest(model_name="digits"), "INVALID_ARGUMENT", "lacks input 'image'"
    request = raw_request()
    request.raw_input_contents.append(b"")
    yield request, "INVALID_ARGUMENT", "1 inputs and 2 raw_input_contents"
    request = raw_request()
    request.raw_input_contents[0] = b"abc"
    yield request, "INVALID_ARGUMENT", "3 bytes of binary data; FP32 of shape [1, 4] has 16"
    request = raw_request()
    request.inputs[0].contents.fp32_contents.append(1.0)
    yield request, "INVALID_ARGUMENT", "both contents and raw_input_contents"
    request = raw_request()
    del request.raw_input_contents[:]
    yield request, "INVALID_ARGUMENT", "has no contents, expected fp32_contents"
    request = raw_request()
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    yield request, "UNIMPLEMENTED", "shared memory is not offered"
    request = raw_request()
    request.outputs.add(name="logits")
    yield request, "INVALID_ARGUMENT", "there is no output 'logits'; there is 'scores'"
    request = raw_request()
    request.outputs.add(name="scores").parameters["classification"].int64_param = 3
    yield request, "UNIMPLEMENTED", "classification"
    request = raw_request()
    request.parameters["accuracy"].double_param = 1.5
    yield request, "INVALID_ARGUMENT", "accuracy is 1.5, expected 0 to 1"
    request = raw_request()
    request.parameters["accuracy"].string_param = "high"
    yield request, "INVALID_ARGUMENT", "the parameters are not valid: Expected `float"
    request = raw_request()
    request.parameters["deadlinems"].int64_param = 5
    yield request, "INVALID_ARGUMENT", "unknown parameter 'deadlinems'; did you mean 'deadline_ms'?"
    request = raw_request()
    request.parameters["priority"].int64_param = -1
    yield request, "INVALID_ARGUMENT", "the parameters are not valid: Expected `int` >= 0"


def test_wrong_requests(digits_over_grpc: Speaking) -> None:
    wrong = list(wrong_requests())
    for request, code, reason in wrong:
        found, details = failure(lambda r=request: digits_over_grpc.stub.ModelInfer(r))
        assert found.name == code, details
        assert reason in details
    site = digits_over_grpc.running.site
    # Requests for a task or variant that is not there belong to no site.
    assert site.stats.total(Outcome.INVALID) == len(wrong) - 3


def test_what_is_no_message(digits_over_grpc: Speaking) -> None:
    methods = ("ModelInfer", "ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics")
    for method in methods:
        call = digits_over_grpc.channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        code, details = failure(lambda call=call: call(b"\xff\xff"))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert details == f"the request is not a valid {method}Request"
    call = digits_over_grpc.channel.unary_unary("/inference.GRPCInferenceService/LogSettings")
    assert failure(lambda: call(b""))[0] is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("parameter", ["double_param", "string_param"])
def test_accuracy_may_be_asked_for(digits_over_grpc: Speaking, parameter: str) -> None:
    # Older versions of the protocol have no double_param; their clients write strings.
    request = raw_request()
    value = 0.8 if parameter == "double_param" else "0.8"
    setattr(request.parameters["accuracy"], parameter, value)
    assert digits_over_grpc.stub.ModelInfer(request).model_version == "big"


def test_other_servers_parameters_are_ignored_and_counted(digits_over_grpc: Speaking) -> None:
    request = raw_request()
    request.parameters["sequence_id"].int64_param = 7
    request.inputs[0].parameters["content_type"].string_param = "np"
    request.parameters["accuracy"].double_param = 0.8
    assert digits_over_grpc.stub.ModelInfer(request).model_version == "big"
    metrics = digits_over_grpc.running.get("/metrics", admin=True).body.decode()
    assert 'inferway_ignored_parameters_total{task="digits"} 2.0' in metrics


def test_concurrent_calls_on_one_connection(digits_over_grpc: Speaking) -> None:
    stub = digits_over_grpc.stub

    def ask(i: int) -> tuple[str, int]:
        answer = stub.ModelInfer(raw_request(1 + i % 5, id=str(i)), timeout=LIMIT_S)
        return answer.id, answer.outputs[0].shape[0]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(100)))
    assert answers == [(str(i), 1 + i % 5) for i in range(100)]


def test_tritons_asyncio_client(digits_over_grpc: Speaking) -> None:
    async def ask() -> list[str]:
        async with tritonclient.grpc.aio.InferenceServerClient(digits_over_grpc.url) as client:
            assert await client.is_model_ready("digits")
            results = await asyncio.gather(
                *(client.infer("digits", [image()], request_id=str(i)) for i in range(20))
            )
            return [result.get_response().id for result in results]

    assert digits_over_grpc.running.wait(ask()) == [str(i) for i in range(20)]


def queued(site: Any) -> list[int]:
    return [len(one) for one in site.pool.queues]


@pytest.fixture
def gated(
    speak: Callable[..., Speaking],
    site_of: Callable[..., Any],
    gates: list[Any],
    until: Callable[[Callable[[], bool]], None],
) -> tuple[Speaking, Any, Callable[[int], None]]:
    """A server whose models wait, with room for one in service and one in the queue."""
    for gate in gates:
        gate.opened.set()
    site = site_of(gates, buffer=2)
    speaking = speak(site)
    for gate in gates:
        gate.opened.clear()

    def wait(count: int) -> None:
        until(lambda: queued(site) == [count, 0])

    return speaking, site, wait


def test_an_overloaded_server_says_when_to_come_again(gated: Any, gates: list[Any]) -> None:
    speaking, _, wait = gated
    calls = []
    for i in (1, 2):
        calls.append(speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S))
        wait(i)
    with pytest.raises(grpc.RpcError) as caught:
        speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "has no room for this request" in error.details()
    assert ("retry-after", "1") in error.trailing_metadata()
    gates[0].opened.set()
    assert [call.result(LIMIT_S).model_version for call in calls] == ["tiny", "tiny"]


def test_retries_follow_the_servers_word(gated: Any, gates: list[Any]) -> None:
    # gRPC's own retries wait as long as the rejection says (2 ms here), not their backoff.
    speaking, _, wait = gated
    calls = []
    for i in (1, 2):
        calls.append(speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S))
        wait(i)
    policy = {
        "maxAttempts": 5,
        "initialBackoff": "600s",
        "maxBackoff": "600s",
        "backoffMultiplier": 1,
        "retryableStatusCodes": ["RESOURCE_EXHAUSTED"],
    }
    methods = [{"name": [{"service": "inference.GRPCInferenceService"}], "retryPolicy": policy}]
    config = json.dumps({"methodConfig": methods})
    with grpc.insecure_channel(speaking.url, [("grpc.service_config", config)]) as channel:
        stub = GRPCInferenceServiceStub(channel)
        code, _ = failure(lambda: stub.ModelInfer(raw_request(), timeout=LIMIT_S))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    site = speaking.running.site
    assert site.stats.total(Outcome.REJECTED) == 5
    gates[0].opened.set()
    for call in calls:
        call.result(LIMIT_S)


def test_a_canceled_call_frees_its_place(gated: Any, gates: list[Any]) -> None:
    speaking, site, wait = gated
    first = speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S)
    wait(1)
    second = speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S)
    wait(2)
    second.cancel()
    wait(1)
    assert site.stats.total(Outcome.CANCELED) == 1
    gates[0].opened.set()
    assert first.result(LIMIT_S).model_version == "tiny"


def test_the_answer_to_a_canceled_call_in_service_goes_nowhere(
    gated: Any, gates: list[Any], until: Callable[[Callable[[], bool]], None]
) -> None:
    speaking, site, wait = gated
    call = speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S)
    wait(1)
    (request,) = site.pool.queues[0]
    call.cancel()
    until(request.context.cancelled)
    gates[0].opened.set()
    wait(0)
    assert speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S).model_version == "tiny"


def test_a_call_is_named_and_can_be_explained(gated: Any, gates: list[Any]) -> None:
    speaking, site, wait = gated
    for gate in gates:
        gate.opened.set()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    named = (("x-request-id", "mine"), ("traceparent", trace))
    _, call = speaking.stub.ModelInfer.with_call(raw_request(), metadata=named, timeout=LIMIT_S)
    assert ("x-request-id", "mine") in call.trailing_metadata()
    _, call = speaking.stub.ModelInfer.with_call(raw_request(), timeout=LIMIT_S)
    (identity,) = (value for key, value in call.trailing_metadata() if key == "x-request-id")
    wait(0)
    for name in ("mine", identity):
        told = speaking.running.get(f"/v2/models/{site.task}/explain/{name}")
        assert (told.status, told.json["outcome"]) == (200, "answered")
    # Of a refusal as well.
    hasty = raw_request()
    hasty.parameters["deadline_ms"].double_param = 0.001
    with pytest.raises(grpc.RpcError) as caught:
        speaking.stub.ModelInfer(hasty, metadata=named, timeout=LIMIT_S)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert {"x-request-id", "retry-after"} <= {key for key, _ in error.trailing_metadata()}


def test_a_calls_tracestate_is_the_requests(gated: Any, gates: list[Any]) -> None:
    speaking, site, wait = gated
    parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    states = [("tracestate", "b=2"), ("tracestate", "a=1, c=3")]
    calls = []
    for count, named in enumerate(((parent, *states), states), start=1):
        calls.append(speaking.stub.ModelInfer.future(raw_request(), metadata=named))
        wait(count)
    assert [request.identity.state for request in site.pool.queues[0]] == [b"b=2,a=1, c=3", b""]
    gates[0].opened.set()
    for call in calls:
        call.result(LIMIT_S)


def test_the_calls_deadline_is_the_requests(gated: Any, gates: list[Any]) -> None:
    speaking, site, wait = gated
    patient = speaking.stub.ModelInfer.future(raw_request())
    wait(1)
    hasty = speaking.stub.ModelInfer.future(raw_request(), timeout=1.0)
    wait(2)
    deadlines = [request.deadline_s for request in site.pool.queues[0]]
    assert deadlines[0] == float("inf")
    # What is left of it when the call arrives; on the wire it is rounded up.
    assert 0.0 < deadlines[1] - site.pool.queues[0][1].received_s <= 1.01
    assert failure(lambda: hasty.result(LIMIT_S))[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    wait(1)  # it left the queue; nothing was run for nobody
    gates[0].opened.set()
    patient.result(LIMIT_S)


def test_a_shorter_deadline_of_the_request_counts(gated: Any, gates: list[Any]) -> None:
    speaking, site, wait = gated
    first = speaking.stub.ModelInfer.future(raw_request())
    wait(1)
    request = raw_request()
    request.parameters["timeout"].int64_param = 50_000  # microseconds
    late = speaking.stub.ModelInfer.future(request, timeout=LIMIT_S)
    wait(2)
    last = site.pool.queues[0][1]
    assert last.deadline_s - last.received_s == pytest.approx(0.05)
    code, details = failure(lambda: late.result(LIMIT_S))
    gates[0].opened.set()
    first.result(LIMIT_S)
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert details == "the deadline passed while the request was queued"


def test_a_failing_model(gated: Any, gates: list[Any]) -> None:
    speaking, _, _ = gated
    gates[0].failure = RuntimeError("out of memory")
    gates[0].opened.set()
    code, details = failure(lambda: speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S))
    assert code is grpc.StatusCode.INTERNAL
    assert details == "digits/tiny#0 failed: out of memory"


def test_a_broken_handler_tells_the_server_and_not_the_client(digits_over_grpc: Speaking) -> None:
    site = digits_over_grpc.running.site
    site.submit = None
    code, details = failure(lambda: digits_over_grpc.stub.ModelInfer(raw_request()))
    assert (code, details) == (grpc.StatusCode.INTERNAL, "the server failed to answer")
    assert [type(error) for error in digits_over_grpc.broken] == [TypeError]
    digits_over_grpc.broken.clear()


def test_before_the_tasks_are_there(
    speak: Callable[..., Speaking], site_of: Callable[..., Any]
) -> None:
    speaking = speak(site_of(), serve=False)
    with pytest.raises(grpc.RpcError) as caught:
        speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the server is starting"
    assert ("retry-after", "1") in error.trailing_metadata()
    speaking.running.call(lambda: speaking.endpoint.serve(speaking.running.server.served()))
    assert speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S).model_version == "tiny"
    site = speaking.running.site
    site.ready = False
    code, details = failure(lambda: speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S))
    assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "task 'digits' is not ready")
    # Of a task that is not ready nobody needs to hear what is wrong with a request.
    empty = ModelInferRequest(model_name="digits")
    assert failure(lambda: speaking.stub.ModelInfer(empty)) == (code, details)
    assert site.stats.total(Outcome.UNAVAILABLE) == 2


def test_messages_may_be_too_large(
    speak: Callable[..., Speaking], site_of: Callable[..., Any]
) -> None:
    speaking = speak(site_of(), limits=Limits(body_bytes=4096, elements=400))
    assert speaking.stub.ModelInfer(raw_request(100)).model_version == "tiny"
    code, details = failure(lambda: speaking.stub.ModelInfer(raw_request(101)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "input 'image' has 404 elements, the limit is 400"
    code, details = failure(lambda: speaking.stub.ModelInfer(raw_request(300)))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in details


def test_metadata_may_be_too_large(digits_over_grpc: Speaking) -> None:
    def ask(size: int) -> Any:
        metadata = [("x-note", "a" * size)]
        return digits_over_grpc.stub.ModelInfer(raw_request(), metadata=metadata, timeout=LIMIT_S)

    # Left alone, gRPC refuses at random between a soft limit and the hard one.
    for _ in range(10):
        assert ask(64_500).model_version == "tiny"
    assert failure(lambda: ask(70_000))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_health_of_server_and_tasks(digits_over_grpc: Speaking, client: Any) -> None:
    for service in ("", "inference.GRPCInferenceService", "digits"):
        assert digits_over_grpc.check(service) == status(SERVING)
    code, details = failure(lambda: digits_over_grpc.check("other"))
    assert code is grpc.StatusCode.NOT_FOUND
    assert details == "unknown service 'other'; there is '', and each task"
    site = digits_over_grpc.running.site
    site.ready = False
    assert digits_over_grpc.check("") == status(SERVING)
    assert digits_over_grpc.check("digits") == status(NOT_SERVING)
    assert client.is_server_ready()
    assert not client.is_model_ready("digits")
    site.ready = True
    assert client.is_model_ready("digits", "tiny")
    digits_over_grpc.running.server.ready = False
    assert digits_over_grpc.check("") == digits_over_grpc.check("digits") == status(NOT_SERVING)
    assert client.is_server_live()
    assert not client.is_server_ready()
    assert not client.is_model_ready("digits")


def test_a_task_that_no_fleet_answers_is_unavailable_and_its_requests_count(
    digits_over_grpc: Speaking,
) -> None:
    site = TaskSite("digits")
    digits_over_grpc.running.call(lambda: digits_over_grpc.endpoint.serve([], [site]))
    said = failure(lambda: digits_over_grpc.stub.ModelInfer(raw_request(), timeout=LIMIT_S))
    assert said == (grpc.StatusCode.UNAVAILABLE, site.unready)
    assert site.entered == 1


def test_health_is_told_when_it_changes(
    speak: Callable[..., Speaking], site_of: Callable[..., Any]
) -> None:
    speaking = speak(site_of(), serve=False)
    running, endpoint = speaking.running, speaking.endpoint
    told, server = speaking.watch("digits"), speaking.watch("")
    assert next(told) == status(SERVICE_UNKNOWN)
    assert next(server) == status(SERVING)
    running.call(lambda: endpoint.serve(running.server.served()))
    assert next(told) == status(SERVING)

    def drain() -> None:
        running.server.ready = False
        endpoint.announce()
        endpoint.announce()  # what has been told is not told again

    running.call(drain)
    assert next(told) == status(NOT_SERVING)
    assert next(server) == status(NOT_SERVING)
    # Watches end with the server, at once; the grace period is for requests.
    begun = time.monotonic()
    running.wait(endpoint.stop(LIMIT_S))
    assert time.monotonic() - begun < LIMIT_S / 2
    for stream in (told, server):
        code, details = failure(lambda stream=stream: next(stream))
        assert (code, details) == (grpc.StatusCode.UNAVAILABLE, "the server is stopping")


def test_grpcs_own_health_checks_follow_it(digits_over_grpc: Speaking) -> None:
    # With a health check in its service config, a channel is ready while the service serves.
    running, endpoint = digits_over_grpc.running, digits_over_grpc.endpoint
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "digits"},
    }
    states: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def turns(wanted: grpc.ChannelConnectivity) -> None:
        while states.get(timeout=LIMIT_S) is not wanted:
            pass

    def announce(ready: bool) -> None:
        running.server.ready = ready
        endpoint.announce()

    options = [("grpc.service_config", json.dumps(config))]
    with grpc.insecure_channel(digits_over_grpc.url, options) as channel:
        channel.subscribe(states.put, try_to_connect=True)
        turns(grpc.ChannelConnectivity.READY)
        running.call(lambda: announce(False))
        turns(grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        running.call(lambda: announce(True))
        turns(grpc.ChannelConnectivity.READY)
    # The client has gone, which the server may not know yet when it has news for it.
    for ready in (False, True) * 5:
        running.call(lambda ready=ready: announce(ready))


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
    except ConnectionError:
        return False
    return True


def test_what_is_in_flight_is_finished_within_the_grace_period(
    gated: Any, gates: list[Any], until: Callable[[Callable[[], bool]], None]
) -> None:
    speaking, _, wait = gated
    calls = []
    for i in (1, 2):
        calls.append(speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S))
        wait(i)
    stopping = speaking.running.begin(speaking.endpoint.stop(LIMIT_S))
    until(lambda: not listens(speaking.endpoint.port))
    assert not stopping.done()
    gates[0].opened.set()
    assert [call.result(LIMIT_S).model_version for call in calls] == ["tiny", "tiny"]
    stopping.result(LIMIT_S)


def test_abort_cuts_the_grace_period_short(gated: Any) -> None:
    speaking, _, wait = gated
    call = speaking.stub.ModelInfer.future(raw_request(), timeout=LIMIT_S)
    wait(1)
    stopping = speaking.running.begin(speaking.endpoint.stop(1000.0))
    speaking.running.call(speaking.endpoint.abort)
    stopping.result(LIMIT_S)
    assert failure(lambda: call.result(LIMIT_S))[0] in (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
    )


def test_a_taken_port_is_an_error(digits_over_grpc: Speaking) -> None:
    endpoint = endpoint_class()(lambda: True, digits_over_grpc.broken.append)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for used in (port, digits_over_grpc.endpoint.port):
            with pytest.raises(OSError, match=f"cannot listen for gRPC on 127.0.0.1:{used}"):
                digits_over_grpc.running.wait(endpoint.start("127.0.0.1", used))


def test_keys(start: Callable[..., Any], site_of: Callable[..., Any]) -> None:
    running = start(site_of(), keys=Keys(["a-key-of-enough-length"]), grpc_port=0)
    url = f"127.0.0.1:{running.server.grpc_port}"
    channel = grpc.insecure_channel(url)
    stub = GRPCInferenceServiceStub(channel)

    def ask(*values: str) -> ModelInferResponse:
        metadata = [("authorization", value) for value in values]
        return stub.ModelInfer(raw_request(), metadata=metadata)

    assert ask(RIGHT).model_version == "tiny"
    for values in ((), ("Bearer other",), (RIGHT, RIGHT)):
        code, details = failure(lambda values=values: ask(*values))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert details == "the call needs a valid key: authorization: Bearer KEY"
    # Probes have no keys.
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(named("digits"), timeout=LIMIT_S) == status(SERVING)
    channel.close()
    client = tritonclient.grpc.InferenceServerClient(url)
    assert client.is_server_live()
    assert client.is_server_ready()
    with pytest.raises(InferenceServerException, match="needs a valid key"):
        client.get_model_metadata("digits")
    client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made by openssl")
def test_tls(speak: Callable[..., Speaking], site_of: Callable[..., Any], tmp_path: Path) -> None:
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-keyout '{key}' -out '{chain}' -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(shlex.split(command), check=True, capture_output=True, timeout=60)
    speaking = speak(site_of(), certificate=(key.read_bytes(), chain.read_bytes()))
    credentials = grpc.ssl_channel_credentials(chain.read_bytes())
    with grpc.secure_channel(f"localhost:{speaking.endpoint.port}", credentials) as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ModelInfer(raw_request(), timeout=LIMIT_S).model_version == "tiny"
    code, _ = failure(lambda: speaking.stub.ModelInfer(raw_request(), timeout=LIMIT_S))
    assert code is grpc.StatusCode.UNAVAILABLE
