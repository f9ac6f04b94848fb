"""Where finished points are kept: one line of JSON each, known by the code that made it."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from inferway.experiments.runner import Point
from inferway.unreadable import UNREADABLE

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
        for file in [place] if place.suffix == ".py" else sorted(place.rglob("*.py")):
            digest.update(_meaning(file))
    return digest.hexdigest()[:16]


@cache
def _meaning(file: Path) -> bytes:
    """A file's syntax tree without its docstrings."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                    node.body = rest
    return f"{file.name}\n{ast.dump(tree)}".encode()


def key(point: Point, code: str) -> str:
    """What a stored row is known by: the call, its arguments and the code's version."""
    call = f"{point.call.__module__}.{point.call.__qualname__}"
    content = json.dumps([call, point.arguments, code], sort_keys=True, allow_nan=False)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


class ResultStore:
    """The rows of one study at one scale, or of one sweep, in one folder.

    Parameters
    ----------
    folder
        Made when the first row comes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "points.jsonl"

    def read(self) -> dict[str, dict[str, Any]]:
        """Results by key. A line cut short by a crash is left out."""
        return {name: result for name, result, _ in self._lines()}

    def add(self, name: str, point: Point, result: Mapping[str, Any], seconds: float = 0.0) -> None:
        """Keep one result and the CPU time that it took, on the disk when this returns."""
        record = {
            "key": name,
            "label": dict(point.label),
            "cpu_s": round(seconds, 3),
            "result": _json(dict(result)),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab+") as file:
            # After a crash in the middle of a line the next one begins on its own.
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            cut = end > 0 and file.read(1) != b"\n"
            line = json.dumps(record, allow_nan=False)
            file.write(f"{chr(10) * cut}{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def keep(self, names: Sequence[str]) -> None:
        """Forget all but these: rows of other settings or of older code."""
        wanted = set(names)
        lines = [f"{line}\n" for name, _, line in self._lines() if name in wanted]
        if self.file.exists():
            fresh = self.file.with_suffix(".new")
            fresh.write_text("".join(lines), encoding="utf-8")
            fresh.replace(self.file)

    def _lines(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Key, result and text of each whole line."""
        lines = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        for line in lines.splitlines():
            try:
                record = json.loads(line, object_hook=_number)
                row = record["key"], dict(record["result"]), line
            except (*UNREADABLE, KeyError, TypeError):
                continue
            yield row

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder; RuntimeError where another run does."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RuntimeError(
                    f"another run writes to {self.folder}: wait for it, or name another --out"
                ) from None
            yield


def _json(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON has them; not-a-number and infinities by name."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if isinstance(value, dict):
        return {name: _json(one) for name, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _number(value: dict[str, Any]) -> Any:
    """Turn what `_json` made of not-a-number and infinities back."""
    return float(value["float"]) if value.keys() == {"float"} else value
