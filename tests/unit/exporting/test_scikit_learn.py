"""Models of scikit-learn become ONNX that answers as they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from inferway.exporting import ExportError, export
from inferway.runtime import OnnxRuntime, inspect

CLASSIFIER = {"label": "INT64[-1]", "probabilities": "FP32[-1, 3]"}


def test_in_a_folder_of_models_a_variant_is_called_as_its_folder(
    flowers: Any, tmp_path: Path
) -> None:
    model = LogisticRegression(max_iter=500).fit(flowers.rows, flowers.kinds)
    (tmp_path / "linear").mkdir()
    assert export(model, tmp_path / "linear" / "model.onnx").variant == "linear"
    assert export(model, tmp_path / "other.onnx").variant == "other"


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(max_iter=500),
        RandomForestClassifier(7, random_state=1),
        GradientBoostingClassifier(n_estimators=4, random_state=1),
        HistGradientBoostingClassifier(max_iter=4, random_state=1),
        make_pipeline(StandardScaler(), LogisticRegression()),
        make_pipeline(StandardScaler(), RandomForestClassifier(7, random_state=1)),
        GridSearchCV(LogisticRegression(max_iter=500), {"C": [0.5, 1.0]}, cv=2),
    ],
    ids=lambda model: type(getattr(model, "estimator", model)).__name__,
)
def test_classifiers(model: Any, flowers: Any, out: Path, shapes_of: Any) -> None:
    model.fit(flowers.rows, flowers.kinds)
    exported = export(model, out)
    assert shapes_of(exported.signature.inputs) == {"input": "FP32[-1, 4]"}
    assert shapes_of(exported.signature.outputs) == CLASSIFIER
    assert inspect(out, digest=exported.digest) == exported.signature
    rows = flowers.rows.astype(np.float32)
    runtime = OnnxRuntime(out)
    for batch in (1, 2, 150):
        answer = runtime.run({"input": rows[:batch]})
        np.testing.assert_array_equal(answer["label"], model.predict(rows[:batch]))
        own = model.predict_proba(rows[:batch])
        np.testing.assert_allclose(answer["probabilities"], own, atol=1e-5)


@pytest.mark.parametrize("model", [LinearSVC(), SVC(), RidgeClassifier()], ids=repr)
@pytest.mark.parametrize("kinds", ["two", "kinds"])
def test_classifiers_without_probabilities_give_scores(
    model: Any, kinds: str, flowers: Any, out: Path, shapes_of: Any
) -> None:
    model.fit(flowers.rows, getattr(flowers, kinds))
    exported = export(model, out)
    columns = 2 if kinds == "two" else 3
    assert shapes_of(exported.signature.outputs) == {
        "label": "INT64[-1]",
        "scores": f"FP32[-1, {columns}]",
    }
    rows = flowers.rows.astype(np.float32)
    answer = OnnxRuntime(out).run({"input": rows})
    np.testing.assert_array_equal(answer["scores"].argmax(axis=1), model.predict(rows))


@pytest.mark.parametrize(
    "model",
    [
        Ridge(),
        RandomForestRegressor(7, random_state=1),
        GradientBoostingRegressor(n_estimators=4, random_state=1),
        make_pipeline(StandardScaler(), Ridge()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_regressors(model: Any, flowers: Any, out: Path, shapes_of: Any) -> None:
    model.fit(flowers.rows[:, :3], flowers.widths)
    exported = export(model, out)
    assert shapes_of(exported.signature.outputs) == {"prediction": "FP32[-1, 1]"}
    rows = flowers.rows[:, :3].astype(np.float32)
    answer = OnnxRuntime(out).run({"input": rows})
    np.testing.assert_allclose(answer["prediction"][:, 0], model.predict(rows), rtol=1e-4)


def test_clusters_outliers_and_transformers(flowers: Any, out: Path, shapes_of: Any) -> None:
    found = {}
    for model in (
        KMeans(3, n_init=1, random_state=1),
        IsolationForest(n_estimators=5, random_state=1),
        StandardScaler(),
    ):
        exported = export(model.fit(flowers.rows), out)
        found[type(model).__name__] = shapes_of(exported.signature.outputs)
    assert found == {
        "KMeans": {"label": "INT64[-1]", "distances": "FP32[-1, 3]"},
        "IsolationForest": {"label": "INT64[-1, 1]", "scores": "FP32[-1, 1]"},
        "StandardScaler": {"output": "FP32[-1, 4]"},
    }


def test_labels_may_be_texts_or_flags(flowers: Any, out: Path, shapes_of: Any) -> None:
    names = np.array(["setosa", "versicolor", "virginica"])[flowers.kinds]
    exported = export(LogisticRegression(max_iter=500).fit(flowers.rows, names), out)
    assert shapes_of(exported.signature.outputs)["label"] == "BYTES[-1]"
    exported = export(LogisticRegression().fit(flowers.rows, flowers.kinds > 0), out)
    assert shapes_of(exported.signature.outputs)["label"] == "INT64[-1]"


def test_columns_of_several_types_are_an_input_each(
    people: pd.DataFrame, out: Path, tmp_path: Path, shapes_of: Any
) -> None:
    columns = people.drop(columns="label")
    model = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "pay"]),
            (OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ),
        LogisticRegression(),
    ).fit(columns, people.label)
    inputs = {"age": "FP32[-1, 1]", "city": "BYTES[-1, 1]", "pay": "FP32[-1, 1]"}
    exported = export(model, out)
    assert shapes_of(exported.signature.inputs) == inputs
    people.to_csv(tmp_path / "people.csv", index=False)
    exported = export(model, out, data=tmp_path / "people.csv")
    assert exported.agreement.rows == len(people)
    # A server passes texts as bytes.
    answer = OnnxRuntime(out).run(
        {
            "age": columns[["age"]].to_numpy(np.float32),
            "city": np.array([[city.encode()] for city in columns.city], np.object_),
            "pay": columns[["pay"]].to_numpy(np.float32),
        }
    )
    np.testing.assert_array_equal(answer["label"], model.predict(columns))


def test_a_category_that_the_model_does_not_know_counts_as_none(
    people: pd.DataFrame, out: Path
) -> None:
    model = make_pipeline(OneHotEncoder(), LogisticRegression())
    export(model.fit(people[["city"]], people.label), out)
    answer = OnnxRuntime(out).run({"city": np.array([[b"Lima"], [b""], [b"Paris"]], np.object_)})
    assert answer["label"][0] == model.predict(people.loc[people.city == "Lima", ["city"]])[0]
    np.testing.assert_array_equal(answer["probabilities"][1], answer["probabilities"][2])


def test_the_model_s_own_rounding_is_told_and_fp64_keeps_it(out: Path, tmp_path: Path) -> None:
    # Whole numbers: a row may stand half-way between two of the training, where trees split.
    rows, digits = load_digits(return_X_y=True)
    forest = RandomForestClassifier(10, random_state=1)
    model = make_pipeline(StandardScaler(), forest).fit(rows[::2], digits[::2])
    np.savez(tmp_path / "t.npz", input=rows[1::2], labels=digits[1::2])
    narrow = export(model, out, data=tmp_path / "t.npz")
    held = rows[1::2]
    differ = int((model.predict(held) != model.predict(held.astype(np.float32))).sum())
    assert narrow.agreement.rounded == differ > 0
    share = f"{differ / len(held):.2%}"
    assert f"# the model itself answers {share} of them otherwise in float64" in narrow.yaml
    wide = export(model, out, data=tmp_path / "t.npz", inputs=["input=FP64[64]"])
    assert (wide.agreement.rounded, wide.agreement.differing) == (0, 0)
    np.testing.assert_array_equal(
        OnnxRuntime(out).run({"input": held})["label"], model.predict(held)
    )


@pytest.mark.parametrize(
    "model",
    [
        RandomForestClassifier(5, random_state=1),
        GradientBoostingClassifier(n_estimators=3, random_state=1),
        make_pipeline(StandardScaler(), GradientBoostingClassifier(n_estimators=3)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_trees_take_fp64(model: Any, flowers: Any, out: Path, shapes_of: Any) -> None:
    exported = export(model.fit(flowers.rows, flowers.kinds), out, inputs=["x=FP64[4]"])
    answer = OnnxRuntime(out).run({"x": flowers.rows})
    declared = {one.name: one.dtype for one in exported.signature.outputs}
    assert {name: array.dtype for name, array in answer.items()} == declared
    np.testing.assert_array_equal(answer["label"], model.predict(flowers.rows))


def test_numeric_columns_by_name_are_one_row_in_their_order(
    people: pd.DataFrame, out: Path, tmp_path: Path, shapes_of: Any
) -> None:
    columns = people[["age", "pay"]]
    model = make_pipeline(
        make_column_transformer((StandardScaler(), ["pay"]), ("passthrough", ["age"])),
        LogisticRegression(max_iter=500),
    ).fit(columns, people.label)
    data = tmp_path / "people.csv"
    people[["label", "age", "pay"]].to_csv(data, index=False)
    exported = export(model, out, data=data)
    assert shapes_of(exported.signature.inputs) == {"input": "FP32[-1, 2]"}
    people[["pay", "age", "label"]].to_csv(data, index=False)
    with pytest.raises(ExportError, match=r"'pay' stands where 'age' is expected"):
        export(model, out, data=data)


def test_named_inputs_and_outputs(flowers: Any, out: Path, shapes_of: Any) -> None:
    model = LogisticRegression(max_iter=500).fit(flowers.rows, flowers.kinds)
    exported = export(model, out, inputs=["x=FP64[4]"], outputs=["kind", "p"], opset=18)
    assert shapes_of(exported.signature.inputs) == {"x": "FP64[-1, 4]"}
    assert shapes_of(exported.signature.outputs) == {"kind": "INT64[-1]", "p": "FP64[-1, 3]"}
    assert exported.opset <= 18
    assert exported.agreement.difference < 1e-9


def test_the_same_model_is_the_same_file(flowers: Any, out: Path) -> None:
    model = RandomForestClassifier(5, random_state=1).fit(flowers.rows, flowers.kinds)
    assert export(model, out).digest == export(model, out).digest


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        (LogisticRegression(), {}, "LogisticRegression of scikit-learn is not fitted: call fit"),
        (
            make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()),
            {"fit": "kinds"},
            "skl2onnx cannot convert Pipeline of scikit-learn: RuntimeError: FunctionTransformer",
        ),
        (
            RandomForestClassifier(3),
            {"fit": "several"},
            "gives several labels for a row, which no variant can: export a model for each",
        ),
        (
            LogisticRegression(),
            {"fit": "two", "inputs": ["x=FP32[3]"]},
            "fails on rows of x: FP32[-1, 3]: ValueError: X has 3 features",
        ),
        (
            LogisticRegression(),
            {"fit": "two", "inputs": ["x=UINT8[4]"]},
            "input x: UINT8[-1, 4]: skl2onnx takes FP32, FP64, BYTES, INT64, INT32, BOOL and no",
        ),
        (
            LogisticRegression(),
            {"fit": "two", "inputs": ["x=BYTES[4]"]},
            "no rows can be made up for input x: BYTES[-1, 4]: give some with --data FILE",
        ),
        (
            LogisticRegression(),
            {"fit": "two", "outputs": ["kind"]},
            "the model has 2 outputs (label, probabilities), and --output names 1",
        ),
        (
            LogisticRegression(),
            {"fit": "two", "opset": 99},
            "opset 99 is not one of those that the installed ONNX Runtime runs: 7 to ",
        ),
        (3, {}, "int is no model of scikit-learn, XGBoost or PyTorch; serve it as Python"),
    ],
    ids=range(9),
)
def test_what_cannot_be_exported_is_one_sentence(
    model: Any, options: dict[str, Any], sentence: str, flowers: Any, out: Path
) -> None:
    fit = options.get("fit")
    labels = {
        "kinds": flowers.kinds,
        "two": flowers.two,
        "several": np.stack([flowers.kinds, flowers.two], axis=1),
    }
    if fit is not None:
        model.fit(flowers.rows, labels[fit])
    with pytest.raises(ExportError) as caught:
        export(model, out, **{name: one for name, one in options.items() if name != "fit"})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not out.exists()
