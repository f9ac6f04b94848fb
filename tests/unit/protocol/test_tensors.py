from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from inferway.protocol import DTYPES, RefusalError
from inferway.protocol import tensors as codec
from inferway.protocol.tensors import from_bytes, from_json, to_bytes, to_json

NUMERIC = sorted(set(DTYPES) - {"BYTES"})
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, np.ndarray]:
    datatype = draw(st.sampled_from(NUMERIC))
    elements = None
    if datatype.startswith("FP"):
        width = 8 * DTYPES[datatype].itemsize
        elements = st.floats(allow_nan=False, allow_infinity=False, width=width)  # type: ignore[arg-type]
    return datatype, draw(hnp.arrays(DTYPES[datatype], draw(SHAPES), elements=elements))


@st.composite
def texts(draw: st.DrawFn, element: st.SearchStrategy[bytes]) -> np.ndarray:
    shape = draw(SHAPES)
    array = np.empty(int(np.prod(shape)), np.object_)
    array[:] = draw(st.lists(element, min_size=array.size, max_size=array.size))
    return array.reshape(shape)


UTF8 = st.text(max_size=6).map(lambda text: text.encode("utf-8", "ignore"))


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@given(tensor=tensors(), nested=st.booleans())
def test_json_round_trip(tensor: tuple[str, np.ndarray], nested: bool) -> None:
    datatype, array = tensor
    data = array.tolist() if nested else to_json("x", datatype, array)
    found = from_json("x", datatype, array.shape, raw(data))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@given(tensor=tensors(), before=st.integers(0, 9), after=st.integers(0, 9))
def test_binary_round_trip(tensor: tuple[str, np.ndarray], before: int, after: int) -> None:
    datatype, array = tensor
    packed = to_bytes(datatype, array)
    data = b"x" * before + packed + b"x" * after
    found = from_bytes("x", datatype, array.shape, data, before, len(packed))
    assert found.dtype == array.dtype
    assert found.flags.aligned
    np.testing.assert_array_equal(found, array)
    for size in (len(packed) - 1, len(packed) + 1):
        with pytest.raises(RefusalError, match="bytes of binary data"):
            from_bytes("x", datatype, array.shape, data + b"x", before, size)


@given(array=texts(UTF8), nested=st.booleans())
def test_strings_round_trip_in_json(array: np.ndarray, nested: bool) -> None:
    flat = to_json("x", "BYTES", array)
    data = np.array(flat, np.object_).reshape(array.shape).tolist() if nested else flat
    found = from_json("x", "BYTES", array.shape, raw(data))
    np.testing.assert_array_equal(found, array)


@given(array=texts(st.binary(max_size=6)), before=st.integers(0, 9))
def test_bytes_round_trip_in_binary(array: np.ndarray, before: int) -> None:
    packed = to_bytes("BYTES", array)
    found = from_bytes("x", "BYTES", array.shape, b"y" * before + packed, before, len(packed))
    np.testing.assert_array_equal(found, array)
    with pytest.raises(RefusalError):
        from_bytes("x", "BYTES", array.shape, packed, 0, len(packed) - 1)
    with pytest.raises(RefusalError, match="goes on after"):
        from_bytes("x", "BYTES", array.shape, packed + b"z", 0, len(packed) + 1)


def test_binary_is_little_endian_with_length_prefixes() -> None:
    assert to_bytes("INT16", np.array([1, -2], ">i2")) == b"\x01\x00\xfe\xff"
    assert to_bytes("BOOL", np.array([True, False])) == b"\x01\x00"
    assert to_bytes("BYTES", np.array(["é", b"ab"], np.object_)) == (
        struct.pack("<I", 2) + "é".encode() + struct.pack("<I", 2) + b"ab"
    )


@pytest.mark.parametrize(
    ("datatype", "value"),
    [
        ("UINT8", 256),
        ("UINT8", -1),
        ("INT8", 128),
        ("INT64", 2**63),
        ("UINT64", 2**64),
        ("FP16", 70000.0),
        ("FP32", 1e39),
    ],
)
def test_values_out_of_range(datatype: str, value: float) -> None:
    with pytest.raises(RefusalError, match=f"out of the range of {datatype}"):
        from_json("x", datatype, (1,), raw([value]))


def test_an_integer_of_any_length_is_a_number() -> None:
    assert from_json("x", "FP32", (2,), raw([0.5, 10**30])).tolist() == [0.5, np.float32(1e30)]
    with pytest.raises(RefusalError, match="out of the range of INT64"):
        from_json("x", "INT64", (1,), raw([10**30]))


@pytest.mark.parametrize(
    ("datatype", "value"),
    [("INT32", 1.5), ("INT32", True), ("INT32", "1"), ("BOOL", 1), ("BYTES", 1), ("FP64", "1")],
)
def test_values_of_another_type(datatype: str, value: Any) -> None:
    with pytest.raises(RefusalError, match=f"is not {datatype}"):
        from_json("x", datatype, (1,), raw([value]))


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize(
    "data", [[[1], [2, 3]], [[1, 2], []], [[1, 2]], [[1], [2], [3], [4]], [[]]]
)
def test_ragged_and_misshapen_data(datatype: str, data: list[list[Any]]) -> None:
    if datatype == "BYTES":
        data = [[str(value) for value in row] for row in data]
    with pytest.raises(RefusalError):
        from_json("x", datatype, (2, 2), raw(data))


def test_flags_are_zero_or_one() -> None:
    with pytest.raises(RefusalError, match="not 0 or 1"):
        from_bytes("x", "BOOL", (2,), b"\x01\x02", 0, 2)


def test_what_is_not_text_needs_binary() -> None:
    with pytest.raises(RefusalError, match="request it as binary"):
        to_json("x", "BYTES", np.array([b"\xff"], np.object_))


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "INT8", "UINT16", "INT64", "UINT64"])
@given(given=st.data())
def test_flat_data_are_what_nested_data_are(datatype: str, given: st.DataObject) -> None:
    # The two are read by different parsers.
    if datatype.startswith("FP"):
        number = st.floats(-65504, 65504) | st.integers(-65504, 65504)
    else:
        bounds = np.iinfo(DTYPES[datatype])
        number = st.integers(int(bounds.min), int(bounds.max))
    data = given.draw(st.lists(number, min_size=1, max_size=8))
    shape = (1, len(data))
    flat = from_json("x", datatype, shape, raw(data))
    nested = from_json("x", datatype, shape, raw([data]))
    assert flat.dtype == nested.dtype
    assert flat.tobytes() == nested.tobytes()


def test_a_text_that_is_longer_than_the_quick_parser_takes() -> None:
    data = [0.125] * 400_000
    assert from_json("x", "FP32", (1, len(data)), raw(data)).sum() == 50_000.0
    # And the next one is read as before.
    assert from_json("x", "FP32", (1, 1), raw([0.5])).tolist() == [[0.5]]


def by_steps(work: Any) -> Any:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def outcome(work: Callable[[], np.ndarray]) -> np.ndarray | int:
    """What comes of it: an array, or the status of a refusal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_PIECE", 4)
        try:
            return work()
        except RefusalError as refusal:
            return refusal.status


@given(
    tensor=tensors(),
    nested=st.booleans(),
    place=st.integers(0, 60),
    cut=st.integers(0, 3),
    put=st.sampled_from(["", " ", "1", ",", "[", "]", "[1]", "null", "1e999", '"4"', "],["]),
)
def test_long_lists_are_read_as_short_ones_are(
    tensor: tuple[str, np.ndarray], nested: bool, place: int, cut: int, put: str
) -> None:
    datatype, array = tensor
    text = json.dumps((array if nested else array.ravel()).tolist())
    text = text[:place] + put + text[place + cut :]
    try:
        json.loads(text)
        data = msgspec.json.decode(text, type=msgspec.Raw)
    except (ValueError, msgspec.DecodeError):
        return  # refused before
    read = partial(from_json, "x", datatype, array.shape, data)
    expected, found = (
        outcome(work)
        for work in (
            read,
            lambda: by_steps(codec.long_from_json("x", datatype, array.shape, bytes(data))),
        )
    )
    if isinstance(expected, int):
        assert found == expected
        return
    assert not isinstance(found, int)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


@given(tensor=tensors())
def test_long_outputs_are_written_as_short_ones_are(tensor: tuple[str, np.ndarray]) -> None:
    datatype, array = tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_PART", 3)
        written = by_steps(codec.long_to_json(array))
    assert bytes(written) == msgspec.json.encode(to_json("y", datatype, array))
