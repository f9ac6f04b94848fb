"""Inputs as a command line names them, and rows that are made up of them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from inferway.exporting import rows, tensor
from inferway.protocol import Tensor


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("x=FP32[64]", (-1, 64)),
        ("x=FP32[-1, 64]", (-1, 64)),
        ("x=FP32[1,28,28]", (-1, 1, 28, 28)),
        ("x=FP32[-1,-1]", (-1, -1)),
        ("x=FP32", (-1,)),
        ("x=FP32[]", (-1,)),
    ],
)
def test_an_input_is_read(text: str, shape: tuple[int, ...]) -> None:
    assert tensor(text) == Tensor("x", "FP32", shape)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x", "'x' is not an input such as x=FP32[64]"),
        ("=FP32[4]", "is not an input such as"),
        ("x=float[4]", "'float' is no datatype; there is BOOL, UINT8"),
        ("x=FP32[4-5]", "has a shape that is no list of whole numbers"),
        ("x=FP32[0]", "has an axis that is neither 1 or more nor -1"),
        ("x=FP32[3,-2]", "has an axis that is neither 1 or more nor -1"),
    ],
)
def test_what_is_no_input_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        tensor(text)


def test_rows_are_of_their_type_and_of_known_values() -> None:
    inputs = [tensor(f"{name}={name}[3]") for name in ("FP32", "FP64", "INT64", "UINT8", "BOOL")]
    inputs.append(Tensor("city", "BYTES", (-1, 1)))
    made = rows.made_up(inputs, 50, np.random.default_rng(1), {"city": ["Lima", "Osaka"]})
    again = rows.made_up(inputs, 50, np.random.default_rng(1), {"city": ["Lima", "Osaka"]})
    for one in inputs:
        assert made[one.name].dtype == one.dtype
        assert made[one.name].shape == (50, *one.shape[1:])
        np.testing.assert_array_equal(made[one.name], again[one.name])
    assert set(made["city"].ravel()) == {b"Lima", b"Osaka"}
    assert made["INT64"].min() >= 0
    assert made["INT64"].max() < 10


def test_fewer_rows_of_what_is_large() -> None:
    assert rows.count([tensor("x=FP32[64]")]) == 256
    assert rows.count([tensor("x=FP32[3,224,224]")]) == 8


def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path) -> None:
    data = tmp_path / "t.csv"
    data.write_text("b,a,label\n1,2,0\n3,4,1\n")
    inputs = (tensor("input=FP32[2]"),)
    read = rows.from_file(data, inputs, ["b", "a"])
    assert read["input"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(ValueError, match="'b' stands where 'a' is expected"):
        rows.from_file(data, inputs, ["a", "b"])
    with pytest.raises(ValueError, match="'b' stands where 'b2' is expected"):
        rows.from_file(data, inputs, ["b2", "a"])
