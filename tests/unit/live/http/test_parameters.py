"""Parameters of a request that mean nothing here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferway.live.http.inference import read
from inferway.protocol import RefusalError

TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
STRANGE = {"triton_one": 1, "another_two": "2"}


def of(**parts: Any) -> bytes:
    return json.dumps({"inputs": [TENSOR]} | parts).encode()


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        (of(), 0),
        (of(parameters=STRANGE), 2),
        (of(inputs=[TENSOR | {"parameters": STRANGE}]), 2),
        (of(inputs=[TENSOR, TENSOR | {"parameters": {"another_two": 2}}]), 1),
        (of(outputs=[{"name": "y", "parameters": STRANGE}]), 2),
        (
            of(
                inputs=[TENSOR | {"parameters": STRANGE}],
                outputs=[{"name": "y", "parameters": STRANGE}],
                parameters=STRANGE,
            ),
            6,
        ),
        (of(outputs=None, parameters=STRANGE), 2),
    ],
    ids=["none", "request", "input", "second input", "output", "everywhere", "no outputs"],
)
def test_they_are_left_out_and_counted_wherever_they_stand(text: bytes, ignored: int) -> None:
    message, left_out = read(text)
    assert left_out == ignored
    assert [one.name for one in message.inputs] == ["x"] * len(json.loads(text)["inputs"])
    assert [one.name for one in message.outputs or ()] == [
        one["name"] for one in json.loads(text).get("outputs") or ()
    ]


def test_beside_them_those_that_are_known_count() -> None:
    raw = {"name": "x", "datatype": "FP32", "shape": [1, 2]}
    known = {"binary_data_size": 8}
    message, ignored = read(of(inputs=[raw | {"parameters": STRANGE | known}]))
    assert ignored == 2
    parameters = message.inputs[0].parameters
    assert parameters is not None
    assert parameters.binary_data_size == 8


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_one_that_was_meant_to_be_another_is_refused_in_a_tensor_too(side: str) -> None:
    tensor = TENSOR | {"parameters": {"binary_dat": True}}
    with pytest.raises(RefusalError, match="did you mean"):
        read(of(**{side: [tensor]}))
