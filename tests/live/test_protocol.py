"""The wire: HTTP/1.1 as clients send it, and as they should not."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from inferway.live import Limits

GET = b"GET %s HTTP/1.1\r\nHost: test\r\n\r\n"
ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}


def test_health_and_metadata(digits: Any) -> None:
    live, ready = digits.get("/v2/health/live"), digits.get("/v2/health/ready")
    assert (live.status, live.body, ready.status, ready.body) == (200, b"", 200, b"")
    for path in ("/v2", "/v2/"):
        assert digits.get(path).json == {
            "name": "inferway",
            "version": digits.get("/v2").json["version"],
            "extensions": ["binary_tensor_data", "model_configuration", "statistics"],
        }
    expected = {
        "name": "digits",
        "versions": ["tiny", "big"],
        "platform": "inferway",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 4]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 3]}],
    }
    for path in ("/v2/models/digits", "/v2/models/digits/versions/big"):
        assert digits.get(path).json == expected
        assert digits.get(path + "/ready").status == 200
    assert digits.get("/v2/models").json == {"models": ["digits"]}
    assert "date" in live.headers


@pytest.mark.parametrize(
    ("method", "path", "status", "part"),
    [
        ("GET", "/v2/models/other", 404, "unknown task 'other'"),
        ("GET", "/v2/models/digits/versions/huge", 404, "no variant 'huge'"),
        ("POST", "/v2/models/other/infer", 404, "unknown task 'other'"),
        ("GET", "/nowhere", 404, "/nowhere"),
        ("GET", "/v2/models/digits/infer", 405, "use POST"),
        ("POST", "/v2", 405, "use GET"),
        ("DELETE", "/v2/models/digits", 405, "DELETE"),
    ],
)
def test_unknown_paths_and_methods(
    digits: Any, method: str, path: str, status: int, part: str
) -> None:
    response = digits.ask(
        f"{method} {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n".encode()
    )
    assert response.status == status
    assert part in response.json["error"]
    assert ("allow" in response.headers) == (status == 405)


def test_a_target_may_have_scheme_query_and_escapes(digits: Any) -> None:
    for target in (
        b"http://host:1/v2/models/digits",
        b"/v2/models/digits?x=1",
        b"/v2/models/%64igits",
    ):
        assert digits.ask(GET % target).status == 200


def test_head_has_the_length_and_no_body(digits: Any) -> None:
    with closing(digits.wire()) as wire:
        wire.send(b"HEAD /v2 HTTP/1.1\r\nHost: t\r\n\r\n" + GET % b"/v2")
        assert int(wire.read(head=True).headers["content-length"]) == len(wire.read().body)


def test_pipelined_requests_are_answered_in_order(
    start: Any, site_of: Any, gates: Any, until: Any
) -> None:
    gates[0].opened.set()
    gates[1].opened.set()
    running = start(site_of(gates))
    for gate in gates:
        gate.opened.clear()
    with closing(running.wire()) as wire:
        slow = running.post(ONE | {"id": "slow"}, path="/v2/models/digits/versions/big/infer")
        fast = running.post(ONE | {"id": "fast"}, path="/v2/models/digits/versions/tiny/infer")
        wire.send(slow + fast + GET % b"/v2/health/live")
        gates[0].opened.set()  # the second request's model answers first
        until(lambda: running.site.stats.rows[0] == 1)
        gates[1].opened.set()
        assert [wire.read().json["id"], wire.read().json["id"]] == ["slow", "fast"]
        assert wire.read().body == b""


def test_many_pipelined_requests(digits: Any) -> None:
    with closing(digits.wire()) as wire:
        wire.send(b"".join(digits.post(ONE | {"id": str(i)}) for i in range(300)))
        assert [wire.read().json["id"] for _ in range(300)] == [str(i) for i in range(300)]


@pytest.mark.parametrize("packed", [False, True])
def test_no_more_is_read_while_much_waits(
    start: Any, site_of: Any, gates: Any, until: Any, packed: bool
) -> None:
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates), limits=Limits(queued_bytes=2000))
    gates[0].opened.clear()
    data = ONE["inputs"][0] | {"shape": [500, 4], "data": [0.5] * 2000}
    body = json.dumps({"inputs": [data]}).encode()
    raw = running.post(body)
    if packed:
        body = gzip.compress(body)
        assert len(body) < 1000
        raw = running.post(body, "Content-Encoding: gzip\r\n")
    wire = running.wire()
    wire.send(raw)
    until(lambda: all(one._paused for one in running.server._http.connections or [Missing]))
    wire.send(raw * 2)
    gates[0].opened.set()
    assert [wire.read().status for _ in range(3)] == [200] * 3


class Missing:
    """No connection yet."""

    _paused = False


def test_connections_over_the_cap_are_told_to_come_back(
    start: Any, site_of: Any, until: Any
) -> None:
    running = start(site_of(), limits=Limits(connections=2))
    wires = [running.wire() for _ in range(2)]
    until(lambda: len(running.server._http.connections) == 2)
    refused = running.wire().read()
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    wires[0].close()
    until(lambda: len(running.server._http.connections) == 1)
    assert running.get("/v2").status == 200


def test_keep_alive_and_close(digits: Any) -> None:
    with closing(digits.wire()) as wire:
        wire.send(GET % b"/v2")
        assert "connection" not in wire.read().headers
        wire.send(b"GET /v2 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n")
        assert wire.read().headers["connection"] == "close"
        assert wire.closed()
    with closing(digits.wire()) as wire:
        wire.send(b"GET /v2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert wire.read().headers["connection"] == "keep-alive"
        wire.send(b"GET /v2 HTTP/1.0\r\n\r\n")
        assert wire.read().headers["connection"] == "close"
        assert wire.closed()


def test_expect_continue(digits: Any) -> None:
    raw = digits.post(ONE, "Expect: 100-continue\r\n")
    head, _, body = raw.partition(b"\r\n\r\n")
    with closing(digits.wire()) as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.read().status == 100
        wire.send(body)
        assert wire.read().status == 200
        # Behind another request, the permission comes after that one's answer.
        wire.send(digits.post(ONE) + head + b"\r\n\r\n")
        assert wire.read().status == 200
        assert wire.read().status == 100
        wire.send(body)
        assert wire.read().status == 200


def test_expect_continue_is_refused_for_a_body_over_the_cap(digits: Any) -> None:
    response = digits.ask(
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
        b"Content-Length: 99999999999\r\n\r\n"
    )
    assert response.status == 413
    assert response.headers["connection"] == "close"


def test_chunked_bodies(digits: Any) -> None:
    body = json.dumps(ONE).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert digits.ask(head + chunks + b"0\r\n\r\n").status == 200


def test_a_request_may_come_byte_by_byte(digits: Any) -> None:
    with closing(digits.wire()) as wire:
        for byte in digits.post(ONE):
            wire.send(bytes([byte]))
        assert wire.read().status == 200


def test_bodies_over_the_cap(start: Any, site_of: Any) -> None:
    running = start(site_of(), limits=Limits(body_bytes=1000))
    response = running.ask(running.post(b"x" * 1001))
    assert (response.status, response.headers["connection"]) == (413, "close")
    assert "1000 bytes" in response.json["error"]
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert running.ask(head + b"400\r\n" + b"x" * 1024 + b"\r\n0\r\n\r\n").status == 413
    bomb = gzip.compress(b" " * 10_000)
    assert running.ask(running.post(bomb, "Content-Encoding: gzip\r\n")).status == 413
    assert running.infer(ONE).status == 200


def test_long_heads(start: Any, site_of: Any) -> None:
    running = start(site_of(), limits=Limits(head_bytes=1000))
    assert running.ask(b"GET /v2 HTTP/1.1\r\nX: " + b"x" * 2000 + b"\r\n\r\n").status == 431
    assert running.ask(b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\nHost: t\r\n\r\n").status == 414


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /v2 HTTP/9.9\r\n\r\n",
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_garbage_is_refused_and_the_server_goes_on(digits: Any, raw: bytes) -> None:
    response = digits.ask(raw)
    assert response.status == 400
    assert "malformed HTTP" in response.json["error"]
    assert digits.infer(ONE).status == 200


@pytest.mark.parametrize("close", ["", "Connection: close\r\n"])
def test_a_handler_that_fails_answers_and_closes(
    start: Any, site_of: Any, monkeypatch: pytest.MonkeyPatch, close: str
) -> None:
    def fail(_exchange: Any) -> None:
        raise RuntimeError("a bug")

    running = start(site_of())
    monkeypatch.setattr(running.server._http, "find", lambda *_: fail)
    wire = running.wire()
    wire.send(f"GET /v2 HTTP/1.1\r\nHost: test\r\n{close}\r\n".encode())
    answer = wire.read()
    assert (answer.status, answer.headers["connection"]) == (500, "close")
    assert answer.json == {"error": "the server failed on this request"}
    assert wire.closed()


def test_an_upgrade_is_ignored(digits: Any) -> None:
    with closing(digits.wire()) as wire:
        wire.send(
            b"GET /v2 HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            + GET % b"/v2/health/live"
        )
        assert wire.read().status == 200
        assert wire.read().body == b""


def test_a_client_may_leave_inside_a_body(digits: Any) -> None:
    wire = digits.wire()
    wire.send(digits.post(ONE)[:-10])
    wire.close()
    assert digits.infer(ONE).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
def test_compressed_requests(digits: Any, encoding: str) -> None:
    body = json.dumps(ONE).encode()
    if encoding == "gzip":
        packed = gzip.compress(body[:9]) + gzip.compress(body[9:])  # members may follow each other
    else:
        machine = zlib.compressobj(wbits=15 if encoding == "deflate" else -15)
        packed = machine.compress(body) + machine.flush()
    header = f"Content-Encoding: {encoding.split()[-1]}\r\n"
    assert digits.ask(digits.post(packed, header)).status == 200
    assert digits.ask(digits.post(packed[:-4], header)).status == 400
    assert digits.ask(digits.post(b"x" + packed, header)).status == 400


def test_unknown_encodings_are_refused(digits: Any) -> None:
    assert digits.ask(digits.post(ONE, "Content-Encoding: br\r\n")).status == 415


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, deflate;q=0.5, gzip;q=0.4", "deflate"),
        ("gzip;q=0, identity", None),
        ("br", None),
    ],
)
def test_large_answers_are_compressed_on_request(
    digits: Any, accept: str, encoding: str | None
) -> None:
    rows = np.ones((200, 4), np.float32)
    body = {
        "inputs": [
            {
                "name": "image",
                "datatype": "FP32",
                "shape": [200, 4],
                "data": rows.ravel().tolist(),
            }
        ]
    }
    response = digits.ask(digits.post(body, f"Accept-Encoding: {accept}\r\n"))
    assert response.headers.get("content-encoding") == encoding
    unpack = {None: bytes, "gzip": gzip.decompress, "deflate": zlib.decompress}[encoding]
    assert len(json.loads(unpack(response.body))["outputs"][0]["data"]) == 600


def test_slow_and_idle_connections_are_closed(start: Any, site_of: Any, until: Any) -> None:
    running = start(site_of(), limits=Limits(receive_s=3, idle_s=3))
    listener = running.server._http
    with closing(running.wire()) as slow, closing(running.wire()) as idle:
        slow.send(b"GET /v2 HT")
        until(lambda: any(connection.exchanges for connection in listener.connections))

        async def pass_time() -> None:
            listener.tick += 10
            for connection in list(listener.connections):
                connection.expire()

        running.wait(pass_time())
        assert slow.read().status == 408
        assert idle.closed()
