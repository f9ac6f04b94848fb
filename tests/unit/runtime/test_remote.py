"""The remote runtime against a server of plain sockets, at its best and at its worst."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferway.protocol import Signature, Tensor
from inferway.protocol.address import parse_model
from inferway.runtime import BlockingRemote, Fault, RemoteError, RemoteRuntime
from scripted import METADATA, Asked, EndError, Scripted, response

X = {"x": np.float32([[1, 2], [3, 4.5]])}
DOUBLE = [[2, 4], [6, 9]]
RemoteOf = Callable[..., Any]


def infers(answer: bytes | Callable[[Asked], bytes | None]) -> Callable[[Asked], bytes | None]:
    """Make a script that answers requests for inference so, and others as usual."""

    def script(asked: Asked) -> bytes | None:
        if not asked.path.endswith("/infer"):
            return None
        return answer if isinstance(answer, bytes) else answer(asked)

    return script


def failing(runtime: Any, inputs: Any = X) -> RemoteError:
    with pytest.raises(RemoteError) as error:
        runtime.run(inputs)
    return error.value


def test_what_json_cannot_carry_is_refused_here_and_has_certainly_not_run(
    serve: Callable[..., Scripted], remote_of: RemoteOf
) -> None:
    server = serve(binary=False)
    error = failing(remote_of(server), {"x": np.full((1, 2), np.nan, np.float32)})
    assert (error.fault, error.unserved) == (Fault.REFUSED, True)
    assert "'x' holds NaN or infinity" in str(error)
    assert not server.infers


@pytest.mark.parametrize("binary", [True, False])
def test_it_asks_what_the_server_can_take_and_answers(
    serve: Callable[..., Scripted], remote_of: RemoteOf, binary: bool
) -> None:
    server = serve(binary=binary)
    runtime = remote_of(server, key="s3cret")
    assert runtime.binary is None
    assert str(runtime.signature) == "(x: FP32[-1, 2]) -> (y: FP32[-1, 2])"
    assert runtime.binary is binary
    assert runtime.run(X)["y"].tolist() == DOUBLE
    (infer,) = server.infers
    assert ("inference-header-content-length" in infer.headers) is binary
    kind = "application/octet-stream" if binary else "application/json"
    assert infer.headers["content-type"] == kind
    assert infer.headers["host"] == f"127.0.0.1:{server.port}"
    assert {one.headers["authorization"] for one in server.asked} == {"Bearer s3cret"}
    assert [one.path for one in server.asked[:2]] == ["/v2/models/double", "/v2"]
    # One connection for all of it, and one question.
    assert (server.connections, runtime.opened, len(server.asked)) == (1, 1, 3)


def test_a_server_without_metadata_of_its_own_is_sent_json(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    upstream.script = lambda asked: response(404) if asked.path == "/v2" else None
    runtime = remote_of(upstream)
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert runtime.binary is False


def test_a_version_is_asked_for_by_its_path(upstream: Scripted) -> None:
    def script(asked: Asked) -> bytes | None:
        path = asked.path.replace("/versions/3", "")
        return upstream._ordinary(asked._replace(path=path))

    upstream.script = script
    runtime = BlockingRemote(RemoteRuntime(parse_model(f"{upstream.url}/versions/3")))
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert upstream.infers[0].path == "/v2/models/double/versions/3/infer"
    runtime.close()


@pytest.mark.parametrize(
    ("status", "fault", "unserved"),
    [
        (400, Fault.REFUSED, False),
        (413, Fault.REFUSED, False),
        (422, Fault.REFUSED, False),
        (401, Fault.BROKEN, False),
        (403, Fault.BROKEN, False),
        (404, Fault.UNAVAILABLE, True),
        (429, Fault.OVERLOADED, True),
        (500, Fault.BROKEN, False),
        (501, Fault.BROKEN, False),
        (503, Fault.UNAVAILABLE, True),
        (504, Fault.LATE, False),
        (206, Fault.BROKEN, False),
        (302, Fault.BROKEN, False),
    ],
)
def test_statuses_say_what_went_wrong(
    upstream: Scripted, remote_of: RemoteOf, status: int, fault: Fault, unserved: bool
) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    upstream.script = infers(
        response(status, {"error": "no\n such  thing"}, "Retry-After: 7\r\nLocation: http://x/\r\n")
    )
    error = failing(runtime)
    assert (error.fault, error.unserved, error.retry_after_s) == (fault, unserved, 7.0)
    assert str(error) == f"the remote server answered {status}: no such thing"
    assert runtime.faults == {fault: 1}
    assert runtime.retried == 0
    assert len(upstream.infers) == 2
    upstream.script = None
    assert runtime.run(X)["y"].tolist() == DOUBLE


def test_long_or_missing_reasons_are_no_trouble(upstream: Scripted, remote_of: RemoteOf) -> None:
    runtime = remote_of(upstream)
    for body in ({"error": "x" * 10_000}, b"<html>", b"", b"\xff"):
        upstream.script = infers(response(500, body))
        assert len(str(failing(runtime))) < 400


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 12x\r\n\r\n", "is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "is not HTTP"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", "is not HTTP"),
        (
            response(200, b"{}", "Inference-Header-Content-Length: -1\r\n"),
            "is not HTTP: Inference-Header-Content-Length is not a number",
        ),
        (response(200, b"{}"), "not one of the Open Inference Protocol"),
        (response(200, b"\x1f\x8b", "Content-Encoding: gzip\r\n"), "in the coding 'gzip'"),
        (response(200, b'{"outputs": []}'), "lacks the output 'y'"),
        (
            response(200, b'{"outputs": []}', "Inference-Header-Content-Length: 900\r\n"),
            "lacks the output 'y'",
        ),
    ],
)
def test_garbage_is_no_answer(
    upstream: Scripted, remote_of: RemoteOf, answer: bytes, said: str
) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    upstream.script = infers(answer)
    error = failing(runtime)
    assert said in str(error)
    assert (error.fault, error.unserved) == (Fault.BROKEN, False)
    upstream.script = None
    assert runtime.run(X)["y"].tolist() == DOUBLE


def test_an_answer_may_come_in_chunks_after_an_interim_one_or_end_with_the_connection(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    runtime = remote_of(upstream)
    body = json.dumps(
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [2, 4, 6, 9]}]}
    ).encode()
    chunked = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunked += b"".join(b"%x\r\n%b\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
    upstream.script = infers(chunked + b"0\r\n\r\n")
    for _ in range(2):
        assert runtime.run(X)["y"].tolist() == DOUBLE
    assert upstream.connections == 1

    def unmeasured(asked: Asked) -> bytes:
        raise EndError(b"HTTP/1.1 200 OK\r\n\r\n" + body)

    upstream.script = infers(unmeasured)
    assert runtime.run(X)["y"].tolist() == DOUBLE


def test_bytes_after_an_answer_end_the_connection(upstream: Scripted, remote_of: RemoteOf) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    good: Any = upstream._ordinary(upstream.infers[0])
    for more in (b"HTTP/1.1 500 No\r\nRetry-After: 9\r\n\r\n", b"\0\0"):
        upstream.script = infers(good + more)
        assert runtime.run(X)["y"].tolist() == DOUBLE
    upstream.script = None
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert upstream.connections == 3


@pytest.mark.parametrize("reset", [False, True])
def test_a_lost_answer_is_not_asked_for_again(
    upstream: Scripted, remote_of: RemoteOf, reset: bool
) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)

    def lose(asked: Asked) -> bytes:
        raise EndError(reset=reset)

    upstream.script = infers(lose)
    error = failing(runtime)
    assert (error.fault, error.unserved) == (Fault.BROKEN, False)
    assert "without an answer" in str(error)
    assert (len(upstream.infers), runtime.retried) == (2, 0)


def test_half_an_answer_is_none(upstream: Scripted, remote_of: RemoteOf) -> None:
    runtime = remote_of(upstream)

    def half(asked: Asked) -> bytes:
        raise EndError(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")

    upstream.script = infers(half)
    assert "in the middle of its answer" in str(failing(runtime))


def test_a_connection_that_ended_while_idle_is_not_used(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    (idle,) = runtime.connections._idle
    upstream.drop_idle()
    assert idle._poll.poll(5000)
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert (upstream.connections, runtime.retried) == (2, 0)


def test_connections_are_not_kept_longer_than_the_server_says(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    runtime = remote_of(upstream)
    good: Any = None

    def brief(asked: Asked) -> bytes:
        return good.replace(b"\r\n", b"\r\nKeep-Alive: max=9, timeout=1\r\n", 1)

    runtime.run(X)
    good = upstream._ordinary(upstream.infers[0])
    upstream.script = infers(brief)
    runtime.run(X)
    runtime.run(X)
    assert upstream.connections == 2
    upstream.script = infers(good.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    runtime.run(X)
    runtime.run(X)
    assert upstream.connections == 4


def test_a_request_that_was_not_sent_whole_is_sent_once_more(
    upstream: Scripted, remote_of: RemoteOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    # The other side has gone, and this one has not heard of it.
    (connection,) = runtime.connections._idle
    connection.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
    monkeypatch.setattr(type(connection), "stale", lambda *_: False)
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert (runtime.retried, len(upstream.infers)) == (1, 2)
    assert runtime.faults == {}


def test_a_server_that_refuses_before_the_end_of_a_long_request_is_heard(
    remote_of: RemoteOf, serve: Callable[..., Scripted]
) -> None:
    server = serve()
    runtime = remote_of(server)
    runtime.run(X)
    read = server._read

    def refuse(stream: Any) -> Asked | None:
        line = stream.readline()
        if not line:
            return None
        raise EndError(response(413, {"error": "too long"}))

    server._read = refuse  # type: ignore[method-assign]
    runtime.connections.forget()
    error = failing(runtime, {"x": np.zeros((4_000_000, 2), np.float32)})
    assert (error.fault, str(error)) == (
        Fault.REFUSED,
        "the remote server answered 413: too long",
    )
    server._read = read  # type: ignore[method-assign]
    assert runtime.run(X)["y"].tolist() == DOUBLE


def test_nothing_listening_is_said_and_what_comes_back_is_asked_anew(
    serve: Callable[..., Scripted], remote_of: RemoteOf
) -> None:
    server = serve()
    runtime = remote_of(server)
    runtime.run(X)
    server.close()
    error = failing(runtime)
    assert str(error) == "the remote server cannot be reached: connection refused"
    assert (error.fault, error.unserved, runtime.binary) == (Fault.UNREACHABLE, True, None)
    again = serve(binary=False, port=server.port)
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert runtime.binary is False
    assert len(again.infers) == 1
    again.close()
    failing(runtime)
    other = serve(port=server.port)
    other.metadata = METADATA | {"outputs": METADATA["inputs"]}
    error = failing(runtime)
    assert error.fault is Fault.UNFIT
    assert "differs from (x: FP32[-1, 2]) -> (y: FP32[-1, 2])" in str(error)
    assert other.infers == []


def test_a_server_that_hangs_costs_no_more_than_the_timeout(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    runtime = remote_of(upstream, timeout_s=0.5)
    runtime.run(X)
    upstream.script = infers(upstream.hang)
    begun_s = time.monotonic()
    error = failing(runtime)
    assert (error.fault, error.unserved) == (Fault.LATE, False)
    assert 0.49 < time.monotonic() - begun_s < 10.0
    upstream.released.set()


def test_a_server_that_trickles_costs_no_more_either(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    runtime = remote_of(upstream, timeout_s=0.5)
    runtime.run(X)
    sent = threading.Event()

    def trickle(asked: Asked) -> bytes:
        (connection,) = upstream._open
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with contextlib.suppress(OSError):  # who asked may have gone before the test says so
            while not sent.wait(0.01):
                connection.sendall(b" ")
        raise EndError

    upstream.script = infers(trickle)
    begun_s = time.monotonic()
    assert failing(runtime).fault is Fault.LATE
    assert time.monotonic() - begun_s < 10.0
    sent.set()


def test_a_call_that_is_canceled_ends_its_connection(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    upstream.script = infers(upstream.hang)

    async def cancel() -> None:
        call = asyncio.create_task(runtime.remote.infer(X))
        assert await asyncio.to_thread(upstream.entered.acquire, timeout=10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    runtime.wait(cancel())
    assert (runtime.connections._busy, runtime.faults) == (set(), {})
    upstream.script = None
    assert runtime.run(X)["y"].tolist() == DOUBLE
    assert upstream.connections == 2


def test_calls_have_a_connection_each(upstream: Scripted, remote_of: RemoteOf) -> None:
    runtime = remote_of(upstream)
    runtime.run(X)
    upstream.script = infers(upstream.hang)

    async def ask() -> list[Any]:
        calls = asyncio.gather(*(runtime.remote.infer({"x": X["x"] * n}) for n in range(4)))
        for _ in range(4):
            assert await asyncio.to_thread(upstream.entered.acquire, timeout=10)
        upstream.released.set()
        return list(await calls)

    answers = [answer["y"].tolist() for answer in runtime.wait(ask())]
    assert answers == [(2 * n * X["x"]).tolist() for n in range(4)]
    assert upstream.connections == 4


def test_it_can_be_asked_where_a_loop_runs(upstream: Scripted) -> None:
    async def in_a_notebook() -> Any:
        runtime = BlockingRemote(RemoteRuntime(parse_model(upstream.url)))
        outputs = runtime.run(X)
        runtime.close()
        return outputs

    assert asyncio.run(in_a_notebook())["y"].tolist() == DOUBLE


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (METADATA | {"inputs": []}, "does not say the model's inputs and outputs"),
        ({"name": "double"}, "does not say the model's inputs and outputs"),
        (
            METADATA | {"inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 2]}]},
            "input 'x' has the datatype 'BF16'",
        ),
        (
            METADATA | {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2]}]},
            r"input 'x' has the shape [1, 2]; have its server offer",
        ),
        (METADATA | {"inputs": 3}, "are not those of the protocol"),
    ],
)
def test_signatures_that_cannot_be_served_are_refused(
    upstream: Scripted, remote_of: RemoteOf, metadata: dict[str, Any], said: str
) -> None:
    upstream.metadata = metadata
    with pytest.raises(RemoteError) as error:
        _ = remote_of(upstream).signature
    assert said in str(error.value)


def test_another_variants_signature_stands_in_and_gives_the_order(
    upstream: Scripted, remote_of: RemoteOf
) -> None:
    upstream.metadata = {"name": "double"}
    double = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
    runtime = remote_of(upstream, signature=double)
    assert runtime.run(X)["y"].tolist() == DOUBLE
    two = (Tensor("a", "FP32", (-1, 1)), Tensor("b", "INT8", (-1, 1)))
    described = [{"name": t.name, "datatype": t.datatype, "shape": list(t.shape)} for t in two]
    upstream.metadata = {"inputs": described[::-1], "outputs": described}
    expected = Signature(two, two[::-1])
    runtime = remote_of(upstream, signature=expected)
    runtime.learn()
    assert runtime.signature == expected


def test_what_makes_no_sense_is_refused() -> None:
    address = parse_model("http://127.0.0.1:1/v2/models/m")
    with pytest.raises(ValueError, match="timeout_s"):
        RemoteRuntime(address, timeout_s=0)
    with pytest.raises(ValueError, match="the key holds"):
        RemoteRuntime(address, key="a\r\nX: b")
