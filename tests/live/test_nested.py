"""JSON nested deeper than any reader goes down: whoever sent it is told in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from inferway import loadgen
from inferway.cli import main
from inferway.protocol import ModelAddress
from inferway.runtime import BlockingRemote, Fault, RemoteError, RemoteRuntime
from scripted import Asked, Scripted, response

DEEP = 100_000
LISTS = b"[" * DEEP + b"]" * DEEP
OBJECTS = b'{"a":' * DEEP + b"1" + b"}" * DEEP
NETWORK = """
tasks: {digits: {variants: {tiny: {model: zoo://digits/tiny}}}}
nodes: {cloud: {repository: true}, edge: {budget: 1 MB}}
network: {links: [{between: [cloud, edge], rtt: 20 ms}]}
workload: {digits: {arrivals: {process: constant, rate: 1/s}, entries: {nodes: [edge]}}}
"""
TENSOR = b'{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}'
WHOLE = b'{"inputs": [%s]}' % TENSOR


@pytest.fixture
def upstream() -> Iterator[Scripted]:
    server = Scripted()
    yield server
    server.close()


@pytest.fixture
def reported(digits: Any, monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What the server calls its own failures."""
    errors: list[BaseException] = []
    for listener in (digits.server._http, digits.server._admin):
        monkeypatch.setattr(listener, "broken", errors.append)
    return errors


@pytest.mark.parametrize("deep", [LISTS, OBJECTS], ids=["lists", "objects"])
@pytest.mark.parametrize(
    "body",
    [
        b"%s",
        b'{"x": %s, "inputs": []}',
        b'{"inputs": %s}',
        b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": %s}]}',
        b'{"inputs": [{"name": "image", "datatype": "FP32", "shape": %s, "data": [1]}]}',
        WHOLE.replace(b"{", b'{"parameters": {"own": %s}, ', 1),
        WHOLE.replace(b"{", b'{"outputs": [{"name": "scores", "parameters": %s}], ', 1),
        WHOLE.replace(b"{", b'{"id": %s, ', 1),
    ],
    ids=["all", "unknown", "inputs", "data", "shape", "parameters", "outputs", "id"],
)
def test_an_inference_request(
    digits: Any, reported: list[BaseException], body: bytes, deep: bytes
) -> None:
    answer = digits.infer(body.replace(b"%s", deep))
    assert answer.status == 400
    assert set(answer.json) == {"error"}
    assert "\n" not in answer.json["error"]
    assert len(answer.json["error"]) < 200
    assert digits.infer(WHOLE).status == 200
    assert reported == []


def test_just_as_deep_as_a_reader_goes(digits: Any, reported: list[BaseException]) -> None:
    for depth in range(800, 1100):
        body = WHOLE.replace(b"{", b'{"own": ' + b"[" * depth + b"]" * depth + b", ", 1)
        assert digits.infer(body).status in (200, 400)
        text = b"[1, 2, 3, " + b"[" * depth + b"]" * depth + b"]"
        assert digits.infer(WHOLE.replace(b"[1, 2, 3, 4]", text)).status == 400
    assert reported == []


def test_the_repository_index(digits: Any, reported: list[BaseException]) -> None:
    for body in (LISTS, b'{"ready": %s}' % OBJECTS, b'{"x": %s}' % LISTS):
        answer = digits.ask(digits.post(body, path="/v2/repository/index"))
        assert answer.status == 400
        assert "\n" not in answer.json["error"]
    assert reported == []


def test_apply(start: Any, site_of: Any) -> None:
    running = start(site_of(), allow_apply=True)
    kind = "Content-Type: application/json\r\n"
    yaml = json.dumps({"content": "tasks: " + "[" * DEEP + "]" * DEEP}).encode()
    flow = json.dumps({"content": "tasks: " + "{a: " * DEEP + "1" + "}" * DEEP}).encode()
    dashes = json.dumps({"content": "- " * DEEP + "1"}).encode()
    for body in (LISTS, b'{"path": %s}' % OBJECTS, b'{"x": %s}' % LISTS, yaml, flow, dashes):
        answer = running.ask(
            running.post(body, kind, "/apply").replace(b"Host: test", b"Host: localhost"),
            admin=True,
        )
        assert answer.status == 400, answer.body[:200]
        assert len(answer.json["error"]) < 1000
    assert "nested" in answer.json["error"]
    assert running.infer(WHOLE).status == 200


def address_of(upstream: Scripted) -> ModelAddress:
    return ModelAddress("127.0.0.1", upstream.port, tls=False, prefix="", model="double")


def infers(content: bytes, status: int = 200) -> Callable[[Asked], bytes | None]:
    """Make a script that answers requests for inference so, and others as usual."""

    def script(asked: Asked) -> bytes | None:
        if asked.path.endswith("/infer"):
            return response(status, content)
        return response(200) if asked.path.endswith("/ready") else None

    return script


@pytest.mark.parametrize("content", [LISTS, b'{"outputs": %s}' % LISTS, b'{"x": %s}' % OBJECTS])
def test_a_remote_servers_answer_is_its_failure(upstream: Scripted, content: bytes) -> None:
    runtime = BlockingRemote(RemoteRuntime(address_of(upstream), timeout_s=20.0))
    x = {"x": np.zeros((1, 2), np.float32)}
    try:
        runtime.run(x)
        upstream.script = infers(content)
        with pytest.raises(RemoteError) as caught:
            runtime.run(x)
        assert caught.value.fault is Fault.BROKEN
        assert "remote server's answer is not one of the Open" in str(caught.value)
        assert len(str(caught.value)) < 200
        upstream.script = infers(content, 503)
        with pytest.raises(RemoteError, match=r"answered 503$"):
            runtime.run(x)
        upstream.script = None
        runtime.run(x)
    finally:
        runtime.close()


def test_a_remote_servers_metadata(upstream: Scripted) -> None:
    for content in (LISTS, b'{"x": %s}' % LISTS, OBJECTS):
        upstream.script = lambda _, content=content: response(200, content)  # type: ignore[misc]
        runtime = RemoteRuntime(address_of(upstream), timeout_s=20.0)
        with pytest.raises(RemoteError, match="metadata are not those of the protocol"):
            runtime.signature  # noqa: B018
        runtime.close()


@pytest.mark.parametrize("status", [200, 400])
def test_the_generator_counts_it_as_no_answer(upstream: Scripted, status: int) -> None:
    upstream.script = infers(b'{"outputs": %s}' % LISTS, status)
    url = f"http://127.0.0.1:{upstream.port}"
    record = loadgen.drive(url, "double", np.zeros(2), np.zeros((1, 2), np.float32))
    assert not record.answered.any()
    upstream.script = lambda asked: response(200, OBJECTS if "/models/" in asked.path else b"")
    with pytest.raises(loadgen.DriveError, match="nested too deep"):
        loadgen.drive(url, "double", np.zeros(2), np.zeros((1, 2), np.float32))


def said_by(capsys: Any, *words: str) -> str:
    """What a command says when it fails, in a line."""
    assert main(list(words)) in (1, 2)
    printed = capsys.readouterr()
    said: str = printed.out + printed.err
    assert "bug" not in said
    assert "Traceback" not in said
    return " ".join(said.split())


def test_files_that_commands_read(tmp_path: Path, capsys: Any, upstream: Scripted) -> None:
    file = tmp_path / "served.yaml"
    one = "{accuracy: 0.9, size: 1 MB, service: {mean: 1 ms}}"
    file.write_text(f"tasks: {{digits: {{variants: {{one: {one}}}}}}}\n")
    deep = tmp_path / "deep.yaml"
    for content in (LISTS, b"{a: " * DEEP, b"- " * DEEP, b"? " * DEEP):
        deep.write_bytes(content)
        said = said_by(capsys, "check", str(deep))
        assert "nested" in said or "lines, commas and brackets" in said
    folder = tmp_path / "recordings" / "digits"
    folder.mkdir(parents=True)
    (folder / "recording.json").write_bytes(LISTS)
    assert "nested too deep" in said_by(capsys, "replay", str(folder))
    addresses = tmp_path / "addresses.json"
    addresses.write_bytes(b'{"here": {"x": %s}}' % LISTS)
    network = tmp_path / "network.yaml"
    network.write_text(NETWORK)
    reached = ("--addresses", str(addresses))
    assert "nested too deep" in said_by(capsys, "drive", str(network), *reached)
    upstream.script = lambda _: response(200, LISTS)
    url = f"http://127.0.0.1:{upstream.port}"
    assert "nested too deep" in said_by(capsys, "apply", str(file), "--admin-url", url)
    upstream.script = lambda _: response(400, LISTS)
    assert "HTTP status 400" in said_by(capsys, "apply", str(file), "--admin-url", url)
