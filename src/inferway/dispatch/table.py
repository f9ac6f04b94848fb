"""Which name in a deployment file means which policy. Policies are imported when asked for."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final, cast

from inferway.dispatch.contract import Policy
from inferway.dispatch.policy_fault import place_of
from inferway.site.compiled import MARK
from inferway.site.sources import code_digest

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

_ARGUMENTS: Final = {
    "choose": ("self", "site", "request", "draw"),
    "learn": ("self", "site", "event"),
    "pull": ("self", "site", "server", "draw"),
}
"""How a policy's functions are called."""


def policy_class(name: str, folder: Path | None = None) -> type[Policy]:
    """The class of a policy.

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
        found = getattr(importlib.import_module(f"inferway.dispatch.{file}"), attribute)
        return cast("type[Policy]", found)
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
    _check_arguments(path, found)
    # Numba tells types apart by their printed name: two files' classes may share theirs.
    found.__name__ = f"{attribute}_{module.__name__}"
    return cast("type[Policy]", found)


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
    found = policy_class(name, folder)
    try:
        return found.build(fleet, target=target, rate_per_s=rate_per_s, **options)
    except (ValueError, MemoryError):
        raise
    except Exception as error:
        said = str(error) if isinstance(error, TypeError) else _as_python(error)
        raise ValueError(f"policy {name}: {said}{_where(error, found)}") from error


def takes(name: str, option: str, folder: Path | None = None) -> bool:
    """Whether a policy's `build` names an option; ValueError as `policy_class`."""
    found = policy_class(name, folder)
    return option in inspect.signature(found.build).parameters


def _module(path: Path) -> ModuleType:
    """A user's file as a module, named by its code so that an edit is seen.

    Files that say the same in two folders are one module, unless they look at where they are.
    """
    if not path.is_file():
        raise ValueError(f"there is no policy file {path}")
    content = path.read_bytes()
    place = hashlib.sha256(str(path).encode()).hexdigest() if b"__file__" in content else ""
    name = f"inferway_policy_{path.stem}_{place[:MARK]}_{code_digest(content)[:MARK]}"
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
        said = f"{_as_python(error)}{place_of(error, path)}"
        raise ValueError(f"{path} does not load: {said}") from error
    return module


def _as_python(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _where(error: Exception, policy: type) -> str:
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    return place_of(error, Path(file)) if file else ""


def _check_arguments(path: Path, policy: type) -> None:
    """Refuse functions that the contract calls with more or fewer arguments."""
    for name, wanted in _ARGUMENTS.items():
        function = vars(policy).get(name)
        if not isinstance(function, FunctionType):
            continue
        try:
            inspect.signature(function).bind(*wanted)
        except TypeError:
            raise ValueError(
                f"{path}: {policy.__name__}.{name} has to take ({', '.join(wanted)}) "
                f"(line {function.__code__.co_firstlineno})"
            ) from None
