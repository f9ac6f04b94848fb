"""A policy class of the running program, a notebook's cell included, as a policy file.

Deployment files name a user's policy as ``FILE.py:CLASS``. A class that stands in a module of its
own already has such a name. One of a notebook or of a script is written to a file with all that it
refers to, named by its content: from then on it is compiled, cached and recorded like any other.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_CALLS = ("choose", "act", "step")
_PLAIN = (bool, int, float, str, bytes, type(None))


def policy_name(policy: str | type) -> str:
    """Name a policy as a deployment file does.

    Parameters
    ----------
    policy
        A name, which comes back as it is; or a class with `choose` (dispatch), `act` (scheduling)
        or `step` (placement).

    Returns
    -------
    str
        ``FILE.py:CLASS`` of a class.

    Raises
    ------
    ValueError
        Where the class is no policy, its source is not known, or it refers to something that no
        file can say.
    """
    if isinstance(policy, str):
        return policy
    if not (isinstance(policy, type) and any(hasattr(policy, call) for call in _CALLS)):
        name = getattr(policy, "__name__", policy)
        raise ValueError(f"a policy is a name or a class with `choose`, not {name!r}")
    module = sys.modules.get(policy.__module__)
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    at_top = getattr(module, policy.__qualname__, None) is policy
    if file and spec is not None and module is not None and at_top and file.endswith(".py"):
        return f"{Path(file).resolve()}:{policy.__qualname__}"
    text = _Writing(policy).text()
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = _folder() / mark / f"{policy.__name__}.py"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    return f"{path}:{policy.__name__}"


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "inferway" / "policies"


class _Writing:
    """Collects a class and what it refers to, each before what refers to it."""

    def __init__(self, policy: type) -> None:
        self._policy = policy
        self._globals = vars(sys.modules[policy.__module__])
        self._known: set[str] = set()
        self._imports: list[str] = []
        self._parts: list[str] = []

    def text(self) -> str:
        """The file."""
        self._known.add(self._policy.__name__)
        self._define(self._policy)
        return "\n\n".join(["\n".join(sorted(set(self._imports))), *self._parts]) + "\n"

    def _define(self, found: Any) -> None:
        source = _source_of(found)
        if source is None:
            raise ValueError(
                f"the source of {found.__name__} is not known: put the policy into a file and name "
                "it as FILE.py:CLASS"
            )
        tree = ast.parse(source)
        inner = found.__closure__ if isinstance(found, FunctionType) else None
        if inner:
            raise ValueError(f"{found.__name__} uses variables of a function around it")
        for name in _read_names(tree):
            self._refer(name, found.__name__)
        self._parts.append(source.rstrip())

    def _refer(self, name: str, by: str) -> None:
        if name in self._known or hasattr(builtins, name) or name not in self._globals:
            return
        self._known.add(name)
        value = self._globals[name]
        here = self._globals["__name__"]
        if isinstance(value, ModuleType):
            self._imports.append(f"import {value.__name__} as {name}")
        elif _is_plain(value):
            self._parts.append(f"{name} = {value!r}")
        elif getattr(value, "__module__", here) != here and _importable(value):
            self._imports.append(f"from {value.__module__} import {value.__name__} as {name}")
        elif isinstance(value, type | FunctionType):
            self._define(value)
        elif isinstance(compiled := getattr(value, "py_func", None), FunctionType):
            self._define(compiled)  # its decorator stands in its source
        elif (home := _home_of(value, name)) is not None:
            self._imports.append(f"from {home} import {name}")
        else:
            raise ValueError(
                f"{by} refers to {name}, a {type(value).__name__}, which a policy's file cannot "
                "hold: make it a number, or a field that `build` fills"
            )


def _source_of(found: Any) -> str | None:
    """Find the text of a class or function; of a notebook's as well, where classes know no file."""
    if isinstance(found, FunctionType):
        try:
            return textwrap.dedent(inspect.getsource(found))
        except OSError:
            return None
    inside: list[Any] = [one for one in vars(found).values() if isinstance(one, FunctionType)]
    inside += [
        one.__func__ for one in vars(found).values() if isinstance(one, classmethod | staticmethod)
    ]
    for code in (one.__code__ for one in inside):
        lines = linecache.getlines(code.co_filename)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == found.__name__:
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                last = node.end_lineno or first
                if first <= code.co_firstlineno <= last:
                    return textwrap.dedent("".join(lines[first - 1 : last]))
    return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _importable(value: Any) -> bool:
    module = sys.modules.get(value.__module__)
    return getattr(module, getattr(value, "__name__", ""), None) is value


def _home_of(value: Any, name: str) -> str | None:
    """A module of Inferway or NumPy that has this very object under this name."""
    for module in ("inferway.site", "inferway.dispatch.contract", "typing", "numpy", "math"):
        if getattr(sys.modules.get(module), name, None) is value:
            return module
    return None


def _read_names(tree: ast.AST) -> Iterator[str]:
    seen = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in seen:
            seen.add(node.id)
            yield node.id
