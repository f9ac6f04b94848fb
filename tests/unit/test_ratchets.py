"""The house's shape only gets better: what is left to mend is listed here, and the lists shrink.

A new offender fails, and so does an entry that no longer holds: take it out, or lower its number.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from sources import PACKAGE, Import, all_imports, facts, modules

ROOT = Path(__file__).parents[2]

MOST_PARAMETERS = 8

# Of all files that git tracks.
MOST_TRACKED_BYTES = 20_000_000

# A public class's name, and in how many modules such a class is defined.
NAMED_TWICE: dict[str, int] = {}

# Constructors of more than so many parameters besides `self`, and how many they have.
WIDE_CONSTRUCTORS = {}

# Modules that import each other in a circle, lazily or for types only as well.
CIRCLES: tuple[tuple[str, ...], ...] = ()


def named_twice(sources: dict[str, str]) -> dict[str, list[str]]:
    """Find public classes of one name; their modules by name.

    Studies are modules of one form, and `Settings` belong to it.
    """
    homes: dict[str, list[str]] = {}
    for module, source in sources.items():
        for name in facts(source).classes:
            own = name == "Settings" and module.startswith("inferway.studies.")
            if not own and not name.startswith("_"):
                homes.setdefault(name, []).append(module)
    return {name: where for name, where in homes.items() if len(where) > 1}


def wide_constructors(sources: dict[str, str]) -> dict[str, int]:
    """Find each `__init__` that is written out with too many parameters; how many, by class."""
    return {
        f"{module}.{name}": count
        for module, source in sources.items()
        for name, count in facts(source).constructors
        if count > MOST_PARAMETERS
    }


def from_imports(source: str) -> Iterator[ast.ImportFrom]:
    return (node for node, _ in facts(source).imports if isinstance(node, ast.ImportFrom))


def shadowing(sources: dict[str, str]) -> list[str]:
    """Find what a face imports from a module of its folder under that module's own name."""
    return [
        f"{face}.{name.name}"
        for face, source in sources.items()
        for node in from_imports(source)
        for name in node.names
        if node.module == f"{face}.{name.asname or name.name}"
    ]


def reached_into(sources: dict[str, str]) -> list[str]:
    """Find the private names that modules import from others of the package."""
    return [
        f"{module}: {node.module}.{name.name}"
        for module, source in sources.items()
        for node in from_imports(source)
        if (node.module or "").startswith("inferway")
        for name in node.names
        if name.name.startswith("_") and not name.name.startswith("__")
    ]


def circles(found: Iterable[Import]) -> set[tuple[str, ...]]:
    """Find the largest sets of modules of which each reaches all others by imports."""
    graph = nx.DiGraph((one.module, one.target) for one in found)
    return {
        tuple(sorted(ring)) for ring in nx.strongly_connected_components(graph) if len(ring) > 1
    }


def tracked(folder: Path) -> list[Path]:
    """Find the files that git tracks; none where there is no git or this is no checkout's top."""
    if shutil.which("git") is None or not (folder / ".git").exists():
        return []
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, check=False)
    files = (folder / name for name in listed.stdout.decode().split("\0") if name)
    return [file for file in files if file.is_file()]


def difference(found: dict[Any, Any], listed: dict[Any, Any]) -> str:
    """Say what is new and what no longer holds; empty if neither."""
    new = [f"new: {key}: {found[key]}" for key in found if found[key] != listed.get(key)]
    mended = [
        f"no longer true, tighten the list: {key}: {listed[key]}"
        for key in listed
        if found.get(key) != listed[key]
    ]
    return "\n".join(sorted(new) + sorted(mended))


def test_no_more_public_classes_share_a_name() -> None:
    found = named_twice(modules())
    told = difference({name: len(where) for name, where in found.items()}, NAMED_TWICE)
    where = [f"{name}: {', '.join(at)}" for name, at in found.items() if f" {name}: " in told]
    assert not told, "\n".join([told, *where])


def test_no_more_constructors_are_wide() -> None:
    assert not (told := difference(wide_constructors(modules()), WIDE_CONSTRUCTORS)), told


def test_no_more_modules_import_each_other_in_a_circle() -> None:
    found, listed = (
        {", ".join(ring): len(ring) for ring in rings}
        for rings in (circles(all_imports()), CIRCLES)
    )
    assert not (told := difference(found, listed)), told


def test_no_function_hides_the_module_that_it_is_in() -> None:
    assert shadowing(modules()) == []
    source = "from inferway.a.solve import solve\nfrom inferway.a.other import one\n"
    assert shadowing({"inferway.a": source}) == ["inferway.a.solve"]


def test_no_module_imports_a_private_name_of_another() -> None:
    assert reached_into(modules()) == []
    source = "from inferway.a import __doc__, _own\nfrom numba.core import _typing\n"
    assert reached_into({"inferway.b": source}) == ["inferway.b: inferway.a._own"]


def test_public_faces_alone_say_what_is_public() -> None:
    inner = [
        file.relative_to(PACKAGE)
        for file in PACKAGE.rglob("*.py")
        if file.name != "__init__.py" and "\n__all__ = " in file.read_text(encoding="utf-8")
    ]
    assert not inner


def test_what_is_new_and_what_no_longer_holds_are_both_told() -> None:
    assert difference({"A": 2}, {"A": 2}) == ""
    assert difference({"A": 2}, {}) == "new: A: 2"
    assert difference({}, {"A": 2}) == "no longer true, tighten the list: A: 2"
    assert difference({"A": 3}, {"A": 2}).startswith("new: A: 3\nno longer true")
    assert difference({"A": 2}, {"A": 3}).endswith("tighten the list: A: 3")


def test_public_classes_of_modules_count_but_neither_private_ones_nor_settings_of_studies() -> None:
    sources = {
        "inferway.a": "class One: ...\nclass _Two: ...\ndef f():\n    class Three: ...\n",
        "inferway.b": "class One: ...\nclass _Two: ...\nclass Three: ...\n",
        "inferway.studies.c": "class Settings: ...\n",
        "inferway.studies.d": "class Settings: ...\n",
    }
    assert named_twice(sources) == {"One": ["inferway.a", "inferway.b"]}


def test_only_constructors_that_are_written_out_count() -> None:
    fields = "".join(f"    field{number}: int\n" for number in range(9))
    eight = "a, b, c, d, *, e, f, g, h"
    source = (
        f"@dataclass\nclass Fields:\n{fields}"
        f"class Narrow:\n    def __init__(self, {eight}): ...\n"
        f"class Wide:\n    def __init__(self, {eight}, i): ...\n"
    )
    assert wide_constructors({"inferway.a": source}) == {"inferway.a.Wide": 9}


def test_lazy_imports_close_a_circle_and_ways_back_down_do_not() -> None:
    ways = [("a", "b", True), ("b", "c", True), ("c", "b", False), ("d", "a", True)]
    found = [Import(here, there, 1, eager) for here, there, eager in ways]
    assert circles(found) == {("b", "c")}


def test_the_tracked_files_grow_no_larger() -> None:
    if not (files := tracked(ROOT)):
        pytest.skip("git tells of no files here")
    # A link counts as itself: what it leads to is among the files.
    sizes = sorted(((file.lstat().st_size, file.relative_to(ROOT)) for file in files), reverse=True)
    largest = ", ".join(f"{file} {size / 1e6:.1f} MB" for size, file in sizes[:5])
    assert sum(size for size, _ in sizes) <= MOST_TRACKED_BYTES, f"the largest: {largest}"
