"""What names a model, and what is refused: pickles, types that nobody trusts, and slips."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

from inferway.exporting import ExportError, export

TRAIN = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from iris_settings import settings

print("training")
rows, kinds = load_iris(return_X_y=True)
model = LogisticRegression(**settings).fit(rows, kinds)
number = 3


def made():
    return model


def of(depth):
    return model


def failing():
    return 1 / 0


def nothing():
    pass
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    (tmp_path / "iris_settings.py").write_text("settings = {'max_iter': 500}\n")
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path / "train.py"


@pytest.fixture
def unpickled(tmp_path: Path) -> Any:
    """Make files that leave a mark where they are unpickled."""
    mark = tmp_path / "unpickled"

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (mark,)

    def make(name: str) -> Path:
        (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
        return tmp_path / name

    yield make
    assert not mark.exists()


@pytest.mark.parametrize("name", ["model", "made"])
def test_an_object_of_a_python_file_or_what_its_function_returns(
    name: str, train: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = export(f"{train}:{name}", out)
    assert exported.source == "LogisticRegression of scikit-learn"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "training\n")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("model.pkl", "a pickle, which runs code of whoever wrote it, so it is never loaded"),
        ("model.joblib", "save a scikit-learn model with skops.io.dump, or write a function"),
        ("model.pt", "a PyTorch file, which is never unpickled: write a function without"),
        ("model.pth", "name it: FILE.py:NAME"),
        ("model.pt2", "a PyTorch file, which is never unpickled"),
        ("model.safetensors", "weights without a graph: write a function"),
        ("model.h5", "a TensorFlow or Keras file: export it with tf2onnx"),
        ("model.onnx", "ONNX already: name it as the `model` of a variant"),
        ("model.txt", "is no model: expected FILE.py:NAME, FILE.skops, FILE.ubj or FILE.json"),
        ("model.skops", "not a whole skops file: BadZipFile: File is not a zip file"),
        ("model.ubj", "not a model that XGBoost saved: "),
        ("model.json", "not a model that XGBoost saved: "),
    ],
)
def test_pickles_and_other_files_are_refused(
    name: str, advice: str, unpickled: Any, out: Path
) -> None:
    with pytest.raises(ExportError) as caught:
        export(str(unpickled(name)), out)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("modle", "has no 'modle'; did you mean model?"),
        ("1st", "'1st' is not a name of Python"),
        ("number", "is int, not a model: expected an estimator of scikit-learn"),
        ("LogisticRegression", "is the class LogisticRegression, not a model"),
        ("of", "takes depth; expected a function without arguments that returns the model"),
        ("nothing", "is NoneType, not a model"),
        ("failing", "fails: ZeroDivisionError: division by zero (train.py, line 22)"),
    ],
)
def test_names_that_are_no_model(name: str, sentence: str, train: Path, out: Path) -> None:
    with pytest.raises(ExportError) as caught:
        export(f"{train}:{name}", out)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("def f(:\n", "does not load: SyntaxError: invalid syntax"),
        ("import sys\nsys.exit(3)\n", "does not load: SystemExit: 3 (broken.py, line 2)"),
        ("x = 1\nimport nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ],
)
def test_a_file_that_does_not_load(code: str, sentence: str, tmp_path: Path, out: Path) -> None:
    (tmp_path / "broken.py").write_text(code)
    with pytest.raises(ExportError) as caught:
        export(f"{tmp_path}/broken.py:model", out)
    assert sentence in str(caught.value)


def test_what_is_not_there(tmp_path: Path, out: Path) -> None:
    for source in ("none.py:model", "none.skops", "none.ubj"):
        with pytest.raises(ExportError, match="there is no file"):
            export(f"{tmp_path}/{source}", out)
    with pytest.raises(ExportError, match=r"name the model in it, as in train\.py:model"):
        export("train.py", out)


def test_types_that_skops_does_not_trust_are_named_and_may_be_allowed(
    flowers: Any, tmp_path: Path, out: Path
) -> None:
    import skops.io  # a second, which collecting the tests does not need

    plain, forest = tmp_path / "plain.skops", tmp_path / "forest.skops"
    skops.io.dump(LogisticRegression(max_iter=500).fit(flowers.rows, flowers.kinds), plain)
    skops.io.dump(RandomForestClassifier(3).fit(flowers.rows, flowers.kinds), forest)
    assert export(plain, out).source == "LogisticRegression of scikit-learn"
    with pytest.raises(ExportError) as caught:
        export(str(forest), out)
    tree = "sklearn.tree._tree.Tree"
    assert f"holds types that skops does not trust: {tree}; " in str(caught.value)
    assert str(caught.value).endswith(f"--trust {tree}")
    assert export(str(forest), out, trust=[tree]).agreement.differing == 0


@pytest.mark.parametrize(
    ("source", "missing", "sentence"),
    [
        ("train.py:model", "skl2onnx", "needs skl2onnx, which is in the extra `export`: pip inst"),
        ("train.py:model", "sklearn", "needs scikit-learn, which is not installed: pip install sc"),
        ("net.py:model", "onnxscript", "needs onnxscript, which is in the extra `export`"),
        ("net.py:model", "torch", "needs PyTorch, which is not installed: pip install torch"),
        ("model.skops", "skops", "needs skops, which is in the extra `export`"),
        ("model.ubj", "onnxmltools", "needs onnxmltools, which is in the extra `export`"),
        ("model.ubj", "xgboost", "needs XGBoost, which is not installed: pip install xgboost"),
    ],
)
def test_what_is_missing_is_said_before_anything_is_loaded(
    source: str,
    missing: str,
    sentence: str,
    train: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train.with_name("net.py").write_text(
        "import torch\nprint('loading')\nmodel = torch.nn.ReLU()\n"
    )
    for name in ("model.skops", "model.ubj"):
        train.with_name(name).write_text(json.dumps({}))
    find = importlib.util.find_spec
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: (
            None if name == missing else there if name == "torch" else find(name, *rest)
        ),
    )
    with pytest.raises(RuntimeError) as caught:
        export(f"{train.parent}/{source}", out)
    assert sentence in str(caught.value)
    assert capsys.readouterr().err == ""
