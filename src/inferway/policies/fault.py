"""Faults of a user's policy, in one sentence with its file and line.

Numba tells of its own frames, and compiled code that divides by zero of none.
"""

from __future__ import annotations

import ast
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from numba.core.errors import NumbaError, UnsupportedBytecodeError

from inferway.files import syntax_tree

COMPILE_ERRORS: Final = (NumbaError, UnsupportedBytecodeError)
"""What Numba raises for code that it does not compile."""

_LONGEST: Final = 200
_COLORS: Final = re.compile("\x1b\\[[0-9;]*m")
_FRAME: Final = re.compile(r'^\s*File "([^"]+)", line (\d+)')
_NOISE: Final = re.compile(
    r"\s*(During: |raised from|\* |- Of which|Overload |Operator Overload|Intrinsic |With argument|"
    r"No match|There (are|is) \d+ candidate|Rejected as|Failed in|Use of unsupported|$)"
)
_UNKNOWN_CALL: Final = re.compile(r"No implementation of function .* found for signature:")
_PYTHON: Final = ("build", "retune")
"""Functions of a policy that are never compiled."""


def compile_reason(error: Exception, policy: type) -> str:
    """Numba's complaint about a policy's code, and its place; the rest is its own frames.

    Parameters
    ----------
    error
        One of `COMPILE_ERRORS`.
    policy
        The class.
    """
    text = _plain(_COLORS.sub("", str(error)), policy)
    file = _file(policy)
    said, line = _said(text, file.name if file else None)
    if "(none, int64)" in said or (line is None and "(none, int64)" in text):
        said, line = "`choose` returns no number on some way through it", _line_of(policy, "choose")
    elif said.startswith("All arguments must be Sets"):
        said, line = "`choose` returns what is no number", _line_of(policy, "choose")
    named = re.search(r"NameError: (name '(\w+)' is not defined)", text)
    if named is not None:
        said, line = named[1], _line_reading(policy, named[2])
    if "with (context manager)" in said:
        line = next(_lines(policy, ast.With), None)
    if file is None:
        return said[:_LONGEST]
    return f"{said[:_LONGEST]} ({file.name}{f', line {line}' if line else ''})"


def division(error: BaseException, policy: type) -> str | None:
    """Line at which a user's policy has divided by zero; None where it has no division.

    Compiled code does not say which line it was, so that there may be several to choose from.
    """
    if not isinstance(error, ZeroDivisionError):
        return None
    file = _file(policy)
    lines = sorted(set(_lines(policy, ast.BinOp)))
    if file is None or not lines:
        return None
    *others, last = map(str, lines)
    which = f"{', '.join(others)} or {last}" if others else last
    return f"divides by zero ({file.name}, line {which})"


def place_of(error: BaseException, file: Path) -> str:
    """Place in a policy's file where plain Python has failed, such as ``(mine.py, line 12)``."""
    if isinstance(error, SyntaxError):
        return ""  # it says so itself
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in frames if Path(one.filename) == file]
    return f" ({file.name}, line {lines[-1]})" if lines else ""


def _said(text: str, name: str | None) -> tuple[str, int | None]:
    """The last thing said before the first place in a file; one of the policy's file, if any is."""
    lines = text.splitlines()
    places = [(i, found) for i, line in enumerate(lines) if (found := _FRAME.match(line))]
    own = [one for one in places if name is not None and Path(one[1][1]).name == name]
    for i, found in own or places[:1]:
        before = [one for one in range(i) if not _NOISE.match(lines[one])]
        if not before:
            continue
        said = lines[before[-1]].strip()
        if said.startswith(">>>"):
            said = f"there is no {said[3:].strip()}"
        elif _UNKNOWN_CALL.match(said):
            said = "there is no such call"
        said = re.sub(r"^\w*(Error|Type): ", "", said)
        return re.sub(r", defined at .*$", "", said), int(found[2]) if own else None
    raised = re.search(r"^(.*?)\.* Raised from (?:None|.*\((\d+)\))", " ".join(text.split()))
    if raised is not None:
        return raised[1], int(raised[2]) if raised[2] else None
    return " ".join(text.split()), None


def _plain(text: str, policy: type) -> str:
    """Shorten the types that are our own and as long as a page."""
    own = re.escape(policy.__name__)
    text = re.sub(r"\bSite\[\w+\]", "site", re.sub(rf"{own}\[\w+\]", _name(policy), text))
    for name, shown in (("Request", "request"), (own, _name(policy))):
        pattern = re.compile(rf"{name}\(")
        while (found := pattern.search(text)) is not None:
            end, depth = found.end(), found[0].count("(")
            while depth and end < len(text):
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            text = text[: found.start()] + shown + text[end:]
    text = re.sub(r"Literal\[str\]\((.*?)\)", r"'\1'", text)
    return re.sub(r"Literal\[\w+\]\((.*?)\)", r"\1", text).replace("unicode_type", "str")


def _file(policy: type) -> Path | None:
    """The file of a user's policy; None of those that come with Inferway."""
    if policy.__module__.startswith("inferway."):
        return None
    found = getattr(sys.modules.get(policy.__module__), "__file__", None)
    return Path(found) if found else None


def _functions(policy: type) -> Iterator[ast.FunctionDef]:
    """Functions of a policy's file that may be compiled: its class's functions, and those of no
    class.
    """
    file = _file(policy)
    try:
        tree = syntax_tree(file.read_bytes()) if file else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef) and node.name == _name(policy):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name not in _PYTHON:
                    yield inner


def _name(policy: type) -> str:
    """The class as its file names it."""
    return policy.__name__.partition("_inferway_policy")[0]


def _line_of(policy: type, function: str) -> int | None:
    return next((node.lineno for node in _functions(policy) if node.name == function), None)


def _lines(policy: type, kind: type[ast.BinOp] | type[ast.With]) -> Iterator[int]:
    """Lines of what is compiled with a ``with``, or a division by more than a number."""
    for function in _functions(policy):
        for node in ast.walk(function):
            if isinstance(node, ast.With) and kind is ast.With:
                yield node.lineno
            if not isinstance(node, ast.BinOp | ast.AugAssign) or kind is not ast.BinOp:
                continue
            by = node.right if isinstance(node, ast.BinOp) else node.value
            if _divides(node.op) and not (isinstance(by, ast.Constant) and by.value):
                yield node.lineno


def _divides(operator: ast.operator) -> bool:
    return isinstance(operator, ast.Div | ast.FloorDiv | ast.Mod)


def _line_reading(policy: type, name: str) -> int | None:
    for function in _functions(policy):
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id == name:
                return node.lineno
    return None
