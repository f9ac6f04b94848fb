"""Which version of the code made a result: a hash that comments and docstrings do not change."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def version(places: Sequence[str | Path]) -> str:
    """Hash of what the code at these places does, 16 hexadecimal digits.

    Parameters
    ----------
    places
        Files or folders, relative to the package where they are strings.
    """
    digest = hashlib.sha256()
    for place in sorted({_PACKAGE / place for place in places}):
        files = [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))
        for file in files:
            digest.update(_meaning(file))
    return digest.hexdigest()[:16]


@cache
def _meaning(file: Path) -> bytes:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if not isinstance(node, _DOCUMENTED) or not node.body:
            continue
        match node.body[0]:
            case ast.Expr(value=ast.Constant(value=str())):
                node.body = node.body[1:]
    return f"{file.name}\n{ast.dump(tree)}".encode()
