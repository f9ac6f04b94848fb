from __future__ import annotations

import math

import numpy as np
import pytest

from inferway.experiments.runner import Point, ResultStore, key
from inferway.files import alone


def call(**arguments):
    return arguments


def other_call(**arguments):
    return arguments


def point(**arguments):
    return Point({"n": 1}, call, arguments)


def test_a_result_comes_back_as_it_was(tmp_path):
    store = ResultStore(tmp_path / "new")
    assert store.read() == {}
    result = {"x": 0.1 + 0.2, "n": np.int64(3), "stable": True, "series": np.array([1.0, 2.5])}
    store.add("a", point(), result, 1.0)
    assert ResultStore(tmp_path / "new").read() == {
        "a": {"x": 0.1 + 0.2, "n": 3, "stable": True, "series": [1.0, 2.5]}
    }


def test_what_is_no_number_comes_back_too(tmp_path):
    store = ResultStore(tmp_path)
    store.add("a", point(), {"x": math.nan, "y": math.inf, "z": [-math.inf]}, 1.0)
    found = store.read()["a"]
    assert math.isnan(found["x"])
    assert found["y"] == math.inf
    assert found["z"] == [-math.inf]
    assert "NaN" not in store.file.read_text()


def test_a_line_cut_short_is_forgotten_and_the_next_one_kept(tmp_path):
    store = ResultStore(tmp_path)
    store.add("a", point(), {"x": 1}, 1.0)
    with store.file.open("a") as file:
        file.write('{"key": "b", "res')
    assert set(store.read()) == {"a"}
    store.add("c", point(), {"x": 3}, 1.0)
    assert {name: row["x"] for name, row in store.read().items()} == {"a": 1, "c": 3}


def test_rows_that_nobody_asks_for_are_dropped(tmp_path):
    store = ResultStore(tmp_path)
    for name in "abc":
        store.add(name, point(), {"x": name}, 1.0)
    store.keep(["c", "a", "missing"])
    assert set(store.read()) == {"a", "c"}


def test_two_runs_never_write_to_one_folder(tmp_path):
    with alone(tmp_path, "run"), pytest.raises(RuntimeError, match="another run writes"):
        alone(tmp_path, "run").__enter__()
    with alone(tmp_path, "run"):
        pass


def test_a_row_is_known_by_call_arguments_and_code_but_not_by_its_label():
    one = key(point(a=1, b=[0.1]), "v1")
    assert key(Point({"n": 2}, call, {"b": [0.1], "a": 1}, 9.0), "v1") == one
    others = [
        key(point(a=2, b=[0.1]), "v1"),
        key(point(a=1, b=[0.1]), "v2"),
        key(Point({"n": 1}, other_call, {"a": 1, "b": [0.1]}), "v1"),
    ]
    assert len({one, *others}) == 4
