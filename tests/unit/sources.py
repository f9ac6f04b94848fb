"""The package's modules as they are written: which there are, and what each of them imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import inferway

PACKAGE = Path(inferway.__file__).parent


class Import(NamedTuple):
    """`module` imports `target` at a line; `eager` if that happens when `module` is imported."""

    module: str
    target: str
    line: int
    eager: bool


def module_name(file: Path, root: Path) -> str:
    parts = ("inferway", *file.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_statements(
    tree: ast.AST, eager: bool = True
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Find them all, and whether each is carried out when its module is imported."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node, eager
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from import_statements(node, eager=False)
            case ast.If():
                runs = "TYPE_CHECKING" not in ast.unparse(node.test)
                yield from import_statements(node, eager and runs)
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from import_statements(node, eager)


class Facts(NamedTuple):
    """What tests ask of a module, so that it is parsed once for all of them.

    Attributes
    ----------
    imports
        Its import statements, and whether each is carried out when the module is imported.
    classes
        Names of the classes that it defines at the top.
    constructors
        Each `__init__` that is written out, by its class, and its parameters besides `self`.
    """

    imports: tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]
    classes: tuple[str, ...]
    constructors: tuple[tuple[str, int], ...]


@cache
def facts(source: str) -> Facts:
    tree = ast.parse(source)
    constructors = []
    for node in ast.walk(tree):
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                given = method.args
                count = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
                constructors.append((node.name, count))
    classes = (node.name for node in tree.body if isinstance(node, ast.ClassDef))
    return Facts(tuple(import_statements(tree)), tuple(classes), tuple(constructors))


def imports(source: str, module: str, known: frozenset[str]) -> Iterator[Import]:
    """Find the imports of Inferway's own modules, as absolute names of modules."""
    for node, eager in facts(source).imports:
        match node:
            case ast.Import(names=names):
                targets = [alias.name for alias in names]
            case ast.ImportFrom(level=0, module=str(base), names=names):
                targets = [
                    inner if (inner := f"{base}.{alias.name}") in known else base for alias in names
                ]
            case ast.ImportFrom(level=level, module=base, names=names):
                # A module's own package is level 1; packages' __init__ are not told apart here
                # because nothing in Inferway imports relatively.
                raise AssertionError(f"{module}:{node.lineno}: relative import (level {level})")
        for target in targets:
            if target == "inferway" or target.startswith("inferway."):
                yield Import(module, target, node.lineno, eager)


@cache
def modules() -> dict[str, str]:
    """Read every module; its source by its name."""
    return {
        module_name(file, PACKAGE): file.read_text(encoding="utf-8")
        for file in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def all_imports() -> list[Import]:
    known = frozenset(modules())
    return [
        found for module, source in modules().items() for found in imports(source, module, known)
    ]
