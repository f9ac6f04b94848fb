from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.grpc.service_pb2 import InferTensorContents

from inferway.live.grpc.inference import FIELDS, from_contents, to_contents
from inferway.protocol import DTYPES, RefusalError

NUMERIC = sorted(set(FIELDS) - {"BYTES"})
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray]:
    datatype = draw(st.sampled_from(NUMERIC))
    return datatype, draw(hnp.arrays(DTYPES[datatype], draw(SHAPES)))


@given(tensor=tensors())
def test_round_trip(tensor: tuple[str, np.ndarray]) -> None:
    datatype, array = tensor
    contents = InferTensorContents()
    to_contents(datatype, array, contents)
    assert [field.name for field, _ in contents.ListFields()] == [FIELDS[datatype]]
    found = from_contents("x", datatype, array.shape, contents)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@given(elements=st.lists(st.binary(max_size=6), min_size=6, max_size=6))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    contents = InferTensorContents(bytes_contents=elements)
    found = from_contents("x", "BYTES", (2, 3), contents)
    assert found.ravel().tolist() == elements
    back = InferTensorContents()
    to_contents("BYTES", found, back)
    assert back == contents


def test_strings_travel_as_utf_8() -> None:
    contents = InferTensorContents()
    to_contents("BYTES", np.array([["é", b"\xff"]], np.object_), contents)
    assert list(contents.bytes_contents) == ["é".encode(), b"\xff"]


def test_every_datatype_but_fp16_has_a_field() -> None:
    assert set(DTYPES) - set(FIELDS) == {"FP16"}
    assert set(FIELDS.values()) == set(InferTensorContents.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize(
    ("datatype", "contents", "reason"),
    [
        ("FP16", {"fp32_contents": [1, 2]}, "FP16, which only raw_input_contents can hold"),
        ("FP32", {"fp64_contents": [1, 2]}, "has fp64_contents, expected fp32_contents"),
        ("FP32", {}, "has no contents, expected fp32_contents"),
        (
            "INT64",
            {"int64_contents": [1, 2], "uint_contents": [1]},
            "has int64_contents and uint_contents, expected int64_contents",
        ),
        ("FP32", {"fp32_contents": [1]}, r"1 elements, its shape \[2, 1\] says 2"),
        ("BYTES", {"bytes_contents": [b"a"] * 3}, r"3 elements, its shape \[2, 1\] says 2"),
        ("INT8", {"int_contents": [127, 128]}, "out of the range of INT8"),
        ("INT16", {"int_contents": [-32768, -32769]}, "out of the range of INT16"),
        ("UINT8", {"uint_contents": [255, 256]}, "out of the range of UINT8"),
        ("UINT16", {"uint_contents": [65535, 65536]}, "out of the range of UINT16"),
    ],
)
def test_contents_that_do_not_fit(datatype: str, contents: dict[str, Any], reason: str) -> None:
    with pytest.raises(RefusalError, match=reason) as caught:
        from_contents("x", datatype, (2, 1), InferTensorContents(**contents))
    assert caught.value.status == 400
