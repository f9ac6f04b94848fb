"""An exported model and its source are compared row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.tree import DecisionTreeClassifier

from inferway.exporting import DisagreementError, export
from inferway.exporting.agreement import compare
from inferway.exporting.scikit_learn import ScikitModel
from inferway.runtime import OnnxRuntime


def test_another_model_than_the_source_is_found(flowers: Any, out: Path) -> None:
    rows = {"input": flowers.rows.astype(np.float32)}
    fitted = Ridge().fit(flowers.rows, flowers.widths)
    export(fitted, out)
    runtime = OnnxRuntime(out)
    same = compare(ScikitModel(fitted), runtime, rows, 1e-4)
    assert (same.rows, same.batches, same.differing) == (150, (1, 2, 147), 0)
    other = Ridge().fit(flowers.rows, flowers.widths)
    other.intercept_ += 0.5
    found = compare(ScikitModel(other), runtime, rows, 1e-4)
    assert (found.differing, found.labels, found.output) == (150, 0, "prediction")
    own = other.predict(rows["input"])
    expected = 0.5 / np.maximum(1.0, np.abs(own))
    assert found.difference == pytest.approx(expected.max(), rel=1e-3)
    assert expected[found.row] == pytest.approx(expected.max(), rel=1e-5)


def test_labels_are_counted_by_row(flowers: Any, out: Path) -> None:
    rows = {"input": flowers.rows.astype(np.float32)}
    export(LogisticRegression(max_iter=500).fit(flowers.rows, flowers.kinds), out)
    runtime = OnnxRuntime(out)
    other = DecisionTreeClassifier(max_depth=1, random_state=1).fit(flowers.rows, flowers.kinds)
    found = compare(ScikitModel(other), runtime, rows, tolerance=2.0)
    labels = runtime.run(rows)["label"]
    differ = int((labels != other.predict(flowers.rows)).sum())
    assert differ > 0
    # A stump's two last kinds are equally likely, and such rows are ties.
    assert found.labels + found.ties == differ
    assert found.ties > 0
    assert found.differing == found.labels


def test_rows_next_to_a_split_may_be_allowed(out: Path, tmp_path: Path) -> None:
    # Each of the added rows is, after the scaling, as near to a split as float64 can be.
    generator = np.random.default_rng(3)
    rows = generator.integers(0, 1000, size=(400, 3)) / 7.0
    model = make_pipeline(MinMaxScaler(), DecisionTreeClassifier(random_state=1))
    model.fit(rows[:200], generator.integers(0, 2, 200))
    scaler, tree = model[0], model[1].tree_
    features, splits = tree.feature[tree.feature >= 0], tree.threshold[tree.feature >= 0]
    edges = rows[: len(splits)].copy()
    edges[np.arange(len(splits)), features] = (
        splits * scaler.data_range_[features] + scaler.data_min_[features]
    )
    data = tmp_path / "edges.npz"
    np.savez(data, input=np.concatenate([rows, edges]), labels=np.zeros(400 + len(edges), int))
    with pytest.raises(DisagreementError, match="--differing SHARE allows some rows"):
        export(model, out, data=data)
    assert not out.exists()
    found = export(model, out, data=data, differing=0.1).agreement
    assert 0 < found.differing <= 0.1 * found.rows


def test_an_output_of_another_shape_is_found(flowers: Any, out: Path) -> None:
    runtime = OnnxRuntime(export(LogisticRegression().fit(flowers.rows, flowers.two), out).path)
    other = ScikitModel(LogisticRegression(max_iter=500).fit(flowers.rows, flowers.kinds))
    with pytest.raises(
        DisagreementError, match=r"'probabilities' .* shape \[150, 2\], that of its source"
    ):
        compare(other, runtime, {"input": flowers.rows.astype(np.float32)}, 1e-4)
