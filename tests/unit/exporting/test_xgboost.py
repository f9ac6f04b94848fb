"""Models of XGBoost become ONNX that answers as they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from inferway.exporting import DisagreementError, ExportError, export
from inferway.runtime import OnnxRuntime


@pytest.mark.parametrize("kinds", ["two", "kinds"])
def test_classifiers(kinds: str, flowers: Any, out: Path, shapes_of: Any) -> None:
    model = xgboost.XGBClassifier(n_estimators=4).fit(flowers.rows, getattr(flowers, kinds))
    exported = export(model, out)
    columns = 2 if kinds == "two" else 3
    assert exported.source == "XGBClassifier of XGBoost"
    assert shapes_of(exported.signature.outputs) == {
        "label": "INT64[-1]",
        "probabilities": f"FP32[-1, {columns}]",
    }
    rows = flowers.rows.astype(np.float32)
    answer = OnnxRuntime(out).run({"input": rows})
    np.testing.assert_array_equal(answer["label"], model.predict(rows))
    np.testing.assert_allclose(answer["probabilities"], model.predict_proba(rows), atol=1e-5)


def test_regressors(flowers: Any, out: Path, shapes_of: Any) -> None:
    for objective in ("reg:squarederror", "count:poisson"):
        model = xgboost.XGBRegressor(n_estimators=4, objective=objective)
        model.fit(flowers.rows, flowers.widths)
        exported = export(model, out)
        assert shapes_of(exported.signature.outputs) == {"prediction": "FP32[-1, 1]"}


@pytest.mark.parametrize("suffix", [".ubj", ".json"])
@pytest.mark.parametrize(
    ("objective", "outputs"),
    [
        ("binary:logistic", {"label": "INT64[-1]", "probabilities": "FP32[-1, 2]"}),
        ("multi:softmax", {"label": "INT64[-1]", "probabilities": "FP32[-1, 3]"}),
        ("reg:squarederror", {"prediction": "FP32[-1, 1]"}),
    ],
)
def test_boosters_and_their_files(
    objective: str,
    outputs: dict[str, str],
    suffix: str,
    flowers: Any,
    out: Path,
    tmp_path: Path,
    shapes_of: Any,
) -> None:
    several = objective.startswith("multi")
    parameters = {"objective": objective, **({"num_class": 3} if several else {})}
    labels = flowers.kinds if several else flowers.two
    booster = xgboost.train(parameters, xgboost.DMatrix(flowers.rows, labels), 3)
    path = tmp_path / f"model{suffix}"
    booster.save_model(path)
    exported = export(str(path), out)
    assert shapes_of(exported.signature.outputs) == outputs
    assert exported.digest == export(booster, out).digest


def test_a_step_of_a_pipeline(flowers: Any, out: Path) -> None:
    model = make_pipeline(StandardScaler(), xgboost.XGBClassifier(n_estimators=4))
    exported = export(model.fit(flowers.rows, flowers.kinds), out)
    assert exported.agreement.differing == 0


def test_named_columns_are_one_row(people: pd.DataFrame, out: Path, shapes_of: Any) -> None:
    columns = people[["pay", "age"]]
    exported = export(xgboost.XGBClassifier(n_estimators=3).fit(columns, people.label), out)
    assert shapes_of(exported.signature.inputs) == {"input": "FP32[-1, 2]"}


def test_trees_after_the_best_are_left_out(flowers: Any, out: Path) -> None:
    model = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=3)
    held = [(flowers.rows[1::2], flowers.kinds[1::2])]
    model.fit(flowers.rows[::2], flowers.kinds[::2], eval_set=held, verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    assert export(model, out).agreement.difference < 1e-5


def test_a_converter_that_is_wrong_is_found_and_nothing_is_written(flowers: Any, out: Path) -> None:
    model = xgboost.XGBRFClassifier(n_estimators=5).fit(flowers.rows, flowers.kinds)
    out.parent.mkdir()
    out.write_bytes(b"as it was")
    with pytest.raises(DisagreementError) as caught:
        export(model, out)
    assert "rows made up differ (100.00%)" in str(caught.value)
    assert "nothing was written: serve it as Python instead" in str(caught.value)
    assert [one.name for one in out.parent.iterdir()] == ["model.onnx"]
    assert out.read_bytes() == b"as it was"


def test_what_has_no_converter_is_one_sentence(flowers: Any, out: Path) -> None:
    table = pd.DataFrame(
        {"kind": pd.Categorical(flowers.kinds.astype(str)), "width": flowers.widths}
    )
    sentences = {
        "is not fitted": xgboost.XGBClassifier(),
        "a booster of the kind dart has no converter: train with booster='gbtree'": (
            xgboost.XGBClassifier(n_estimators=2, booster="dart").fit(flowers.rows, flowers.two)
        ),
        "splits on categories, for which there is no converter": (
            xgboost.XGBClassifier(n_estimators=2, enable_categorical=True).fit(table, flowers.two)
        ),
    }
    for sentence, model in sentences.items():
        with pytest.raises(ExportError, match=sentence):
            export(model, out)
