"""Points, grids of them, what came of each, and the store that keeps it."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from inferway.files import syntax_tree, write_whole
from inferway.unreadable import UNREADABLE


@dataclass(frozen=True)
class Point:
    """One call that gives one row of results: a scenario and a seed, as a rule.

    Attributes
    ----------
    label
        What tells its row from the others: the row's first columns.
    call
        A function at the top of a module; it returns a flat mapping of numbers, strings, booleans
        or lists of numbers.
    arguments
        Its keyword arguments, in values that JSON has: they are what a stored row is known by.
    seconds
        About how long it takes on one core; only the time left depends on it.
    """

    label: Mapping[str, Any]
    call: Callable[..., Any]
    arguments: Mapping[str, Any]
    seconds: float = 1.0


def grid(
    call: Callable[..., Any],
    arguments: Mapping[str, Any] | Callable[..., Mapping[str, Any]],
    seconds: float | Callable[..., float],
    *,
    label: Mapping[str, Any] | None = None,
    **axes: Iterable[Any],
) -> list[Point]:
    """Make a point of every combination of values; the last axis changes fastest.

    Parameters
    ----------
    call
        What each point computes.
    arguments
        Those that all points have, besides the axes. A function is given the combination and
        returns all arguments, so that the axes are labels alone.
    seconds
        About how long each takes; a function is given the combination.
    label
        A part of all labels that is no argument.
    axes
        What a point is labeled with. Of ``trial`` its seed is made, which is one more.
    """
    points = []
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        own = {name: value for name, value in values.items() if name != "trial"}
        made = {**arguments(**own)} if callable(arguments) else {**arguments, **own}
        seed = {"seed": values["trial"] + 1} if "trial" in values else {}
        cost = seconds(**own) if callable(seconds) else seconds
        points.append(Point({**(label or {}), **values}, call, made | seed, cost))
    return points


class Computed(NamedTuple):
    """One point that ended, by its place among those given; `seconds` are CPU time.

    The result is None where it was interrupted or failed; `error` is the traceback then.
    """

    place: int
    result: Any
    error: str = ""
    seconds: float = 0.0


def in_turn(points: Iterable[Point]) -> list[Any]:
    """Run points here, one after another, and return their results; what one raises ends all."""
    return [point.call(**point.arguments) for point in points]


def computed(place: int, point: Point) -> Computed:
    """Compute a point; what it raises is the error."""
    start = time.process_time()
    try:
        result, error = dict(point.call(**point.arguments)), ""
    except Exception:
        result, error = None, traceback.format_exc()
    return Computed(place, result, error, time.process_time() - start)


def version(places: Sequence[str | Path]) -> str:
    """Hash of what the code of files or folders does; strings are relative to the package."""
    digest = hashlib.sha256()
    for place in sorted({Path(__file__).parents[1] / place for place in places}):
        for file in [place] if place.suffix == ".py" else sorted(place.rglob("*.py")):
            digest.update(_meaning(file))
    return digest.hexdigest()[:16]


@cache
def _meaning(file: Path) -> bytes:
    """A file's syntax tree without its docstrings."""
    tree = syntax_tree(file.read_bytes())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in (one for one in ast.walk(tree) if isinstance(one, documented)):
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                node.body = rest
    return f"{file.name}\n{ast.dump(tree)}".encode()


def key(point: Point, code: str) -> str:
    """Key of a stored row: the call, its arguments and the code's version."""
    call = f"{point.call.__module__}.{point.call.__qualname__}"
    content = json.dumps([call, point.arguments, code], sort_keys=True, allow_nan=False)
    return hashlib.sha256(content.encode()).hexdigest()[:24]


class ResultStore:
    """The rows of one study at one scale, or of one sweep, in a folder, made with the first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "points.jsonl"

    def read(self) -> dict[str, dict[str, Any]]:
        """Results by key. A line cut short by a crash is left out."""
        return {name: result for name, result, _ in self._lines()}

    def add(self, name: str, point: Point, result: Mapping[str, Any], seconds: float = 0.0) -> None:
        """Keep one result and the CPU time that it took, on the disk when this returns."""
        record = {"key": name, "label": dict(point.label), "cpu_s": round(seconds, 3)}
        line = json.dumps({**record, "result": _json(dict(result))}, allow_nan=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab+") as file:
            # After a crash in the middle of a line the next one begins on its own.
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - 1, 0))
            cut = end > 0 and file.read(1) != b"\n"
            file.write(f"{chr(10) * cut}{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def keep(self, names: Sequence[str]) -> None:
        """Forget all but these: rows of other settings or of older code."""
        wanted = set(names)
        lines = "".join(f"{line}\n" for name, _, line in self._lines() if name in wanted)
        if self.file.exists():
            write_whole(self.file, lines)

    def _lines(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        lines = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        for line in lines.splitlines():
            with suppress(*UNREADABLE, KeyError, TypeError):
                record = json.loads(line, object_hook=_number)
                yield record["key"], dict(record["result"]), line


def _json(value: Any) -> Any:
    """NumPy's numbers and arrays as JSON has them; not-a-number and infinities by name."""
    match value.tolist() if hasattr(value, "tolist") else value:
        case list() | tuple() as several:
            return [_json(one) for one in several]
        case dict() as named:
            return {name: _json(one) for name, one in named.items()}
        case float() as number if not math.isfinite(number):
            return {"float": str(number)}
        case plain:
            return plain


def _number(value: dict[str, Any]) -> Any:
    """Turn what `_json` made of not-a-number and infinities back."""
    return float(value["float"]) if value.keys() == {"float"} else value
