"""Classes in Python files of the user's own, which a file names as ``./mine.py:Model``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from inferway.deployment.errors import refuse
from inferway.files import syntax_tree

OWN_CLASS: Final = r"^.+\.py:[A-Za-z_][A-Za-z0-9_]*$"
"""Pattern of the name of one."""


def file_of_class(named: str, folder: Path) -> Path:
    """Find the file that a class is named in, and look whether the class may be there.

    The file is read and not run.

    Parameters
    ----------
    named
        Of the form `OWN_CLASS`.
    folder
        Where a relative file name starts.

    Raises
    ------
    pydantic_core.PydanticCustomError
        Where there is no such file, it is not Python, or it has no such name.
    """
    file, _, name = named.rpartition(":")
    path = folder / file
    if not path.is_file():
        raise refuse(f"no such file: {path}")
    try:
        module = syntax_tree(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        number = error.lineno if isinstance(error, SyntaxError) else None
        line = f" in line {number}" if number is not None else ""
        raise refuse(f"{path} is not Python{line}") from None
    names = list(dict.fromkeys(_bound_in(module)))
    if name not in names and "*" not in names:
        raise refuse(f"{file} has no {name}; it has {', '.join(names) or 'nothing'}")
    return path


def _bound_in(block: ast.AST) -> Iterator[str]:
    """List the names that may be classes of a module, those under a condition included."""
    for statement in ast.iter_child_nodes(block):
        match statement:
            case ast.ClassDef(name=name):
                yield name
            case ast.ImportFrom(names=imported):
                yield from (alias.asname or alias.name for alias in imported)
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from _bound_in(statement)
