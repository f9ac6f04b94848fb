"""Which name in a deployment file means which policy. Policies are imported when asked for."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from inferway.dispatch.contract import Policy

POLICIES = {
    "fastest-only": "fastest_only:FastestOnly",
    "most-accurate-only": "most_accurate_only:MostAccurateOnly",
    "jiq-fast": "jiq_fast:JiqFast",
    "jiq-accurate": "jiq_accurate:JiqAccurate",
    "r-jiq": "r_jiq:RJiq",
    "r-jsq": "r_jsq:RJsq",
    "r-jsq-d": "r_jsq_d:RJsqD",
    "tad": "tad:Tad",
    "tad-op": "tad_op:TadOp",
    "priced": "priced:Priced",
    "deadline": "deadline:Deadline",
    "least-cost": "least_cost:LeastCost",
    "alias": "alias:Alias",
    "steered": "steered:Steered",
    "sq": "single_queue:SingleQueue",
    "hw-e": "early_drop:EarlyDrop",
}


def policy_class(name: str, folder: Path | None = None) -> tuple[type[Policy], tuple[Path, ...]]:
    """The class of a policy, and the user's files that it is made of, if any.

    Parameters
    ----------
    name
        A name of `POLICIES`, or ``./file.py:Class``.
    folder
        Where a relative file name starts; the current folder by default.

    Raises
    ------
    ValueError
        Where there is no such name, file or class, or the class has no `choose` or `build`.
    """
    if name in POLICIES:
        file, attribute = POLICIES[name].split(":")
        return getattr(importlib.import_module(f"inferway.dispatch.{file}"), attribute), ()
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(
            f"unknown policy {name!r}: expected one of {', '.join(POLICIES)}, or ./file.py:Class"
        )
    path = ((folder or Path()) / file).resolve()
    module = _module(path)
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ValueError(f"{path} has no class {attribute!r}")
    if not (issubclass(found, tuple) and hasattr(found, "_fields")):
        raise ValueError(f"{path}: {attribute} is not a NamedTuple, which a policy has to be")
    for method in ("build", "choose"):
        if not hasattr(found, method):
            raise ValueError(f"{path}: {attribute} has no `{method}`, which a policy needs")
    # Numba tells types apart by their printed name: two files' classes may share theirs.
    found.__name__ = f"{attribute}_{module.__name__}"
    return cast("type[Policy]", found), (path, *_beside(path))


def build_policy(
    name: str,
    fleet: Any,
    *,
    target: float | None,
    rate_per_s: float | None,
    folder: Path | None = None,
    **options: Any,
) -> Policy:
    """A policy by its name, made for a fleet; ValueError for an unknown name or option."""
    found, _ = policy_class(name, folder)
    try:
        return found.build(fleet, target=target, rate_per_s=rate_per_s, **options)
    except TypeError as error:
        raise ValueError(f"policy {name}: {error}") from error


def takes(name: str, option: str, folder: Path | None = None) -> bool:
    """Whether a policy's `build` names an option; ValueError as `policy_class`."""
    found, _ = policy_class(name, folder)
    return option in inspect.signature(found.build).parameters


def _beside(path: Path) -> list[Path]:
    """Other files of the user's that are loaded from the policy's folder: it may call into them."""
    folder, packages = f"{path.parent}{os.sep}", f"{os.sep}site-packages{os.sep}"
    loaded = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    # As text: with paths, a thousand modules take a tenth of a second.
    files = {
        Path(file)
        for file in loaded
        if file and file.endswith(".py") and file.startswith(folder) and packages not in file
    }
    return sorted(files - {path})


def _module(path: Path) -> ModuleType:
    """A user's file as a module, named by its path and content so that an edit is seen."""
    if not path.is_file():
        raise ValueError(f"there is no policy file {path}")
    content = path.read_bytes()
    mark = hashlib.sha256(str(path).encode() + b"\0" + content).hexdigest()[:12]
    name = f"inferway_policy_{path.stem}_{mark}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ValueError(f"{path} does not load: {type(error).__name__}: {error}") from error
    return module
