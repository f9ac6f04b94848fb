"""The repository index: what there is, and what of it answers."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

ONE = {
    "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}]
}
INDEX = "/v2/repository/index"
FAILURES = 3
"""One after the other, and an instance rests."""


def entry(version: str, reason: str = "") -> dict[str, str]:
    state = "UNAVAILABLE" if reason else "READY"
    return {"name": "digits", "version": version, "state": state, "reason": reason}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": true}', b'{"ready": false, "of": 1}'])
def test_it_lists_every_variant(digits: Any, body: bytes) -> None:
    both = [entry("tiny"), entry("big")]
    assert digits.infer(body, path=INDEX).json == both
    packed = digits.infer(gzip.compress(body), "Content-Encoding: gzip\r\n", path=INDEX)
    assert packed.json == both


@pytest.mark.parametrize("body", [b"[]", b"{", b"null", b'{"ready": 1}', b"\xff"])
def test_what_is_no_request_is_refused(digits: Any, body: bytes) -> None:
    answer = digits.infer(body, path=INDEX)
    assert answer.status == 400
    assert answer.json["error"].startswith("the request is not valid: ")
    damaged = digits.infer(body, "Content-Encoding: gzip\r\n", path=INDEX)
    assert damaged.status == 400


def test_a_variant_that_does_not_answer_is_listed_as_such(
    start: Any, site_of: Any, gates: Any, patient: Any
) -> None:
    for gate in gates:
        gate.opened.set()
    running = start(site_of(gates, now=patient.time), loop=patient, now=patient.time)
    gates[0].failure = RuntimeError("no memory")
    for _ in range(FAILURES):
        assert running.infer(ONE, path="/v2/models/digits/versions/tiny/infer").status == 500
    assert running.infer({}, path=INDEX).json == [
        entry("tiny", "no instance of it is healthy"),
        entry("big"),
    ]
    assert running.infer({"ready": True}, path=INDEX).json == [entry("big")]
    running.call(lambda: setattr(running.server, "ready", False))
    listed = running.infer({}, path=INDEX).json
    assert [one["reason"] for one in listed] == ["the server is not ready"] * 2
    assert running.infer({"ready": True}, path=INDEX).json == []


def test_tritonclient_reads_it(digits: Any) -> None:
    client = pytest.importorskip("tritonclient.http").InferenceServerClient(digits.url)
    assert client.get_model_repository_index() == [entry("tiny"), entry("big")]
    client.close()
