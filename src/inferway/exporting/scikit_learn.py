"""Estimators and pipelines of scikit-learn, by skl2onnx.

A server's numbers are mostly float32, so the estimator, too, is asked what float32 holds. What may
differ then is a tree behind a step that rounds otherwise: a value next to a split falls on its
other side. So StandardScaler divides as scikit-learn does instead of multiplying, and
`inferway.exporting.agreement` says how many rows differ.

Source: "Issues when switching to float", documentation of sklearn-onnx.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from inferway.exporting.model import ExportError, first_line
from inferway.exporting.rows import made_up
from inferway.profiling.data import PLAIN_INPUT
from inferway.protocol import Tensor
from inferway.runtime import Arrays

if TYPE_CHECKING:
    import onnx

# Operators that skl2onnx is tested with and the oldest ONNX Runtime that Inferway installs runs.
_OPSET: Final = 21
_ML_OPSET: Final = 3
_TYPES: Final = {
    "FP32": "FloatTensorType", "FP64": "DoubleTensorType", "BYTES": "StringTensorType",
    "INT64": "Int64TensorType", "INT32": "Int32TensorType", "BOOL": "BooleanTensorType",
}  # fmt: skip
_REFUSED_OPTION: Final = re.compile(r"Option '(\w+)' not in")


class ScikitModel:
    """A fitted estimator or pipeline.

    Parameters
    ----------
    model
        The estimator; of a search, its best one is taken.
    inputs
        What it is to take; empty for what it says itself: one matrix of FP32, or one input per
        column where columns have different types.
    outputs
        Names of its outputs; empty for ours.
    converted
        What to convert in its place, where the converter needs another form of it.
    framework
        Where it comes from, for people.

    Raises
    ------
    ExportError
        Where it is not fitted, says too little of its inputs, or has other outputs than named.
    """

    def __init__(
        self,
        model: Any,
        inputs: Sequence[Tensor] = (),
        outputs: Sequence[str] = (),
        *,
        converted: Any = None,
        framework: str = "scikit-learn",
    ) -> None:
        model = getattr(model, "best_estimator_", model)
        self.kind = f"{type(model).__name__} of {framework}"
        _check(model, self.kind)
        self._model = model
        self._converted = model if converted is None else converted
        self.features = [str(name) for name in getattr(model, "feature_names_in_", ())]
        self._values: dict[str, list[Any]] = {}
        self.inputs = tuple(inputs) or self._said()
        if unknown := [one for one in self.inputs if one.datatype not in _TYPES]:
            raise ExportError(
                f"input {unknown[0]}: skl2onnx takes {', '.join(_TYPES)} and no other type"
            )
        names, self.scores = _outputs(model)
        self.outputs = tuple(outputs) or names
        if len(self.outputs) != len(names):
            raise ExportError(
                f"the model has {len(names)} outputs ({', '.join(names)}), and --output names "
                f"{len(self.outputs)}"
            )

    def rows(self, count: int, generator: np.random.Generator) -> Arrays:
        """Make up rows; columns of categories get those that the model knows."""
        return made_up(self.inputs, count, generator, self._values)

    def answer(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Answer rows by scikit-learn.

        A classifier gives labels, and probabilities or, where it has none, scores: two columns
        where it gives one.
        """
        try:
            try:
                return self._answers(self._rows(inputs))
            except ValueError:
                # Some estimators, KMeans for one, take no other type than they were fitted on.
                return self._answers(self._rows(_widened(inputs)))
        except Exception as error:
            takes = ", ".join(map(str, self.inputs))
            raise ExportError(
                f"{self.kind} fails on rows of {takes}: {first_line(error)}"
            ) from error

    def in_float64(self, inputs: Arrays) -> list[NDArray[Any]] | None:
        """Answer rows as scikit-learn does that was fitted on float64; None where none is FP32."""
        if all(one.datatype != "FP32" for one in self.inputs):
            return None
        return self._answers(self._rows(_widened(inputs)))

    def convert(self, opset: int | None) -> onnx.ModelProto:
        """Convert it by skl2onnx, probabilities as one tensor.

        Raises
        ------
        ExportError
            Where skl2onnx has no converter, or its converter fails.
        """
        import skl2onnx
        from skl2onnx.common import data_types
        from sklearn.base import is_classifier
        from sklearn.preprocessing import StandardScaler

        model, last = self._converted, _last(self._converted)
        if len(self.inputs) == 1 and self.features:
            model = _positional(model, self.features)
        if any(one.datatype == "FP64" for one in self.inputs):
            model = _narrowing(model)
        options: dict[Any, dict[str, Any]] = {StandardScaler: {"div": "div"}}
        if is_classifier(last):
            options[id(last)] = {"zipmap": False}
            if not hasattr(last, "predict_proba"):
                options[id(last)]["raw_scores"] = True
        arguments: dict[str, Any] = {
            "name": type(model).__name__,
            "initial_types": [
                (one.name, getattr(data_types, _TYPES[one.datatype])(_shape(one)))
                for one in self.inputs
            ],
            "final_types": [(name, None) for name in self.outputs],
            "target_opset": {"": opset or _OPSET, "ai.onnx.ml": _ML_OPSET},
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while True:
                try:
                    return _forgiving(skl2onnx.convert_sklearn(model, options=options, **arguments))
                except NameError as error:
                    # Not every classifier has every option, and some need none.
                    refused = _REFUSED_OPTION.match(str(error))
                    if refused is None or options.get(id(last), {}).pop(refused[1], None) is None:
                        raise self._unconverted(error) from error
                except Exception as error:  # converters of many authors
                    raise self._unconverted(error) from error

    def _answers(self, rows: Any) -> list[NDArray[Any]]:
        model = self._model
        names, _ = _outputs(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if names == ("output",):
                return [_dense(model.transform(rows))]
            answers = [np.asarray(model.predict(rows))]
            match names[1:]:
                case ("probabilities",):
                    answers.append(np.asarray(model.predict_proba(rows)))
                case ("distances",):
                    answers.append(np.asarray(model.transform(rows)))
                case ("scores",):
                    scores = np.asarray(model.decision_function(rows))
                    both = scores.ndim == 1 and self.scores is not None
                    answers.append(np.stack([-scores, scores], axis=1) if both else scores)
        if answers[0].dtype == np.bool_:
            answers[0] = answers[0].astype(np.int64)
        return answers

    def _unconverted(self, error: Exception) -> ExportError:
        return ExportError(
            f"skl2onnx cannot convert {self.kind}: {first_line(error)}; serve it as Python instead "
            "(`python` of a variant)"
        )

    def _said(self) -> tuple[Tensor, ...]:
        """Find the inputs that the model itself tells of."""
        width = getattr(self._model, "n_features_in_", None)
        if width is None:
            raise ExportError(
                f"{self.kind} does not say what it takes: name its inputs with --input "
                "NAME=DTYPE[SHAPE]"
            )
        columns = _columns(_first(self._model), self.features, width)
        kinds = [_datatype(values) for values in columns]
        if set(kinds) == {"FP32"}:
            return (Tensor(PLAIN_INPUT, "FP32", (-1, width)),)
        names = self.features or [f"column_{index}" for index in range(width)]
        self._values = {
            name: values for name, values in zip(names, columns, strict=True) if values is not None
        }
        return tuple(Tensor(name, kind, (-1, 1)) for name, kind in zip(names, kinds, strict=True))

    def _rows(self, inputs: Arrays) -> Any:
        """Put inputs side by side, as the estimator was fitted: a table, a matrix or texts."""
        given = [_decoded(inputs[one.name]) for one in self.inputs]
        if len(given) == 1 and given[0].ndim == 1:
            return list(given[0])
        parts = [array.reshape(len(array), -1) for array in given]
        if not self.features:
            return parts[0] if len(parts) == 1 else np.hstack(parts)
        import pandas as pd

        names = [one.name for one in self.inputs]
        if set(names) != set(self.features):
            names = self.features
        columns = [part[:, index] for part in parts for index in range(part.shape[1])]
        return pd.DataFrame(dict(zip(names, columns, strict=False)))[self.features]


def _check(model: Any, kind: str) -> None:
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    try:
        check_is_fitted(model)
    except NotFittedError:
        raise ExportError(f"{kind} is not fitted: call fit before it is exported") from None
    except TypeError as error:
        raise ExportError(f"{kind} cannot be exported: {first_line(error)}") from None
    if isinstance(getattr(model, "classes_", None), list):
        raise ExportError(
            f"{kind} gives several labels for a row, which no variant can: export a model for each"
        )


def _outputs(model: Any) -> tuple[tuple[str, ...], int | None]:
    """Name the outputs of an estimator, and tell which has the scores that decide its label."""
    from sklearn.base import is_classifier, is_clusterer, is_outlier_detector

    if is_classifier(model):
        if hasattr(model, "predict_proba"):
            return ("label", "probabilities"), 1
        return ("label", "scores"), 1
    if is_outlier_detector(model):
        return ("label", "scores"), None
    if is_clusterer(model) and hasattr(model, "predict"):
        return ("label", "distances") if hasattr(model, "transform") else ("label",), None
    return ("prediction",) if hasattr(model, "predict") else ("output",), None


def _forgiving(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let a category that the model does not know count as none of those that it knows.

    Where scikit-learn raises an error, a server would take the model for broken: it begins with
    empty texts, and its clients may send anything.
    """
    for node in model.graph.node:
        if node.op_type == "OneHotEncoder":
            for attribute in node.attribute:
                if attribute.name == "zeros":
                    attribute.i = 1
    return model


def _shape(one: Tensor) -> list[int | None]:
    return [None if axis == -1 else axis for axis in one.shape]


def _first(model: Any) -> Any:
    while hasattr(model, "steps"):
        model = model.steps[0][1]
    return model


def _last(model: Any) -> Any:
    while hasattr(model, "steps"):
        model = model.steps[-1][1]
    return model


def _columns(step: Any, features: list[str], width: int) -> list[list[Any] | None]:
    """Find the categories of each column, where a step knows them; None where it takes numbers."""
    found: list[list[Any] | None] = [None] * width
    if not hasattr(step, "transformers_"):
        for index, values in enumerate(getattr(step, "categories_", ())):
            found[index] = list(values)
        return found
    for _, transformer, columns in step.transformers_:
        known = next(
            (one.categories_ for one in _steps(transformer) if hasattr(one, "categories_")), None
        )
        indices = _indices(columns, features, width)
        for index, values in zip(indices, known or (), strict=False):
            found[index] = list(values)
    return found


def _steps(transformer: Any) -> list[Any]:
    return [one for _, one in getattr(transformer, "steps", [("", transformer)])]


def _indices(columns: Any, features: list[str], width: int) -> list[int]:
    """Number the columns that a part of a ColumnTransformer takes: names, numbers or a mask."""
    if isinstance(columns, str):
        columns = [columns]
    if not isinstance(columns, slice | int) and all(isinstance(one, str) for one in columns):
        return [features.index(name) for name in columns]
    return [int(index) for index in np.atleast_1d(np.arange(width)[columns])]


def _positional(model: Any, features: list[str]) -> Any:
    """Copy a pipeline so that its ColumnTransformer takes columns by their numbers.

    Of one matrix skl2onnx knows no names.
    """
    if hasattr(model, "steps"):
        copied = copy.copy(model)
        (name, step), *rest = model.steps
        copied.steps = [(name, _positional(step, features)), *rest]
        return copied
    if not hasattr(model, "transformers_"):
        return model
    copied = copy.copy(model)
    copied.transformers_ = [
        (name, transformer, _indices(columns, features, len(features)))
        for name, transformer, columns in model.transformers_
    ]
    return copied


def _narrowing(model: Any) -> Any:
    """Copy a pipeline so that its trees get float32, as scikit-learn gives them.

    The converter's trees of float64 split otherwise.
    """
    last = _last(model)
    trees = np.ravel(np.asarray(getattr(last, "estimators_", [last]), np.object_))
    if not hasattr(model, "steps") or model.steps[-1][1] is not last:
        return model
    if not all(hasattr(one, "tree_") for one in trees):
        return model
    from skl2onnx.sklapi import CastTransformer

    copied = copy.copy(model)
    *before, (name, step) = model.steps
    cast = CastTransformer(dtype=np.float32).fit(np.zeros((1, last.n_features_in_)))
    copied.steps = [*before, ("float32", cast), (name, step)]
    return copied


def _datatype(values: list[Any] | None) -> str:
    if values is None:
        return "FP32"
    kind = np.asarray(values).dtype.kind
    return {"f": "FP32", "i": "INT64", "u": "INT64", "b": "BOOL"}.get(kind, "BYTES")


def _widened(inputs: Arrays) -> Arrays:
    return {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in inputs.items()
    }


def _decoded(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype != object:
        return array
    texts: NDArray[np.object_] = np.frompyfunc(_text, 1, 1)(array)
    return texts


def _text(one: bytes | str) -> str:
    return one.decode() if isinstance(one, bytes) else one


def _dense(transformed: Any) -> NDArray[Any]:
    return np.asarray(transformed.toarray() if hasattr(transformed, "toarray") else transformed)


def uses_xgboost(model: Any) -> bool:
    """Tell whether a step of a pipeline, or a part of a step, is a model of XGBoost."""
    inner = list(model.get_params(deep=True).values())
    return any(type(one).__module__.partition(".")[0] == "xgboost" for one in inner)
