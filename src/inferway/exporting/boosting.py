"""Models of XGBoost: its own files, its boosters and its estimators, by onnxmltools."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Final

from inferway.exporting.model import ExportError, first_line

_CLASSIFIES: Final = ("binary:", "multi:")
_TREES: Final = "gbtree"


def read_booster(path: Path) -> Any:
    """Read a file that XGBoost wrote (``save_model``), which holds data and no code.

    Raises
    ------
    ExportError
        Where it is no such file.
    """
    import xgboost

    try:
        return xgboost.Booster(model_file=path)
    except xgboost.core.XGBoostError as error:
        # Its messages go on with a stack of C++.
        lines = str(error).splitlines()
        said = next((line.partition("] ")[2] or line for line in lines if line.strip()), "")
        raise ExportError(
            f"{path}: not a model that XGBoost saved: {said.partition(': ')[2] or said}"
        ) from None
    except Exception as error:
        raise ExportError(f"{path}: not a model that XGBoost saved: {first_line(error)}") from None


def estimator(model: Any) -> Any:
    """Make the estimator of a booster, by its objective; an estimator stays as it is."""
    import xgboost

    if not isinstance(model, xgboost.Booster):
        return model
    objective = _configuration(model)["objective"]["name"]
    if objective == "multi:softmax":
        # Which gives no probabilities; the trees are the same.
        model = model.copy()
        model.set_param({"objective": "multi:softprob"})
    made = xgboost.XGBClassifier() if objective.startswith(_CLASSIFIES) else xgboost.XGBRegressor()
    made.load_model(model.save_raw("ubj"))
    return made


def convertible(model: Any) -> Any:
    """Copy an estimator as the converter takes it: numbered columns, and the trees that count.

    Where training stopped early, further trees are in the model and not used.

    Raises
    ------
    ExportError
        Where it is not fitted, is not made of trees, or splits on categories.
    """
    try:
        booster = model.get_booster()
    except Exception as error:
        raise ExportError(f"{type(model).__name__} is not fitted: {first_line(error)}") from None
    kind = _configuration(booster)["gradient_booster"]["name"]
    if kind != _TREES:
        raise ExportError(
            f"a booster of the kind {kind} has no converter: train with booster='gbtree', or serve "
            "it as Python instead (`python` of a variant)"
        )
    if "c" in (booster.feature_types or ()):
        raise ExportError(
            "the model splits on categories, for which there is no converter: encode them as "
            "numbers before training, or serve it as Python instead (`python` of a variant)"
        )
    best = booster.attr("best_iteration")
    used = booster if best is None else booster[: int(best) + 1]
    made = type(model)()
    made.load_model(used.save_raw("ubj"))
    made.get_booster().feature_names = None
    made.get_booster().set_attr(best_iteration=None)
    return made


@functools.cache
def register() -> None:
    """Tell skl2onnx of XGBoost's estimators, alone and as a pipeline's step."""
    import xgboost
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    for name in ("XGBClassifier", "XGBRFClassifier"):
        update_registered_converter(
            getattr(xgboost, name),
            name,
            calculate_linear_classifier_output_shapes,
            convert_xgboost,
            options={"nocl": [True, False], "zipmap": [True, False, "columns"]},
        )
    for name in ("XGBRegressor", "XGBRFRegressor", "XGBRanker"):
        update_registered_converter(
            getattr(xgboost, name), name, calculate_linear_regressor_output_shapes, convert_xgboost
        )


def _configuration(booster: Any) -> dict[str, Any]:
    learner: dict[str, Any] = json.loads(booster.save_config())["learner"]
    return learner
