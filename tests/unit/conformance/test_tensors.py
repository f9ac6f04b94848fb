"""Tensor data in both forms, there and back, and what is wrong with a server's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inferway.conformance import tensors
from inferway.conformance.client import ViolationError
from inferway.protocol import DTYPES, Tensor


@pytest.mark.parametrize("datatype", DTYPES)
def test_there_and_back(datatype: str) -> None:
    tensor = Tensor("t", datatype, (-1, 3))
    array = tensors.draw(np.random.default_rng(1), datatype, (2, 3))
    assert array.dtype == tensor.dtype
    assert len(set(array.ravel().tolist())) > 1
    for nested in (False, True):
        listed = tensors.to_json(array, nested=nested)
        assert len(listed) == (2 if nested else 6)
        assert tensors.alike(tensors.from_json(tensor, (2, 3), listed), array)
    assert tensors.alike(tensors.from_raw(tensor, (2, 3), tensors.to_raw(array)), array)


def test_raw_bytes_are_little_endian_and_texts_have_their_length() -> None:
    assert tensors.to_raw(np.array([258], ">u2")) == b"\x02\x01"
    texts = np.array([b"", b"ab"], np.object_)
    assert tensors.to_raw(texts) == b"\0\0\0\0\x02\0\0\0ab"


@pytest.mark.parametrize(
    ("datatype", "data", "part"),
    [
        ("FP32", [1.0], "has 1 elements"),
        ("FP32", None, "no list of data"),
        ("FP32", [1.0, "2"], "has the element '2'"),
        ("FP32", [1.0, True], "has the element True"),
        ("INT8", [1, 1.5], "has the element 1.5"),
        ("INT8", [1, 300], "out of the range"),
        ("BOOL", [True, 1], "has the element 1"),
        ("BYTES", ["a", None], "has the element None"),
    ],
)
def test_wrong_json_is_named(datatype: str, data: Any, part: str) -> None:
    with pytest.raises(ViolationError, match=part):
        tensors.from_json(Tensor("t", datatype, (-1,)), (2,), data)


@pytest.mark.parametrize(
    ("datatype", "raw", "part"),
    [
        ("FP32", b"\0" * 7, "has 7 bytes"),
        ("BYTES", b"\x01\0\0\0a", "ends in its element 1"),
        ("BYTES", b"\x01\0\0\0a\0\0\0\0b", "1 bytes after its last"),
        ("BYTES", b"\xff\0\0\0a", "ends in its element 0"),
    ],
)
def test_wrong_bytes_are_named(datatype: str, raw: bytes, part: str) -> None:
    with pytest.raises(ViolationError, match=part):
        tensors.from_raw(Tensor("t", datatype, (-1,)), (2,), raw)


def test_alike_is_up_to_rounding() -> None:
    one = np.array([1.0, np.nan], np.float32)
    assert tensors.alike(one, one + np.float32(1e-6))
    assert not tensors.alike(one, one + np.float32(0.1))
    assert not tensors.alike(one, one.reshape(1, 2))
    assert tensors.alike(tensors.from_json(Tensor("t", "FP32", (-1,)), (2,), [1, None]), one)
