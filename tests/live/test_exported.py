"""A model of scikit-learn with a column of texts, exported, served and asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import inferway

ROWS = 5


def test_an_exported_model_answers_a_server_s_clients_as_it_does_itself(
    start: Any, tmp_path: Path
) -> None:
    generator = np.random.default_rng(1)
    table = pd.DataFrame(
        {
            "city": generator.choice(["Berlin", "São Paulo", "Osaka"], 300),
            "age": generator.uniform(18, 80, 300).astype(np.float32),
        }
    )
    kinds = np.where(table.city == "Osaka", "local", np.where(table.age > 50, "old", "young"))
    model = make_pipeline(
        make_column_transformer((OneHotEncoder(), ["city"]), (StandardScaler(), ["age"])),
        LogisticRegression(),
    ).fit(table, kinds)
    exported = inferway.export(model, tmp_path / "people.onnx")
    (tmp_path / "people.yaml").write_text(
        "tasks:\n  people:\n    variants:\n      linear: {accuracy: 0.9, model: people.onnx, "
        f"digest: {exported.digest}, service: {{mean: 1 ms}}}}\n"
    )
    running = start(deployment=inferway.load(tmp_path / "people.yaml"))
    asked = table[:ROWS]
    cities = {"name": "city", "datatype": "BYTES", "shape": [ROWS, 1], "data": list(asked.city)}
    ages = {"name": "age", "datatype": "FP32", "shape": [ROWS, 1], "data": asked.age.tolist()}
    answer = running.infer({"inputs": [cities, ages]}, path="/v2/models/people/infer")
    assert answer.status == 200, answer.body
    outputs = {one["name"]: one for one in answer.json["outputs"]}
    assert outputs["label"]["data"] == model.predict(asked).tolist()
    own = model.predict_proba(asked)
    assert outputs["probabilities"]["shape"] == list(own.shape)
    assert outputs["probabilities"]["data"] == pytest.approx(own.ravel().tolist(), abs=1e-5)
