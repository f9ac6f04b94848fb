from __future__ import annotations

import json
import math

import numpy as np
import pytest

from inferway.loadgen.message import decode


def _body(data: object = None, **output: object) -> bytes:
    described = {"name": "y", "datatype": "FP32", "shape": [1, 3], "data": data} | output
    return json.dumps({"model_version": "big", "outputs": [described]}).encode()


@pytest.mark.parametrize(
    ("data", "shape", "expected"),
    [
        ([0.1, 0.7, 0.2], [1, 3], 1),
        ([[0.1, 0.2, 0.7]], [1, 3], 2),
        ([0.9, 0.1, 0.0, 0.0, 0.0, 1.0], [2, 3], 0),
        ([7], [1], 7),
        ([7], [1, 1], 7),
        ([], [0, 3], -1),
    ],
)
def test_class_from_json(data, shape, expected):
    answer = decode(_body(data, shape=shape), -1)
    assert answer is not None
    assert answer.variant == "big"
    assert answer.predicted_class == expected
    assert math.isnan(answer.predicted_s)


def test_class_from_binary():
    raw = np.array([[0.0, 1.0, 2.0], [9.0, 0.0, 0.0]], np.float32).tobytes()
    head = _body(shape=[2, 3], parameters={"binary_data_size": 24})
    answer = decode(head + raw, len(head))
    assert answer is not None
    assert answer.predicted_class == 2


def test_predicted_latency_comes_in_milliseconds():
    body = json.dumps({"parameters": {"predicted_latency_ms": 500, "accuracy_balance": 1.0}})
    answer = decode(body.encode(), -1)
    assert answer is not None
    assert answer.predicted_s == 0.5
    assert math.isnan(answer.served_s)


def test_time_in_the_server_comes_in_milliseconds():
    answer = decode(json.dumps({"parameters": {"latency_ms": 2.5}}).encode(), -1)
    assert answer is not None
    assert answer.served_s == 0.0025


@pytest.mark.parametrize("said", [None, "2.5", True, [2.5], {}])
def test_another_servers_word_for_that_time_costs_no_answer(said):
    """The name is not of the protocol, and another server may mean something else by it."""
    answer = decode(json.dumps({"parameters": {"latency_ms": said}}).encode(), -1)
    assert answer is not None
    assert math.isnan(answer.served_s)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", _body(shape=[1, 3], datatype="FP1", data=None)])
def test_what_is_no_answer(body):
    head = _body(parameters={"binary_data_size": 12})
    assert decode(head + b"short", len(head)) is None
    assert decode(body, -1) is None or decode(body, -1).predicted_class == -1
