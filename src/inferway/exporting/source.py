"""Models by what names them: a file of a safe format, or an object of the user's Python file.

A pickle runs code of whoever wrote it, so that none is ever loaded. Loading a PyTorch program
(``.pt2``) may unpickle what its file holds, so it counts as one. The user's own file is the user's
code: it runs in this process, as a policy's does.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from inferway.deployment.errors import nearest
from inferway.exporting.model import ExportError, first_line
from inferway.extras import installing
from inferway.files import run_source, syntax_tree
from inferway.profiling.function import running

FRAMEWORKS: Final = {"sklearn": "scikit-learn", "xgboost": "XGBoost", "torch": "PyTorch"}
"""Modules of the frameworks whose models can be exported, and their names."""

# What the extra `export` has for each.
_NEEDED: Final = {
    "sklearn": ("skl2onnx",),
    "xgboost": ("skl2onnx", "onnxmltools"),
    "torch": ("onnxscript",),
    "skops": ("skops", "skl2onnx"),
}
_BY_NAME: Final = (
    "write a function without arguments that returns the model, and name it: FILE.py:NAME"
)
_PICKLE: Final = (
    "a pickle, which runs code of whoever wrote it, so it is never loaded: save a scikit-learn "
    f"model with skops.io.dump, or {_BY_NAME}"
)
_WEIGHTS: Final = f"a PyTorch file, which is never unpickled: {_BY_NAME}"
_TENSORFLOW: Final = "a TensorFlow or Keras file: export it with tf2onnx"
# By the end of a file's name: why it is not read, and what to do.
_REFUSED: Final = {
    **dict.fromkeys((".pkl", ".pickle", ".joblib", ".sav"), _PICKLE),
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin", ".pt2"), _WEIGHTS),
    **dict.fromkeys((".h5", ".hdf5", ".keras", ".pb", ".tflite"), _TENSORFLOW),
    ".safetensors": f"weights without a graph: {_BY_NAME}",
    ".onnx": "ONNX already: name it as the `model` of a variant, and `inferway check` reads it",
}


class LoadedModel(NamedTuple):
    """An object that a source named.

    Attributes
    ----------
    model
        The framework's object.
    module
        The user's file it comes from; None of a model's own file.
    """

    model: Any
    module: ModuleType | None


def load(source: str, trust: Sequence[str] = ()) -> LoadedModel:
    """Load a model; what is needed for its export and is not installed is said before.

    Parameters
    ----------
    source
        ``FILE.py:NAME``, ``FILE.skops``, or XGBoost's ``FILE.ubj`` or ``FILE.json``.
    trust
        Types that a skops file may hold besides those that skops trusts.

    Raises
    ------
    ExportError
        When the source is of no such form, is missing, or does not load.
    RuntimeError
        When what its export needs is not installed.
    """
    file, colon, name = source.rpartition(":")
    if colon and file.endswith(".py"):
        return _named(Path(file), name)
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in _REFUSED:
        raise ExportError(f"{path}: {_REFUSED[suffix]}")
    if suffix == ".py":
        raise ExportError(f"{path}: name the model in it, as in {path}:model")
    if suffix not in (".skops", ".ubj", ".json"):
        raise ExportError(
            f"{source!r} is no model: expected FILE.py:NAME, FILE.skops, FILE.ubj or FILE.json"
        )
    if not path.is_file():
        raise ExportError(f"there is no file {path}")
    if suffix == ".skops":
        require(path, "skops")
        return LoadedModel(_from_skops(path, trust), None)
    require(path, "xgboost")
    from inferway.exporting.boosting import read_booster

    return LoadedModel(read_booster(path), None)


def framework(model: object) -> str | None:
    """Find the module of the framework that an object is a model of; None where it is of none."""
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    if ("torch", "Module") in bases:
        return "torch"
    if bases & {("xgboost", "XGBModel"), ("xgboost", "Booster")}:
        return "xgboost"
    return "sklearn" if ("sklearn", "BaseEstimator") in bases else None


def require(path: Path | str, used: str) -> None:
    """Raise RuntimeError where a framework, or what its export needs, is not installed."""
    if used in FRAMEWORKS and importlib.util.find_spec(used) is None:
        package = {"sklearn": "scikit-learn"}.get(used, used)
        raise RuntimeError(
            f"{path} needs {FRAMEWORKS[used]}, which is not installed: pip install {package}"
        )
    for module in _NEEDED[used]:
        if importlib.util.find_spec(module) is None:
            raise RuntimeError(
                f"exporting {path} needs {module}, which is in the extra `export`: "
                f"{installing('export')}"
            )


def _from_skops(path: Path, trust: Sequence[str]) -> Any:
    from skops import io

    try:
        untrusted = [one for one in io.get_untrusted_types(file=path) if one not in trust]
        if not untrusted:
            return io.load(path, trusted=list(trust))
    except Exception as error:  # a damaged archive fails in many ways
        raise ExportError(f"{path}: not a whole skops file: {first_line(error)}") from error
    flags = " ".join(f"--trust {one}" for one in untrusted)
    raise ExportError(
        f"{path} holds types that skops does not trust: {', '.join(untrusted)}; if you know where "
        f"the file comes from, allow them with {flags}"
    )


def _named(path: Path, name: str) -> LoadedModel:
    if not path.is_file():
        raise ExportError(f"there is no file {path}")
    if not name.isidentifier():
        raise ExportError(f"{path}:{name}: {name!r} is not a name of Python")
    for used in sorted(_imported(path)):
        require(path, used)
    with running(path):
        module = _module(path)
        if not hasattr(module, name):
            known = [one for one in vars(module) if not one.startswith("_")]
            raise ExportError(f"{path} has no {name!r}; {nearest(name, known)}")
        model = getattr(module, name)
        if framework(model) is None and inspect.isfunction(model):
            model = _called(path, name, model)
    if framework(model) is None:
        what = f"the class {name}" if isinstance(model, type) else f"{type(model).__name__}"
        raise ExportError(
            f"{path}:{name} is {what}, not a model: expected an estimator of scikit-learn, a "
            "torch.nn.Module, a model of XGBoost, or a function without arguments that returns one"
        )
    return LoadedModel(model, module)


def _imported(path: Path) -> set[str]:
    """Find the frameworks that a file imports anywhere, without running it."""
    try:
        tree = syntax_tree(path.read_bytes())
    except OSError as error:
        raise ExportError(f"{path}: cannot read the file: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise ExportError(f"{path} does not load: {_as_python(error)}") from None
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name.partition(".")[0] for alias in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found & set(FRAMEWORKS)


def _module(path: Path) -> ModuleType:
    """Run a user's file as a module of its own, named by its place and content."""
    mark = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"inferway_export_{path.stem}_{mark}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # classes look up where they were defined
    try:
        run_source(path, module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ExportError(
            f"{path} does not load: {_as_python(error)}{_line(error, path)}"
        ) from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _called(path: Path, name: str, function: Any) -> Any:
    needed = [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    if needed:
        raise ExportError(
            f"{path}:{name} takes {', '.join(needed)}; expected a function without arguments that "
            "returns the model"
        )
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise ExportError(
            f"{path}:{name} fails: {_as_python(error)}{_line(error, path)}"
        ) from error


def _as_python(error: BaseException) -> str:
    return first_line(error)


def _line(error: BaseException, path: Path) -> str:
    """Say where in the user's file an error arose."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in frames if Path(one.filename).resolve() == path.resolve()]
    return f" ({path.name}, line {lines[-1]})" if lines else ""
