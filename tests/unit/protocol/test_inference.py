from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inferway.protocol import DTYPES, Signature, Tensor, inference
from inferway.protocol.inference import AnswerError, UnwritableError, decode


def one(datatype: str, columns: int = 3) -> Signature:
    shape = (-1, columns)
    return Signature((Tensor("x", datatype, shape),), (Tensor("x", datatype, shape),))


def encode(
    signature: Signature, arrays: dict[str, Any], *, binary: bool
) -> tuple[list[bytes], int | None]:
    asked = [(tensor, arrays[tensor.name]) for tensor in signature.inputs]
    return inference.encode(asked, signature.outputs, binary=binary)


def values(datatype: str) -> Any:
    if datatype == "BYTES":
        texts = np.empty((2, 3), np.object_)
        texts[:] = [[b"", b"a", "ü".encode()], [b"b" * 300, b"1", b"\n"]]
        return texts
    dtype = DTYPES[datatype]
    if dtype.kind == "f":
        return np.array([[0.1, -2.5, 1e-3], [0.0, 3.0, 6e4]], dtype)
    if dtype.kind == "b":
        return np.array([[True, False, True], [False, False, True]])
    ends = np.iinfo(dtype)
    return np.array([[ends.min, ends.max, 0], [1, 2, 3]], dtype)


def echoed(parts: list[bytes], json_length: int | None) -> bytes:
    """The answer of a model that gives back what it is given."""
    given = json.loads(parts[0])
    return json.dumps({"outputs": given["inputs"]}).encode() + b"".join(parts[1:])


def length_of(body: bytes, parts: list[bytes]) -> int:
    return len(body) - sum(map(len, parts[1:]))


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("datatype", DTYPES)
def test_what_goes_out_comes_back(datatype: str, binary: bool) -> None:
    signature, array = one(datatype), values(datatype)
    parts, json_length = encode(signature, {"x": array}, binary=binary)
    assert (json_length is not None) == binary == (len(parts) == 2)
    asked = json.loads(parts[0])
    wanted = {"name": "x"} | ({"parameters": {"binary_data": True}} if binary else {})
    assert asked["outputs"] == [wanted]
    body = echoed(parts, json_length)
    found = decode(signature, 2, body, length_of(body, parts) if binary else None)["x"]
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()


def test_an_array_that_lies_otherwise_in_memory_goes_out_row_by_row() -> None:
    array = np.asfortranarray(values("FP32"))
    for binary in (False, True):
        parts, _ = encode(one("FP32"), {"x": array[:, ::-1]}, binary=binary)
        body = echoed(parts, None)
        length = length_of(body, parts) if binary else None
        assert decode(one("FP32"), 2, body, length)["x"].tolist() == array[:, ::-1].tolist()


def test_json_may_be_nested_and_null_is_no_number() -> None:
    output = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [[1, None, 3], [4, 5, 6.5]]}
    found = decode(one("FP32"), 2, json.dumps({"outputs": [output]}).encode(), None)["x"]
    np.testing.assert_array_equal(found, np.float32([[1, np.nan, 3], [4, 5, 6.5]]))


def test_outputs_go_by_name_and_more_than_asked_for_does_no_harm() -> None:
    tensors = tuple(Tensor(name, "INT8", (-1, 1)) for name in "abc")
    signature = Signature(tensors, (tensors[0], tensors[2]))
    described = [
        {"name": name, "datatype": "INT8", "shape": [2, 1], "parameters": {"binary_data_size": 2}}
        for name in "cba"
    ]
    text = json.dumps({"outputs": described}).encode()
    found = decode(signature, 2, text + bytes([5, 6, 3, 4, 1, 2]), len(text))
    assert list(found) == ["a", "c"]
    assert [array.ravel().tolist() for array in found.values()] == [[1, 2], [5, 6]]


def test_what_json_cannot_carry_is_the_clients_mistake() -> None:
    for bad, said in ((np.nan, "holds NaN or infinity"), (np.inf, "holds NaN or infinity")):
        with pytest.raises(UnwritableError, match=said):
            encode(one("FP64"), {"x": np.full((1, 3), bad)}, binary=False)
        encode(one("FP64"), {"x": np.full((1, 3), bad)}, binary=True)
    texts = np.full((1, 3), b"\xff", np.object_)
    with pytest.raises(UnwritableError, match="not UTF-8"):
        encode(one("BYTES"), {"x": texts}, binary=False)


GOOD = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "is not one of the Open Inference Protocol"),
        (b"<html>", "is not one of the Open Inference Protocol"),
        (b"{}", "is not one of the Open Inference Protocol"),
        (b"\xff\xff", "is not one of the Open Inference Protocol"),
        (b'{"outputs":' + b"[" * 5000, "is not one of the Open Inference Protocol"),
        ({"outputs": []}, "lacks the output 'x'"),
        ({"outputs": [GOOD | {"datatype": "FP64"}]}, "as FP64"),
        ({"outputs": [GOOD | {"shape": [3, 3]}]}, r"expected FP32\[2, 3\]"),
        ({"outputs": [GOOD | {"shape": [-2, -3]}]}, r"expected FP32\[2, 3\]"),
        ({"outputs": [GOOD | {"shape": [6]}]}, r"expected FP32\[2, 3\]"),
        ({"outputs": [GOOD | {"data": [1, 2]}]}, "has 2 elements"),
        ({"outputs": [GOOD | {"data": ["1"] * 6}]}, "has no list of FP32"),
        ({"outputs": [GOOD | {"data": {}}]}, "has no list of FP32"),
        ({"outputs": [{k: v for k, v in GOOD.items() if k != "data"}]}, "has no list of FP32"),
        ({"outputs": [GOOD | {"parameters": {"binary_data_size": 24}}]}, "has fewer bytes"),
        ({"outputs": [GOOD | {"parameters": {"binary_data_size": -1}}]}, "has fewer bytes"),
    ],
)
def test_garbage_is_told_apart(body: Any, said: str) -> None:
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(AnswerError, match=said):
        decode(one("FP32"), 2, body, None)


def test_no_axis_is_negative() -> None:
    output = GOOD | {"shape": [2, -3]}
    with pytest.raises(AnswerError, match=r"expected FP32\[2, -1\]"):
        decode(one("FP32", -1), 2, json.dumps({"outputs": [output]}).encode(), None)


@pytest.mark.parametrize(
    ("datatype", "data"), [("INT8", [1, 2, 300]), ("UINT8", [1, 2, -1]), ("INT8", [1, 2, 0.5])]
)
def test_integers_out_of_range_are_no_answer(datatype: str, data: list[Any]) -> None:
    output = {"name": "x", "datatype": datatype, "shape": [1, 3], "data": data}
    with pytest.raises(AnswerError):
        decode(one(datatype), 1, json.dumps({"outputs": [output]}).encode(), None)


@pytest.mark.parametrize("cut", [1, 3, 5, 12])
def test_raw_bytes_that_end_too_early_or_late_are_no_answer(cut: int) -> None:
    raw = b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bb"
    for data in (raw[:cut], raw + b"\0" * cut):
        described = {"name": "x", "datatype": "BYTES", "shape": [1, 3]}
        described["parameters"] = {"binary_data_size": len(data)}
        text = json.dumps({"outputs": [described]}).encode()
        with pytest.raises(AnswerError, match=r"ends in element|goes on after"):
            decode(one("BYTES"), 1, text + data, len(text))
