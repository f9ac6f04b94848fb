"""What does not fit gets a 4xx with the reason, and the server goes on."""

from __future__ import annotations

import json
import struct
from contextlib import closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferway.live import Keys, Limits

TENSOR = {"name": "image", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]}
RAW = struct.pack("<4f", 1, 2, 3, 4)


def one(**changes: Any) -> dict[str, Any]:
    """A valid request with parts of its input replaced; None leaves a part out."""
    tensor = {name: value for name, value in (TENSOR | changes).items() if value is not None}
    return {"inputs": [tensor]}


def test_the_basis_of_these_tests_is_valid(digits: Any) -> None:
    assert digits.infer(one()).status == 200
    assert digits.infer(*binary()).status == 200


def binary(
    size: Any = 16, raw: bytes = RAW, length: str | None = None, **changes: Any
) -> tuple[bytes, str]:
    """A binary request: its body and header."""
    message = one(data=None, parameters={"binary_data_size": size}, **changes)
    head = json.dumps(message).encode()
    length = str(len(head)) if length is None else length
    return head + raw, f"Inference-Header-Content-Length: {length}\r\n"


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "not valid"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`"),
        (b"\xff\xfe", "not valid"),
        (b'{"inputs": [{"name": "\xff"}]}', "not valid"),
        (b"[" * 100_000, "not valid"),
        ({}, "`inputs`"),
        ({"inputs": []}, "lacks input 'image'"),
        ({"inputs": {}}, "$.inputs"),
        ({"inputs": [TENSOR], "id": 7}, "$.id"),
        ({"inputs": [TENSOR, TENSOR]}, "given twice"),
        ({"inputs": [TENSOR, TENSOR | {"name": "mask"}]}, "no input 'mask'"),
        (one(name="picture"), "no input 'picture'; expected (image: FP32[-1, 4])"),
        (one(datatype="FP64"), "expected FP32"),
        (one(datatype="FLOAT"), "'FLOAT'"),
        (one(shape=[1, 5]), "shape [1, 5], expected [-1, 4]"),
        (one(shape=[4]), "expected [-1, 4]"),
        (one(shape=[0, 4], data=[]), "at least 1"),
        (one(shape=[-1, 4]), "$.inputs[0].shape[0]"),
        (one(shape=[1.5, 4]), "$.inputs[0].shape[0]"),
        (one(shape=[2, 4]), "has 4 elements, its shape [2, 4] says 8"),
        (one(shape=[10**9, 4]), "limit is"),
        (one(shape=[2**53, 4]), "limit is"),
        (one(shape=[10**4000, 10**4000]), "$.inputs[0].shape[0]"),
        (one(data=None), "neither data nor binary_data_size"),
        (one(data=[1, 2, 3]), "3 elements"),
        (one(data=[]), "0 elements"),
        (one(data=7), "1 elements"),
        (one(data=[1, 2, 3, "4"]), "not FP32"),
        (one(data=[1, 2, 3, None]), "not FP32"),
        (one(data=[1, 2, 3, True]), "not FP32"),
        (one(data=[1, 2, 3, 1e39]), "out of the range of FP32"),
        (one(data=[[1, 2], [3, 4]]), "not of its shape"),
        (one(data=[[1, 2, 3, [4]]]), "not FP32"),
        (one(data=[[[1, 2, 3, 4]]]), "nested 3 deep"),
        (one(data=[1, [2, 3, 4]]), "not FP32"),
        (
            b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,4],"data":[NaN,1,2,3]}]}',
            "JSON",
        ),
        (
            b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,4],"data":[Infinity,1,2,3]}]}',
            "JSON",
        ),
        (b'{"inputs":[{"name":"image","datatype":"FP32","shape":[1,4],"data":[1e999,1,2,3]}]}', ""),
        (one(parameters={"binary_data_size": 16}), "both data and binary_data_size"),
        (one(parameters={"binary_data_size": "16"}), "binary_data_size"),
        (one() | {"outputs": [{"name": "labels"}]}, "no output 'labels'; there is 'scores'"),
        (one() | {"outputs": [{"name": "scores"}, {"name": "scores"}]}, "requested twice"),
        (one() | {"parameters": {"accuracy": 1.5}}, "accuracy"),
        (one() | {"parameters": {"deadline_ms": -1}}, "deadline_ms"),
        (one() | {"parameters": {"priority": -1}}, "priority"),
        (one() | {"parameters": {"timeout": -1}}, "timeout"),
        (one() | {"parameters": {"timeout": 10**4000}}, "timeout"),
        (one() | {"parameters": {"timeout": "soon"}}, "timeout"),
    ],
)
def test_malformed_json(digits: Any, body: Any, part: str) -> None:
    response = digits.infer(body)
    assert response.status in (400, 413)
    assert part in response.json["error"]
    assert digits.infer(one()).status == 200


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (binary(raw=RAW[:-1]), "16 bytes of binary data; 15 are left"),
        (binary(raw=b""), "0 are left"),
        (binary(raw=RAW + b"x"), "1 bytes of binary data belong to no input"),
        (binary(size=12, raw=RAW[:12]), "FP32 of shape [1, 4] has 16"),
        (binary(size=-16), "binary_data_size"),
        (binary(size=10**15), "16 are left"),
        (binary(size=10**4000), "binary_data_size"),
        (binary(shape=[2, 4]), "shape [2, 4] has 32"),
        (binary(length="x"), "expected a number"),
        (binary(length="-1"), "expected a number"),
        (binary(length="9" * 30), "expected a number"),
        (binary(length="99999"), "the body has"),
        (binary(length="5"), "not valid"),
        (binary(length="0"), "not valid"),
        ((binary()[0], ""), "not valid"),
    ],
)
def test_malformed_binary(digits: Any, request_: tuple[bytes, str], part: str) -> None:
    response = digits.infer(*request_)
    assert response.status == 400
    assert part in response.json["error"]
    assert digits.infer(*binary()).status == 200


def test_extensions_that_are_not_offered(digits: Any) -> None:
    shared = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    assert digits.infer(one(data=None, parameters=shared)).status == 501
    for parameters in (shared, {"classification": 2}):
        wanted = [{"name": "scores", "parameters": parameters}]
        assert digits.infer(one() | {"outputs": wanted}).status == 501


def test_too_many_elements(start: Any, site_of: Any) -> None:
    running = start(site_of(), limits=Limits(elements=8))
    assert running.infer(one(shape=[2, 4], data=[0] * 8)).status == 200
    response = running.infer(one(shape=[3, 4], data=[0] * 12))
    assert (response.status, response.json) == (
        413,
        {"error": "input 'image' has 12 elements, the limit is 8"},
    )


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
_PARTS = {
    "name": st.just("image") | _ANY,
    "datatype": st.just("FP32") | st.sampled_from(["INT8", "BYTES", "BOOL"]) | _ANY,
    "shape": st.just([1, 4]) | st.lists(st.integers(-2, 6), max_size=4) | _ANY,
    "data": st.lists(st.floats(), min_size=4, max_size=4) | _ANY,
    "parameters": st.fixed_dictionaries(
        {}, optional={"binary_data_size": st.integers(-2, 40), "binary_data": _ANY}
    )
    | _ANY,
}
_MESSAGES = st.fixed_dictionaries(
    {"inputs": st.lists(st.fixed_dictionaries({}, optional=_PARTS), max_size=3) | _ANY},
    optional={
        "id": st.text(max_size=5) | _ANY,
        "outputs": st.lists(
            st.fixed_dictionaries({"name": st.just("scores") | _ANY}, optional={"parameters": _ANY})
        )
        | _ANY,
        "parameters": st.fixed_dictionaries(
            {},
            optional={
                "binary_data_output": st.booleans() | _ANY,
                "accuracy": st.floats() | _ANY,
                "timeout": st.integers() | _ANY,
                "deadline_ms": st.floats() | _ANY,
                "priority": st.integers() | _ANY,
            },
        )
        | _ANY,
    },
)
_MANY = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@_MANY
@given(message=_MESSAGES, raw=st.binary(max_size=40), cut=st.integers(-4, 4))
def test_no_body_makes_a_5xx(digits: Any, message: Any, raw: bytes, cut: int) -> None:
    text = json.dumps(message).encode()
    # 429, 501 and 504 are honest answers to valid requests for what is not to be had.
    honest = {200, 400, 413, 429, 501, 504}
    assert digits.infer(text).status in honest
    header = f"Inference-Header-Content-Length: {max(0, len(text) + cut)}\r\n"
    assert digits.infer(text + raw, header).status in honest


@_MANY
@given(raw=st.binary(max_size=200), where=st.integers(0, 300), drop=st.integers(0, 20))
def test_no_bytes_make_a_5xx(digits: Any, raw: bytes, where: int, drop: int) -> None:
    valid = digits.post(one())
    broken = valid[:where] + raw + valid[where + drop :]
    wire = digits.wire()
    try:
        wire.send(broken)
        wire.socket.shutdown(1)
        assert wire.read().status < 500
    except (ConnectionError, ValueError, IndexError):
        pass  # an unfinished request has no answer
    finally:
        wire.close()
    assert digits.get("/v2/health/ready").status == 200


_READ = b"GET /v2/health/live HTTP/1.1\r\n%s\r\n"
_SENT = b"POST /v2/repository/index HTTP/1.1\r\nHost: t\r\n%s\r\n"
_CHUNKED = b"0\r\n\r\n"


@pytest.mark.parametrize("admin", [False, True])
@pytest.mark.parametrize(
    ("raw", "status", "part"),
    [
        (_READ % b"", 400, "no Host header"),
        (_READ % b"Host: a\r\nHost: a\r\n", 400, "2 Host headers"),
        (_READ % b"Host: a\r\nX: 1\r\nhost: b\r\n", 400, "2 Host headers"),
        (_READ % b"Host: a b\r\n", 400, "expected a host"),
        (_READ % b"Host: a/b\r\n", 400, "expected a host"),
        (_READ % b"Host: a@b\r\n", 400, "expected a host"),
        (_READ % b"Host: a:b\r\n", 400, "expected a host"),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, "2 Host headers"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400, "version 2.0"),
        (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 400, "version 0.9"),
        (b"GET /\r\n\r\n", 400, "version 0.9"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed HTTP"),
        (_SENT % b"Transfer-Encoding: gzip, chunked\r\n" + _CHUNKED, 501, "'gzip'"),
        (
            _SENT % b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n" + _CHUNKED,
            501,
            "'gzip'",
        ),
        (_SENT % b"transfer-encoding: DEFLATE , CHUNKED\r\n" + _CHUNKED, 501, "'deflate'"),
        (_SENT % b"Transfer-Encoding: identity, chunked\r\n" + _CHUNKED, 501, "'identity'"),
        (_SENT % b"Transfer-Encoding: gzip\r\n" + _CHUNKED, 400, "must be chunked"),
        (_SENT % b"Transfer-Encoding: xchunked\r\n" + _CHUNKED, 400, "must be chunked"),
        (_SENT % b"Transfer-Encoding: chunked;q=1\r\n" + _CHUNKED, 400, "must be chunked"),
        (_SENT % b"Transfer-Encoding: chunked, gzip\r\n" + _CHUNKED, 400, "malformed"),
        (_SENT % b"Transfer-Encoding: chunked, chunked\r\n" + _CHUNKED, 400, "malformed"),
        (_SENT % b"Transfer-Encoding: \r\n" + _CHUNKED, 400, "malformed"),
        (_SENT % b"Transfer-Encoding : chunked\r\n" + _CHUNKED, 400, "malformed"),
        (
            b"POST / HTTP/1.0\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n" + _CHUNKED,
            400,
            "HTTP/1.0",
        ),
        (
            _SENT % b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n" + _CHUNKED,
            400,
            "malformed",
        ),
        (
            _SENT % b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n" + _CHUNKED,
            400,
            "malformed",
        ),
        (_SENT % b"Content-Length: 2\r\nContent-Length: 2\r\n" + b"{}", 400, "malformed"),
        (_SENT % b"Content-Length: 2\r\nContent-Length: 3\r\n" + b"{}", 400, "malformed"),
        (_SENT % b"Content-Length: 2, 2\r\n" + b"{}", 400, "malformed"),
        (_SENT % b"Content-Length: +2\r\n" + b"{}", 400, "malformed"),
        (_SENT % b"X: a\r\n b\r\n", 400, "malformed"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "CONNECT"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", 405, "CONNECT"),
    ],
)
def test_framing_that_others_may_read_differently(
    digits: Any, admin: bool, raw: bytes, status: int, part: str
) -> None:
    with closing(digits.wire(admin=admin)) as wire:
        # Whoever stands in front may take what follows for another request, or not.
        wire.send(raw + b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
        refused = wire.read()
        assert (refused.status, refused.headers["connection"]) == (status, "close")
        assert part in refused.json["error"]
        assert wire.closed()


@pytest.mark.parametrize("host", ["", "a", "a.b:80", "[::1]", "[::1]:8000", "127.0.0.1:1", "a-b_c"])
def test_hosts_that_are_in_order(digits: Any, host: str) -> None:
    for _ in range(2):
        assert digits.ask(_READ % f"Host: {host}\r\n".encode()).status == 200
    assert digits.ask(b"GET /v2/health/live HTTP/1.0\r\n\r\n").status == 200


def test_trailers_are_no_headers(start: Any, site_of: Any) -> None:
    key = "a-key-of-enough-length"
    running = start(site_of(), keys=Keys([key]))
    body, length = binary()
    right = f"Authorization: Bearer {key}\r\n"
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"
    chunks = b"\r\n%x\r\n%s\r\n0\r\n" % (len(body), body)

    def ask(headers: str, trailers: str) -> Any:
        raw = head + headers.encode() + chunks + trailers.encode() + b"\r\n"
        return running.ask(raw, admin=False)

    assert ask(right + length, "").status == 200
    # What stands behind the body says nothing of it.
    assert ask(length, right).status == 401
    assert ask(right, length).status == 400
    trailers = "Content-Encoding: gzip\r\nInference-Header-Content-Length: 1\r\nHost: x\r\n"
    trailers += "Connection: close\r\nAccept-Encoding: gzip\r\nX-Request-Id: trailing\r\n"
    answer = ask(right + length, f"{trailers}Authorization: Bearer wrong\r\n")
    assert answer.status == 200
    assert answer.headers["x-request-id"] != "trailing"
    refused = ask(right + length, "X: " + "x" * 70_000 + "\r\n")
    assert refused.status == 431


def test_headers_of_a_body_that_are_given_twice(digits: Any) -> None:
    body, length = binary()
    assert digits.infer(body, length * 2).status == 400
    double = "Content-Encoding: gzip\r\nContent-Encoding: identity\r\n"
    assert digits.infer(body, length + double).status == 415


@pytest.mark.parametrize("chunked", [False, True])
def test_the_body_of_a_request_that_asks_for_an_upgrade_is_its_own(
    digits: Any, chunked: bool
) -> None:
    body = json.dumps(one(data=[1, 2, 3, 4])).encode()
    head = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\n"
    head += b"Upgrade: h2c\r\nX-Request-Id: mine\r\n"
    if chunked:
        raw = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    else:
        raw = head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    for cut in (0, len(head), len(raw) - 30):
        with closing(digits.wire()) as wire:
            wire.send(raw[:cut])
            wire.send(raw[cut:] + raw)
            for _ in range(2):
                answer = wire.read()
                assert (answer.status, answer.headers["x-request-id"]) == (200, "mine")
