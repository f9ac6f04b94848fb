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
import sys
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from inferway.files import home_folder, write_whole

_CALLS = ("choose", "act", "step")
_PLAIN = (bool, int, float, str, bytes, type(None))
# Modules that objects may be imported from under the very name that they have.
_HOMES = ("inferway.site", "inferway.dispatch.contract", "typing", "numpy", "math")


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
    file = getattr(module, "__file__", None) or ""
    at_top = getattr(module, policy.__qualname__, None) is policy
    if file.endswith(".py") and getattr(module, "__spec__", None) is not None and at_top:
        return f"{Path(file).resolve()}:{policy.__qualname__}"
    text = _written(policy)
    mark = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = home_folder("cache") / "policies" / mark / f"{policy.__name__}.py"
    if not path.is_file():
        write_whole(path, text)
    return f"{path}:{policy.__name__}"


def _written(policy: type) -> str:
    """Write a class and what it refers to, each before what refers to it, as a file."""
    space = vars(sys.modules[policy.__module__])
    here = space["__name__"]
    known, imports, parts = {policy.__name__}, set(), []

    def define(found: Any) -> None:
        source = _source_of(found)
        if source is None:
            raise ValueError(
                f"the source of {found.__name__} is not known: put the policy into a file and name "
                "it as FILE.py:CLASS"
            )
        if isinstance(found, FunctionType) and found.__closure__:
            raise ValueError(f"{found.__name__} uses variables of a function around it")
        for one in ast.walk(ast.parse(source)):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                refer(one.id, found.__name__)
        parts.append(source.rstrip())

    def refer(name: str, by: str) -> None:
        if name in known or hasattr(builtins, name) or name not in space:
            return
        known.add(name)
        value = space[name]
        module, own_name = getattr(value, "__module__", here), getattr(value, "__name__", "")
        homes = [one for one in _HOMES if getattr(sys.modules.get(one), name, None) is value]
        if isinstance(value, ModuleType):
            imports.add(f"import {value.__name__} as {name}")
        elif _is_plain(value):
            parts.append(f"{name} = {value!r}")
        elif module != here and getattr(sys.modules.get(module), own_name, None) is value:
            imports.add(f"from {module} import {own_name} as {name}")
        elif isinstance(value, type | FunctionType):
            define(value)
        elif isinstance(compiled := getattr(value, "py_func", None), FunctionType):
            define(compiled)  # its decorator stands in its source
        elif homes:
            imports.add(f"from {homes[0]} import {name}")
        else:
            raise ValueError(
                f"{by} refers to {name}, a {type(value).__name__}, which a policy's file cannot "
                "hold: make it a number, or a field that `build` fills"
            )

    define(policy)
    return "\n\n".join(["\n".join(sorted(imports)), *parts]) + "\n"


def _source_of(found: Any) -> str | None:
    """Find the text of a class or function; of a notebook's as well, where classes know no file."""
    if isinstance(found, FunctionType):
        try:
            return textwrap.dedent(inspect.getsource(found))
        except OSError:
            return None
    members = [getattr(one, "__func__", one) for one in vars(found).values()]
    for code in (one.__code__ for one in members if isinstance(one, FunctionType)):
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
