"""Finds the class of a policy: one of ours by its name, or a user's as ``./file.py:Class``.

A class object of the running program comes here by the name of its file
(`inferway.deployment.policies.policy_name`). Our own are rows of `inferway.deployment.policies`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from inferway.deployment.policies import ROWS, Kind, builtin_class
from inferway.files import run_source
from inferway.policies.fault import place_of
from inferway.site.cache import code_digest
from inferway.site.compiled import MARK

_CALLS: Final[dict[Kind, dict[str, tuple[str, ...]]]] = {
    "dispatch": {
        "choose": ("self", "site", "request", "draw"),
        "learn": ("self", "site", "event"),
        "pull": ("self", "site", "server", "draw"),
    },
    "scheduling": {"observe": ("self", "site", "signal"), "act": ("self", "observation")},
    "placement": {"step": ("self", "observation")},
}
"""How a policy's functions are called."""
_NEEDED: Final[dict[Kind, tuple[str, ...]]] = {
    "dispatch": ("build", "choose"),
    "scheduling": ("build", "observe", "act"),
    "placement": ("build", "step"),
}


def policy_class(kind: Kind, name: str, folder: Path | None = None) -> Any:
    """Find the class of a policy.

    Parameters
    ----------
    kind
        ``dispatch``, ``scheduling`` or ``placement``.
    name
        A name of ours, or ``./file.py:Class``.
    folder
        Where a relative file name starts; the current folder by default.

    Raises
    ------
    ValueError
        Where there is no such name, file or class, or the class lacks what the contract needs.
    """
    if name in ROWS[kind]:
        return builtin_class(kind, name)
    word = "" if kind == "dispatch" else f"{kind} "
    file, colon, attribute = name.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ValueError(
            f"unknown {word}policy {name!r}: expected one of {', '.join(ROWS[kind])}, or "
            "./file.py:Class"
        )
    path = ((folder or Path()) / file).resolve()
    module = _module(path)
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ValueError(f"{path} has no class {attribute!r}")
    compiled = kind == "dispatch"
    if compiled and not (issubclass(found, tuple) and hasattr(found, "_fields")):
        raise ValueError(f"{path}: {attribute} is not a NamedTuple, which a policy has to be")
    for method in _NEEDED[kind]:
        if not hasattr(found, method):
            raise ValueError(f"{path}: {attribute} has no `{method}`, which a policy needs")
    _check_arguments(kind, path, found)
    if compiled:
        # Numba tells types apart by their printed name: two files' classes may share theirs.
        found.__name__ = f"{attribute}_{module.__name__}"
    return found


def as_python(error: Exception) -> str:
    """Write an error as Python's last line does."""
    return f"{type(error).__name__}: {error}"


def fault_of(error: Exception, policy: type) -> str:
    """Say where in a policy's own file an error arose; empty where it is not of that file."""
    file = getattr(sys.modules.get(policy.__module__), "__file__", None)
    return place_of(error, Path(file)) if file else ""


def _module(path: Path) -> ModuleType:
    """Load a user's file as a module, named by its code so that an edit is seen.

    Files that say the same in two folders are one module, unless they look at where they are.
    """
    if not path.is_file():
        raise ValueError(f"there is no policy file {path}")
    content = path.read_bytes()
    place = hashlib.sha256(str(path).encode()).hexdigest() if b"__file__" in content else ""
    name = f"inferway_policy_{path.stem}_{place[:MARK]}_{_digest(content)[:MARK]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        run_source(path, module)
    except Exception as error:
        del sys.modules[name]
        said = f"{as_python(error)}{place_of(error, path)}"
        raise ValueError(f"{path} does not load: {said}") from error
    return module


@lru_cache(maxsize=64)
def _digest(content: bytes) -> str:
    """Hash a file's code once: a policy is asked for again and again, by every run of a sweep."""
    return code_digest(content)


def _check_arguments(kind: Kind, path: Path, policy: type) -> None:
    """Refuse functions that the contract calls with more or fewer arguments."""
    for name, wanted in _CALLS[kind].items():
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
