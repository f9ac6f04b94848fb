"""Labeled data are read as the model wants them, or refused with one sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from inferway.profiling import DataError, read
from inferway.protocol import Signature, Tensor

CLASSES = (Tensor("scores", "FP32", (-1, 3)),)
FLAT = Signature((Tensor("x", "FP32", (-1, 2)),), CLASSES)
IMAGE = Signature((Tensor("x", "FP32", (-1, 1, 2, 2)),), CLASSES)
MIXED = Signature((Tensor("age", "INT64", (-1, 1)), Tensor("city", "BYTES", (-1,))), CLASSES)
TEXT = Signature((Tensor("text", "BYTES", (-1, 1)),), CLASSES)


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "test.npz"
    np.savez(path, **arrays)
    return path


def written(folder: Path, text: str | bytes, name: str = "test.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(folder: Path, columns: dict[str, Any]) -> Path:
    path = folder / "test.parquet"
    pd.DataFrame(columns).to_parquet(path, index=False)
    return path


def test_an_npz_gives_inputs_labels_groups_and_the_files_hash(tmp_path: Path) -> None:
    x = np.arange(8.0).reshape(4, 2)
    path = saved(tmp_path, x=x, labels=[0, 1, 2, 0], groups=["b", "a", "b", "c"])
    data = read(path, FLAT)
    assert data.rows == 4
    assert data.inputs["x"].dtype == np.float32
    assert data.inputs["x"].tolist() == x.tolist()
    assert data.labels.tolist() == [0, 1, 2, 0]
    assert data.groups is not None
    assert data.groups.tolist() == [1, 0, 1, 2]
    assert data.digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_another_array_may_group(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((2, 2)), labels=[0, 1], person=[7, 7])
    data = read(path, FLAT, group="person")
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0]
    with pytest.raises(DataError, match="'person' is no input"):
        read(path, FLAT)


def test_without_groups_each_row_stands_alone(tmp_path: Path) -> None:
    assert read(saved(tmp_path, x=np.zeros((2, 2)), labels=[0, 1]), FLAT).groups is None


def test_a_part_holds_its_rows_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.arange(8).reshape(4, 2), labels=list("abcd"), groups=[1, 1, 2, 2])
    part = read(path, FLAT).part(np.array([3, 0]))
    assert part.rows == 2
    assert part.labels.tolist() == ["d", "a"]
    assert part.inputs["x"].tolist() == [[6, 7], [0, 1]]
    assert part.groups is not None
    assert part.groups.tolist() == [1, 0]


def test_columns_of_a_table_are_one_row_in_order(tmp_path: Path) -> None:
    path = written(tmp_path, "a,label,b\n1,cat,2\n3,dog,4.5\n")
    data = read(path, FLAT)
    assert data.inputs["x"].tolist() == [[1, 2], [3, 4.5]]
    assert data.inputs["x"].dtype == np.float32
    assert data.labels.tolist() == ["cat", "dog"]


def test_columns_fill_an_input_of_fixed_axes(tmp_path: Path) -> None:
    data = read(written(tmp_path, "label,a,b,c,d\n1,1,2,3,4\n"), IMAGE)
    assert data.inputs["x"].tolist() == [[[[1, 2], [3, 4]]]]


def test_a_column_of_a_table_may_group(tmp_path: Path) -> None:
    path = written(tmp_path, "a,who,b,label\n1,ann,2,0\n3,bob,4,1\n5,ann,6,1\n")
    data = read(path, FLAT, group="who")
    assert data.inputs["x"].shape == (3, 2)
    assert data.groups is not None
    assert data.groups.tolist() == [0, 1, 0]


def test_several_inputs_are_columns_by_name(tmp_path: Path) -> None:
    for path in (
        written(tmp_path, "city,label,age\nRome,1,33\nOslo,0,44\n"),
        parquet(tmp_path, {"label": [1, 0], "age": [33, 44], "city": ["Rome", "Oslo"]}),
    ):
        data = read(path, MIXED)
        assert data.inputs["age"].tolist() == [[33], [44]]
        assert data.inputs["age"].dtype == np.int64
        assert data.inputs["city"].tolist() == [b"Rome", b"Oslo"]
        assert data.labels.tolist() == [1, 0]


def test_a_column_of_texts_is_an_input_of_bytes(tmp_path: Path) -> None:
    data = read(written(tmp_path, "text,label\nNA,good\nnone at all,bad\n"), TEXT)
    assert data.inputs["text"].tolist() == [[b"NA"], [b"none at all"]]


def test_categories_of_parquet_are_their_texts(tmp_path: Path) -> None:
    labels = pd.Categorical(["cat", "dog", "cat"])
    path = parquet(tmp_path, {"a": [1.0, 2, 3], "b": [1, 2, 3], "label": labels})
    assert read(path, FLAT).labels.tolist() == ["cat", "dog", "cat"]


def test_types_of_columns_hold_for_all_rows(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n},{n % 3}\n" for n in range(300_000))  # several of the reader's blocks
    data = read(written(tmp_path, f"a,b,label\n{rows}0.5,1,2\n"), FLAT)
    assert data.rows == 300_001
    assert data.inputs["x"][-1].tolist() == [0.5, 1]


def test_without_a_signature_arrays_stay_as_they_are(tmp_path: Path) -> None:
    path = saved(tmp_path, a=np.zeros((2, 3)), words=["x", "yz"], labels=[0, 1])
    data = read(path, None)
    assert data.inputs["a"].dtype == np.float64
    assert data.inputs["words"].tolist() == [b"x", b"yz"]
    table = read(written(tmp_path, "a,b,label\n1,2,0\n"), None)
    assert table.inputs["input"].tolist() == [[1, 2]]
    assert table.inputs["input"].dtype == np.float32


def test_numbers_keep_their_values(tmp_path: Path) -> None:
    bytes_ = Signature((Tensor("x", "UINT8", (-1, 2)),), CLASSES)
    data = read(saved(tmp_path, x=np.array([[0, 255]], np.int64), labels=[0]), bytes_)
    assert data.inputs["x"].dtype == np.uint8
    assert data.inputs["x"].tolist() == [[0, 255]]
    with pytest.raises(DataError, match="'x' holds 256 in row 2, which is no UINT8"):
        read(saved(tmp_path, x=np.array([[0, 255], [3, 256]]), labels=[0, 1]), bytes_)
    with pytest.raises(DataError, match=r"'x' holds float64, and the input is x: UINT8\[-1, 2\]"):
        read(saved(tmp_path, x=np.zeros((1, 2)), labels=[0]), bytes_)
    with pytest.raises(DataError, match=r"'x' holds 1e\+60 in row 1, which is no FP32"):
        read(saved(tmp_path, x=np.full((1, 2), 1e60), labels=[0]), FLAT)


WHOLE = Signature((Tensor("x", "INT64", (-1, 2)),), CLASSES)


def test_floats_may_be_missing(tmp_path: Path) -> None:
    gaps = [[1.0, 2.0], [3.0, np.nan]]
    table = {"a": [1, 3], "b": [2, None], "label": [0, 1]}
    for path in (
        saved(tmp_path, x=np.array(gaps), labels=[0, 1]),
        written(tmp_path, "a,b,label\n1,2,0\n3,,1\n"),
        written(tmp_path, "a,b,label\n1,2,0\n3,nan,1\n", "nan.csv"),
        parquet(tmp_path, table),
        parquet(tmp_path, {**table, "b": [2.0, float("nan")]}),
    ):
        for signature in (FLAT, None):
            (array,) = read(path, signature).inputs.values()
            np.testing.assert_array_equal(array, gaps)
    # Of a column in which nothing is, and of one of flags.
    path = parquet(tmp_path, {"a": [None, None], "b": [True, None], "label": [0, 1]})
    array = read(path, FLAT).inputs["x"]
    np.testing.assert_array_equal(array, [[np.nan, 1.0], [np.nan, np.nan]])


ZEROS = np.zeros((2, 2))
WRONG: dict[str, tuple[Callable[[Path], Path], Signature, str]] = {
    "another suffix": (
        lambda folder: written(folder, "", "test.xlsx"),
        FLAT,
        "labeled data come as .npz, .csv or .parquet",
    ),
    "no file": (lambda folder: folder / "no.npz", FLAT, "No such file or directory"),
    "a damaged npz": (
        lambda folder: written(folder, b"PK\x03\x04 and no more", "test.npz"),
        FLAT,
        "not a whole npz file",
    ),
    "an npz of text": (
        lambda folder: written(folder, "hello", "test.npz"),
        FLAT,
        "not a whole npz file",
    ),
    "an empty npz": (lambda folder: written(folder, "", "t.npz"), FLAT, "not a whole npz file"),
    "a damaged parquet": (
        lambda folder: written(folder, b"PAR1 and no more", "test.parquet"),
        FLAT,
        "not a whole Parquet file",
    ),
    "an empty table": (lambda folder: written(folder, ""), FLAT, "the file is empty"),
    "a table without rows": (
        lambda folder: written(folder, "a,b,label\n"),
        FLAT,
        "there is no row below the names of the columns",
    ),
    "an uneven table": (
        lambda folder: written(folder, "a,b,label\n1,2,3\n1,2\n"),
        FLAT,
        "not a table of comma-separated values: CSV parse error: Expected 3 columns, got 2",
    ),
    "a table of other bytes": (
        lambda folder: written(folder, b"a,b,label\n1,2,\xff\n"),
        TEXT,
        "column 'label' holds bytes that are not UTF-8",
    ),
    "no labels in an npz": (
        lambda folder: saved(folder, x=ZEROS, label=[0, 1]),
        FLAT,
        "there is no array 'labels'; the file holds x, label",
    ),
    "no labels in a table": (
        lambda folder: written(folder, "a,b,class\n1,2,0\n"),
        FLAT,
        "there is no column 'label'; the columns are a, b, class",
    ),
    "no inputs": (
        lambda folder: saved(folder, labels=[0, 1]),
        FLAT,
        "there is no array besides the labels",
    ),
    "no columns": (
        lambda folder: written(folder, "label\n1\n"),
        FLAT,
        "there is no column besides the labels",
    ),
    "another name": (
        lambda folder: saved(folder, images=ZEROS, labels=[0, 1]),
        FLAT,
        "there is no array 'x', which is an input of the model; known here: images",
    ),
    "a name too many": (
        lambda folder: saved(folder, x=ZEROS, y=ZEROS, labels=[0, 1]),
        FLAT,
        "the array 'y' is no input of the model; known here: x",
    ),
    "an unknown column": (
        lambda folder: written(folder, "age,city,size,label\n1,Rome,2,0\n"),
        MIXED,
        "the column 'size' is no input of the model; known here: age, city",
    ),
    "a column twice": (
        lambda folder: written(folder, "a,a,label\n1,2,0\n"),
        FLAT,
        "there are 2 columns 'a'",
    ),
    "too few columns": (
        lambda folder: written(folder, "a,label\n1,0\n"),
        FLAT,
        "1 column besides the labels do not make a row of input x: FP32[-1, 2]",
    ),
    "another shape": (
        lambda folder: saved(folder, x=np.zeros((2, 3)), labels=[0, 1]),
        FLAT,
        "'x' has rows of shape [3], and the input is x: FP32[-1, 2]",
    ),
    "other rows": (
        lambda folder: saved(folder, x=np.zeros((3, 2)), labels=[0, 1]),
        FLAT,
        "'x' has 3 rows and the labels have 2",
    ),
    "no rows": (
        lambda folder: saved(folder, x=np.zeros((0, 2)), labels=[0]),
        FLAT,
        "the array 'x' is empty",
    ),
    "a single label": (
        lambda folder: saved(folder, x=ZEROS, labels=1),
        FLAT,
        "the array 'labels' is a single value, not one per row",
    ),
    "an empty cell of texts": (
        lambda folder: written(folder, "text,label\none,0\n,1\n"),
        TEXT,
        "column 'text' is empty in row 2",
    ),
    "an empty cell of integers": (
        lambda folder: written(folder, "a,b,label\n1,2,0\n3,,1\n"),
        WHOLE,
        "column 'b' is empty in row 2",
    ),
    "NaN among integers": (
        lambda folder: written(folder, "a,b,label\n1,2,0\n3,nan,1\n"),
        WHOLE,
        "'x' holds float64, and the input is x: INT64[-1, 2]",
    ),
    "an empty label": (
        lambda folder: written(folder, "a,b,label\n1,2,0\n3,4,\n"),
        FLAT,
        "column 'label' is empty in row 2",
    ),
    "a label that is NaN": (
        lambda folder: saved(folder, x=ZEROS, labels=[0, np.nan]),
        FLAT,
        "the label of row 2 is nan",
    ),
    "labels that are dates": (
        lambda folder: saved(folder, x=ZEROS, labels=np.array([0, 1], "datetime64[D]")),
        FLAT,
        "the labels are of type datetime64[D], neither numbers nor texts",
    ),
    "a text among numbers": (
        lambda folder: written(folder, "a,b,label\n1,2,0\n3,four,1\n"),
        FLAT,
        "column 'b' holds the text 'four' in row 2",
    ),
    "lists": (
        lambda folder: parquet(folder, {"a": [[1], [2, 3]], "b": [1, 2], "label": [0, 1]}),
        FLAT,
        "column 'a' holds neither numbers nor texts",
    ),
    "pickled objects": (
        lambda folder: saved(folder, x=ZEROS, labels=np.array(["a", None], object)),
        FLAT,
        "an array holds Python objects, which are never unpickled",
    ),
    "groups of another length": (
        lambda folder: saved(folder, x=ZEROS, labels=[0, 1], groups=[1]),
        FLAT,
        "the groups have shape [1], not one for each of 2 rows",
    ),
    "numbers for texts": (
        lambda folder: saved(folder, text=np.zeros((2, 1)), labels=[0, 1]),
        TEXT,
        "'text' holds float64, and the input is text: BYTES[-1, 1]",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_sentence(case: str, tmp_path: Path) -> None:
    make, signature, sentence = WRONG[case]
    path = make(tmp_path)
    with pytest.raises(DataError) as error:
        read(path, signature)
    said = str(error.value)
    assert sentence in said
    assert said.startswith(f"{path}: ")
    assert "\n" not in said


def test_a_group_that_is_missing_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,label\n1,2,0\n")
    with pytest.raises(DataError, match="no column 'who', which is to group; the columns are a, b"):
        read(path, FLAT, group="who")
    with pytest.raises(DataError, match="no array 'who', which is to group; the file holds x"):
        read(saved(tmp_path, x=ZEROS, labels=[0, 1]), FLAT, group="who")
