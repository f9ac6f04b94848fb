from __future__ import annotations

import json

import httptools
import numpy as np
import pytest

from inferway.catalog import zoo
from inferway.deployment import Model, Task, Variant
from inferway.loadgen.access import DriveError, server_at
from inferway.loadgen.message import body, encode, head, inputs_of, random_images
from inferway.profiling.data import halves
from inferway.profiling.testset import labeled_testset
from inferway.protocol import Signature, Tensor
from inferway.protocol.address import ServerAddress

_X = Tensor("x", "FP32", (-1, 2, -1))
_SIGNATURE = Signature((_X,), (Tensor("y", "FP32", (-1, 3)), Tensor("z", "FP32", (-1,))))


class _Parsed:
    def __init__(self, message: bytes) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.complete = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(message)

    def on_url(self, url: bytes) -> None:
        self.url = url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name] = value

    def on_body(self, content: bytes) -> None:
        self.body += content

    def on_message_complete(self) -> None:
        self.complete = True


@pytest.mark.parametrize(
    ("url", "authority", "tls", "prefix"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", False, ""),
        ("localhost:8000", "localhost:8000", False, ""),
        ("https://far.example/ml/", "far.example:443", True, "/ml"),
        ("http://[::1]:80", "[::1]:80", False, ""),
    ],
)
def test_addresses(url, authority, tls, prefix):
    address = server_at(url)
    assert (address.authority, address.tls, address.prefix) == (authority, tls, prefix)


def test_binary_request():
    images = np.arange(12, dtype=np.float64).reshape(2, 2, 3)
    address = ServerAddress("here", 80, False, "/p")
    second = encode("a b", _SIGNATURE, images, parameters={"deadline_ms": 5})[1]
    parsed = _Parsed(head(address, "a b", "v/1") + second)
    assert parsed.complete
    assert parsed.url == b"/p/v2/models/a%20b/versions/v%2F1/infer"
    assert parsed.headers[b"Host"] == b"here:80"
    length = int(parsed.headers[b"Inference-Header-Content-Length"])
    header = json.loads(parsed.body[:length])
    assert header == {
        "inputs": [
            {
                "name": "x",
                "shape": [1, 2, 3],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 24},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {"deadline_ms": 5},
    }
    np.testing.assert_array_equal(np.frombuffer(parsed.body[length:], np.float32), np.arange(6, 12))


def test_json_numbers_are_the_shortest_that_read_back_equal():
    image = np.array([[0.1], [1 / 3]], np.float32)
    encoded = body(_SIGNATURE, image)
    assert b"[0.1," in encoded
    data = json.loads(encoded)["inputs"][0]["data"]
    np.testing.assert_array_equal(np.array(data, np.float32), image.ravel())


def test_further_inputs_get_zeros():
    signature = Signature((_X, Tensor("mask", "BOOL", (-1, 2))), _SIGNATURE.outputs)
    (rest,) = encode("t", signature, np.ones((1, 2, 1)), binary=False)
    inputs = json.loads(_Parsed(head(ServerAddress("h", 1, False, ""), "t") + rest).body)["inputs"]
    assert [i["data"] for i in inputs] == [[1.0, 1.0], [False, False]]


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_what_json_has_not_is_sent_as_raw_bytes_or_refused(value):
    images = np.full((1, 2, 1), value, np.float32)
    with pytest.raises(DriveError, match=r"'x' holds NaN or an infinity, .* \(--binary\)"):
        encode("t", _SIGNATURE, images, binary=False)
    (rest,) = encode("t", _SIGNATURE, images)
    assert rest.endswith(images.tobytes())


def test_random_inputs_fit_and_are_seeded():
    one, same, other = (random_images(_X, 5, seed) for seed in (1, 1, 2))
    assert one.shape == (5, 2, 1)
    assert one.dtype == np.float32
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert set(random_images(Tensor("i", "INT64", (-1, 50)), 2, 0).ravel()) == {0, 1}
    with pytest.raises(DriveError, match="BYTES"):
        random_images(Tensor("s", "BYTES", (-1,)), 1, 0)


def test_tasks_of_a_zoo_get_images_that_no_bins_were_fitted_on():
    variants = {
        name: Variant(name, model=Model(None, f"zoo://digits/{name}")) for name in ("tiny", "huge")
    }
    found, tests = inputs_of(Task("t", variants), _SIGNATURE, 1), zoo.testset()
    seen = halves(labeled_testset(), zoo.load().data.seed).bins
    assert len(set(found.groups)) == 300
    assert not set(found.groups) & set(tests.source[seen])
    rows = np.flatnonzero(np.isin(tests.source, found.groups))
    np.testing.assert_array_equal(found.images, tests.images[rows])
    np.testing.assert_array_equal(found.labels, tests.labels[rows])
    mixed = {**variants, "own": Variant("own", model=Model(None, "own.onnx"))}
    assert inputs_of(Task("t", mixed), _SIGNATURE, 1).labels is None
