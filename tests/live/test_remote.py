"""Variants behind other servers: our own as the remote one, and one that misbehaves."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from inferway import load
from inferway.live import Certificate, Keys, ServeError
from inferway.protocol import ModelAddress, Signature, Tensor
from inferway.runtime import Fault, NullRuntime, RemoteRuntime
from scripted import Asked, EndError, Scripted, response

DOUBLE = Signature((Tensor("x", "FP32", (-1, 2)),), (Tensor("y", "FP32", (-1, 2)),))
PATH = "/v2/models/digits"
KEY = "a-key-of-some-length"
FAILURES = 3
"""One after the other, and an instance rests."""


def asking(*values: float) -> Any:
    data = list(values) or [1.0, 2.5]
    shape = [len(data) // 2, 2]
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}]}


ONE = asking()


@pytest.fixture
def serve() -> Iterator[Callable[..., Scripted]]:
    """Start servers, and stop them after the test."""
    servers: list[Scripted] = []

    def begin(**options: Any) -> Scripted:
        servers.append(Scripted(**options))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


@pytest.fixture
def upstream(serve: Callable[..., Scripted]) -> Scripted:
    return serve()


def address_of(upstream: Scripted) -> ModelAddress:
    return ModelAddress("127.0.0.1", upstream.port, tls=False, prefix="", model="double")


@pytest.fixture
def two(start: Any, site_of: Any, upstream: Scripted, patient: Any) -> Any:
    """`tiny`, the fast one, is remote and has as many instances as said; `big` is here."""

    def begin(count: int = 1, **options: Any) -> Any:
        remote = RemoteRuntime(address_of(upstream), timeout_s=5.0)
        runtimes = [*[remote] * count, NullRuntime(DOUBLE)]
        options = {"policy": "jiq-fast", "signature": DOUBLE} | options
        site = site_of(runtimes, count=(count, 1), now=patient.time, **options)
        return start(site, loop=patient, now=patient.time)

    return begin


def infers(answer: Callable[[Asked], bytes | None] | bytes) -> Callable[[Asked], bytes | None]:
    """Make a script that answers requests for inference so, but for zeros, and others as usual."""

    def script(asked: Asked) -> bytes | None:
        if not asked.path.endswith("/infer") or asked.body.endswith(bytes(8)):
            return None
        return answer if isinstance(answer, bytes) else answer(asked)

    return script


def lines(running: Any, name: str) -> list[str]:
    page: str = running.get("/metrics", admin=True).body.decode()
    return [line for line in page.splitlines() if line.startswith(name)]


def write(folder: Path, variants: str, more: str = "") -> Any:
    """Load a file with these variants of the task `digits`."""
    path = folder / "served.yaml"
    path.write_text(f"tasks: {{digits: {{{more}variants: {{{variants}}}}}}}\n", encoding="utf-8")
    return load(path)


def local(folder: Path, factor: float = 2.0) -> str:
    """Write a model that multiplies, as the variant `near`."""
    constant = numpy_helper.from_array(np.float32([factor]), "factor")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [constant],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(folder / "near.onnx"))
    return "near: {model: near.onnx, accuracy: 0.7, service: {mean: 20 ms}}"


def far(url: str, more: str = "") -> str:
    return f'far: {{remote: "{url}", accuracy: 0.9, service: {{mean: 1 ms}}{more}}}'


# --- our own server as the remote one


def test_our_own_server_is_a_remote_one(
    start: Any, site_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = start(site_of(), keys=Keys([KEY]))
    monkeypatch.setenv("ORIGIN_KEY", KEY)
    url = f"http://{origin.url}{PATH}/versions/big"
    variants = f'far: {{remote: {{url: "{url}", key: ORIGIN_KEY}}, accuracy: 0.9, '
    deployment = write(tmp_path, variants + "service: {mean: 1 ms}}")
    running = start(deployment=deployment)
    metadata = running.get(PATH).json
    assert metadata["versions"] == ["far"]
    assert metadata["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 4]}]
    image = {"name": "image", "datatype": "FP32", "shape": [2, 4], "data": [0.5] * 8}
    found = running.infer({"inputs": [image]})
    assert found.json["model_version"] == "far"
    assert found.json["outputs"] == [
        {"name": "scores", "shape": [2, 3], "datatype": "FP32", "data": [0.0] * 6}
    ]

    def answered() -> list[int]:
        rows: list[int] = origin.call(lambda: origin.site.stats.rows)
        return rows

    assert answered() == [0, 2 + 3]  # and those of the warm-up
    assert running.site.pool.runtimes[0].binary is True
    refused = running.infer({"inputs": [image | {"shape": [2, 3], "data": [0.5] * 6}]})
    assert refused.status == 400  # by the signature, here
    assert answered() == [0, 5]


def test_over_tls(
    start: Any, site_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout '{key}' -out '{chain}'"
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    origin = start(site_of(), certificate=Certificate(chain, key))
    deployment = write(tmp_path, far(f"https://{origin.url}{PATH}"))
    with pytest.raises(ServeError, match="nothing else says what the task takes"):
        start(deployment=deployment)
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    running = start(deployment=deployment)
    image = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.5] * 4}
    assert running.infer({"inputs": [image]}).status == 200


# --- what clients see


@pytest.mark.parametrize("binary", [True, False])
def test_it_serves_what_the_other_server_computes(
    start: Any, serve: Callable[..., Scripted], tmp_path: Path, binary: bool
) -> None:
    server = serve(binary=binary)
    running = start(deployment=write(tmp_path, far(server.url)))
    found = running.infer(asking(1, 2, 3, 4.25)).json
    assert found["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.5]
    assert running.site.pool.runtimes[0].binary is binary


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (response(400, {"error": "x is wrong"}), 400, "answered 400: x is wrong"),
        (response(429, b"", "Retry-After: 7\r\n"), 429, "answered 429"),
        (response(500, {"error": "no memory"}), 500, "answered 500: no memory"),
        (response(501), 500, "answered 501"),
        (response(404), 503, "answered 404"),
        (response(503, b"", "Retry-After: 7\r\n"), 503, "answered 503"),
        (response(504), 504, "answered 504"),
        (
            response(302, b"", "Location: http://127.0.0.1:1/\r\n"),
            500,
            "redirects are not followed",
        ),
        (response(200, b"<html>"), 500, "not one of the Open Inference Protocol"),
        (b"\0\1\2\3", 500, "is not HTTP"),
    ],
)
def test_failures_are_told_in_the_protocols_words(
    two: Any, upstream: Scripted, answer: bytes, status: int, said: str
) -> None:
    running = two()
    upstream.script = infers(answer)
    found = running.infer(ONE, path=f"{PATH}/versions/tiny/infer")
    assert found.status == status
    assert found.json["error"].startswith("digits/tiny#0 failed: ")
    assert said in found.json["error"]
    wait = "7" if b"Retry-After" in answer else "1"
    assert found.headers.get("retry-after") == (wait if status in (429, 503) else None)
    assert str(upstream.port) not in found.json["error"]
    upstream.script = None
    assert running.infer(ONE, path=f"{PATH}/versions/tiny/infer").status == 200


def test_a_server_that_hangs_is_given_up(start: Any, site_of: Any, upstream: Scripted) -> None:
    remote = RemoteRuntime(address_of(upstream), timeout_s=0.3)
    running = start(site_of([remote, NullRuntime(DOUBLE)], signature=DOUBLE))
    upstream.script = infers(upstream.hang)
    found = running.infer(ONE, path=f"{PATH}/versions/tiny/infer")
    assert (found.status, remote.faults) == (504, {Fault.LATE: 1})
    assert "gave no answer in time" in found.json["error"]


def test_a_server_whose_health_hangs_too_is_asked_no_more(
    two: Any, upstream: Scripted, patient: Any
) -> None:
    running = two()
    (remote,) = {*running.site.pool.runtimes[:1]}
    remote.timeout_s = 0.3
    upstream.script = lambda asked: upstream.hang(asked)
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(running.infer, ONE, path=f"{PATH}/versions/tiny/infer")
        for _ in ("the request", "the question whether it lives"):
            assert upstream.entered.acquire(timeout=20)
            patient.advance(0.6)
        found = asked.result(20)
    assert (found.status, found.json["error"].split(": ")[0]) == (504, "digits/tiny#0 failed")
    assert running.infer(ONE).json["model_version"] == "big"
    # A trial of the instance, with zeros, may be under way.
    assert len([asked for asked in upstream.infers if not asked.body.endswith(bytes(8))]) == 1


@pytest.mark.parametrize("announced", [10**5, 10**15])
def test_a_server_that_announces_what_never_comes_is_given_up(
    start: Any, site_of: Any, upstream: Scripted, announced: int
) -> None:
    remote = RemoteRuntime(address_of(upstream), timeout_s=1.0)
    running = start(site_of([remote, NullRuntime(DOUBLE)], signature=DOUBLE))

    def drip(asked: Asked) -> bytes | None:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nx" % announced

    upstream.script = infers(drip)
    found = running.infer(ONE, path=f"{PATH}/versions/tiny/infer")
    late = announced == 10**5
    assert found.status == (504 if late else 500)
    said = "gave no answer in time" if late else "it announces more than 268,435,456 bytes"
    assert said in found.json["error"]


def test_a_lost_answer_is_not_asked_for_again(two: Any, upstream: Scripted) -> None:
    running = two()
    before = len(upstream.infers)

    def lose(asked: Asked) -> bytes:
        raise EndError(reset=True)

    upstream.script = infers(lose)
    found = running.infer(ONE)
    assert (found.status, len(upstream.infers)) == (500, before + 1)
    assert running.site.stats.moved == [0, 0]


# --- health


def test_requests_that_were_not_served_go_to_another_variant_and_it_recovers(
    two: Any, upstream: Scripted, serve: Callable[..., Scripted], until: Any, patient: Any
) -> None:
    running = two(count=2)
    site = running.site
    assert running.infer(ONE).json["model_version"] == "tiny"
    upstream.close()
    for _ in range(4):
        assert running.infer(ONE).json["model_version"] == "big"
    assert site.stats.moved == [2, 0]  # each of its instances has found it out once
    assert running.call(lambda: site.pool.health.healthy) == [False, False, True]
    assert running.get(f"{PATH}/versions/tiny/ready").status == 503
    pinned = running.infer(ONE, path=f"{PATH}/versions/tiny/infer")
    assert (pinned.status, pinned.headers["retry-after"]) == (503, "1")
    assert running.call(lambda: site.in_flight) == 0
    assert lines(running, "inferway_remote_moved_requests_total") == [
        'inferway_remote_moved_requests_total{task="digits",variant="tiny"} 2.0'
    ]
    reasons = [line for line in lines(running, "inferway_remote_failures") if "unreach" in line]
    assert float(reasons[0].split()[1]) >= 2
    again = serve(port=upstream.port)

    def recovered() -> bool:
        patient.advance(1.0)
        healthy: list[bool] = running.call(lambda: list(site.pool.health.healthy))
        return all(healthy)

    until(recovered)
    assert running.infer(ONE).json["model_version"] == "tiny"
    assert len(again.infers) >= 3


def test_the_balance_counts_a_moved_request_once(two: Any, upstream: Scripted) -> None:
    running = two(target=0.8)
    site = running.site
    upstream.script = infers(response(503))
    assert running.infer(ONE).json["model_version"] == "big"
    assert running.call(lambda: site.pool.dispatcher.balance) == pytest.approx(0.9 - 0.8)
    assert running.call(lambda: site.stats.rows) == [0, 1]


def test_a_request_moves_once(start: Any, serve: Callable[..., Scripted], tmp_path: Path) -> None:
    servers = [serve() for _ in range(3)]
    variants = ", ".join(
        far(server.url).replace("far", name) for server, name in zip(servers, "abc", strict=True)
    )
    running = start(deployment=write(tmp_path, variants))
    before = sum(len(server.infers) for server in servers)
    for server in servers:
        server.script = infers(response(503, {"error": "not now"}))
    assert running.infer(ONE).status == 503
    assert sum(len(server.infers) for server in servers) == before + 2


def test_a_request_does_not_move_where_it_may_not(two: Any, upstream: Scripted) -> None:
    running = two()
    upstream.script = lambda asked: response(429)
    found = running.infer(ONE)
    assert found.json["model_version"] == "big"
    # It has too much to do, which is no illness.
    assert running.site.pool.health.healthy == [True, True]
    pinned = running.infer(ONE, path=f"{PATH}/versions/tiny/infer")
    assert pinned.status == 429


def test_a_server_that_fails_at_zeros_too_rests(two: Any, upstream: Scripted) -> None:
    running = two()
    site = running.site
    upstream.script = infers(response(500))  # but for zeros
    for _ in range(2 * FAILURES):
        assert running.infer(ONE).status == 500
    assert running.call(lambda: site.pool.health.healthy) == [True, True]
    upstream.script = lambda asked: response(500)
    for _ in range(FAILURES):
        assert running.infer(ONE).status == 500
    assert running.infer(ONE).json["model_version"] == "big"
    assert running.call(lambda: site.pool.health.healthy) == [False, True]


def test_it_starts_without_a_server_that_is_down_and_takes_it_in_later(
    start: Any, serve: Callable[..., Scripted], tmp_path: Path, until: Any, patient: Any
) -> None:
    server = serve()
    server.close()
    deployment = write(tmp_path, f"{local(tmp_path)}, {far(server.url)}")
    running = start(deployment=deployment, loop=patient, now=patient.time)
    site = running.site
    assert running.get(f"{PATH}/ready").status == 200
    assert running.get(f"{PATH}/versions/far/ready").status == 503
    assert running.infer(ONE).json["model_version"] == "near"

    def healthy() -> bool:
        patient.advance(1.0)
        found: list[bool] = running.call(lambda: list(site.pool.health.healthy))
        return all(found)

    # What comes up with another signature is not the model that was meant.
    other = serve(port=server.port)
    other.metadata = other.metadata | {"outputs": other.metadata["inputs"]}
    for _ in range(20):
        assert not healthy()
    until(lambda: healthy() or len(other.asked) > 2)
    assert not healthy()
    other.close()
    serve(port=server.port)
    until(healthy)
    found = running.infer(ONE, path=f"{PATH}/versions/far/infer")
    assert found.json["outputs"][0]["data"] == [2.0, 5.0]


def test_one_server_that_answers_says_the_signature_of_all(
    start: Any, serve: Callable[..., Scripted], tmp_path: Path, until: Any, patient: Any
) -> None:
    down, works = serve(), serve()
    down.close()
    variants = f"{far(down.url)}, {far(works.url).replace('far', 'other')}"
    running = start(deployment=write(tmp_path, variants), loop=patient, now=patient.time)
    assert running.infer(ONE).json["model_version"] == "other"
    found = running.infer(ONE, path=f"{PATH}/versions/far/infer")
    assert found.status == 503
    changed = serve(port=down.port)
    changed.metadata = changed.metadata | {"outputs": changed.metadata["inputs"]}

    def asked() -> bool:
        patient.advance(1.0)
        return len(changed.asked) > 3

    until(asked)
    assert changed.infers == []
    assert running.call(lambda: running.site.pool.health.healthy) == [False, True]


def test_a_task_without_any_signature_is_refused(
    serve: Callable[..., Scripted], start: Any, tmp_path: Path
) -> None:
    server = serve()
    server.close()
    with pytest.raises(ServeError) as error:
        start(deployment=write(tmp_path, far(server.url)))
    assert "tasks.digits.variants.far: the remote server cannot be reached: connection ref" in str(
        error.value
    )


def test_signatures_that_differ_are_refused(start: Any, upstream: Scripted, tmp_path: Path) -> None:
    upstream.metadata = upstream.metadata | {"outputs": upstream.metadata["inputs"]}
    deployment = write(tmp_path, f"{far(upstream.url)}, {local(tmp_path)}")
    with pytest.raises(ServeError, match=r"variants\.far: .* differs from \(x: FP32"):
        start(deployment=deployment)


# --- concurrency, times, batches


def test_no_more_requests_are_there_at_once_than_instances(two: Any, upstream: Scripted) -> None:
    running = two(count=2, policy="fastest-only")
    upstream.script = infers(upstream.hang)
    with ThreadPoolExecutor(6) as clients:
        asked = [clients.submit(running.infer, ONE) for _ in range(6)]
        for _ in range(2):
            assert upstream.entered.acquire(timeout=20)
        assert upstream.busy == 2
        upstream.released.set()
        assert {one.result(20).status for one in asked} == {200}
    assert upstream.most_busy == 2
    assert running.site.pool.runtimes[0].opened == 2


def test_dispatch_learns_how_long_it_takes(start: Any, upstream: Scripted, tmp_path: Path) -> None:
    running = start(deployment=write(tmp_path, far(upstream.url)))
    site = running.site
    assert running.call(lambda: site.pool.dispatcher.site.row_s[0, 0]) == pytest.approx(1e-3)

    def slowly(asked: Asked) -> None:
        upstream.released.wait(0.03)

    upstream.script = infers(slowly)
    for _ in range(12):
        assert running.infer(ONE).status == 200
    assert running.call(lambda: site.pool.dispatcher.site.row_s[0, 0]) > 0.02


def test_one_bad_request_of_a_batch_costs_no_other_its_answer(
    start: Any, upstream: Scripted, tmp_path: Path
) -> None:
    batch = ", batch: {sizes: [1, 4], service: [1 ms, 2 ms], min: 4}"
    running = start(deployment=write(tmp_path, far(upstream.url, batch)))

    def judge(asked: Asked) -> bytes | None:
        length = int(asked.headers["inference-header-content-length"])
        bad = (np.frombuffer(asked.body[length:], "<f4") < 0).any()
        return response(400, {"error": "below zero"}) if bad else None

    upstream.script = infers(judge)
    with ThreadPoolExecutor(4) as clients:
        values = [(1, 2), (3, 4), (-1, 0.5), (5, 6)]
        found = list(clients.map(lambda pair: running.infer(asking(*pair)), values))
    assert [one.status for one in found] == [200, 200, 400, 200]
    assert [one.json["outputs"][0]["data"] for one in found if one.status == 200] == [
        [2, 4], [6, 8], [10, 12],
    ]  # fmt: skip
    sizes = [json.loads(one.body[: one.body.index(b"}]}") + 3])["inputs"][0]["shape"][0]
             for one in upstream.infers if one.body]  # fmt: skip
    assert 4 in sizes


def test_a_server_lists_what_goes_to_remote_ones_in_its_metrics(two: Any) -> None:
    running = two()
    running.infer(ONE)
    assert lines(running, "inferway_remote_connections_total") == [
        'inferway_remote_connections_total{task="digits",variant="tiny"} 1.0'
    ]
    faults = [line.split('fault="')[1].split('"')[0] for line in lines(
        running, "inferway_remote_failures_total")]  # fmt: skip
    # A server's processes are its own; what died is told of replicas of Ray Serve.
    assert faults == [fault.value for fault in Fault if fault is not Fault.DIED]


def test_a_server_that_stops_closes_its_connections(
    start: Any, upstream: Scripted, tmp_path: Path
) -> None:
    running = start(deployment=write(tmp_path, far(upstream.url)))
    runtime = running.site.pool.runtimes[0]
    running.infer(ONE)
    connections = runtime._made[-1]
    assert len(connections._idle) == 1
    running.wait(running.server.stop())
    assert connections._idle == []
