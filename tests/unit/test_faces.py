"""Live tests know the package by its faces alone: what still names an inner module is listed.

A face is `inferway` itself, what a package's `__all__` says, a socket or a command. So a move of
inner modules touches no live test. A new offender fails, and so does one that is gone: take it out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sources import PACKAGE, import_statements, modules

LIVE = Path(__file__).parents[1] / "live"

# By file of tests/live, the inner modules that it names.
INNER: dict[str, set[str]] = {
    # Requests of a plan of its own, each accounted for, from inside a namespace.
    "network/clients.py": {
        "inferway.loadgen.generator",
        "inferway.loadgen.message",
    },
    # What a killed node has kept on its disk: no page tells the fractional allocation.
    "network/ring.py": {
        "inferway.live.node.plan",
        "inferway.live.node.state",
    },
    "network/test_killed.py": {
        "inferway.live.node.plan",
    },
    # When a server has seen enough requests to say its overhead, and one that is elsewhere, which
    # no test has.
    "test_devices.py": {
        "inferway.experiments.driven",
        "inferway.live.overhead",
    },
    # Kinds of recorded events, and sections on a disk that fails.
    "node/test_recorded.py": {
        "inferway.dispatch.recording",
        "inferway.dispatch.replay",
        "inferway.live.node.recordings",
    },
    # Each slot's counters on the disk beside those of a node that is never killed.
    "node/test_remembered.py": {
        "inferway.live.node.plan",
        "inferway.live.node.state",
        "inferway.placement.local",
    },
    # Kinds of recorded events: which run began and ended when, at a device that several share.
    "test_recording.py": {
        "inferway.dispatch.recording",
        "inferway.dispatch.replay",
    },
}

# Scripts that are written into strings, and what tests replace, count as well.
WRITTEN_IMPORT = re.compile(r"from +(inferway[.\w]*) +import +([\w, ]+)")
DOTTED = re.compile(r"\binferway(?:\.\w+)+")


@cache
def faces() -> dict[str, frozenset[str]]:
    """Read what each package says of itself: its `__all__`, and the packages directly below it."""
    files = {name: PACKAGE.joinpath(*name.split(".")[1:]) for name in modules()}
    packages = {name for name, file in files.items() if file.is_dir()}
    found = {}
    for name in packages:
        said = [
            ast.literal_eval(node.value)
            for node in ast.parse(modules()[name]).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        ]
        below = {one.rpartition(".")[2] for one in packages if one.rpartition(".")[0] == name}
        found[name] = frozenset(below).union(*said)
    return found


def inner(dotted: str) -> str | None:
    """Find the inner module that a dotted name reaches into; none if it stays on a face."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module in faces():
            beyond = parts[length : length + 1]
            # Metrics and spans are dotted names of the package, too, and no modules.
            off = beyond and beyond[0] not in faces()[module] and module != "inferway"
            return module if off else None
        if module in modules():
            parent, _, name = module.rpartition(".")
            # A function may have its module's name; the name then means the function.
            return module if length < len(parts) or name not in faces()[parent] else None
    return None


def named(source: str) -> Iterator[str]:
    """Find the dotted names of the package that a test imports or writes into a string."""
    tree = ast.parse(source)
    for node, _ in import_statements(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(base), names=names):
                yield from (f"{base}.{alias.name}" for alias in names)
    for text in ast.walk(tree):
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            for base, names in WRITTEN_IMPORT.findall(text.value):
                yield from (
                    f"{base}.{name.split()[0]}" for name in names.split(",") if name.strip()
                )
            yield from DOTTED.findall(text.value)


def inner_modules(source: str) -> set[str]:
    dotted = {name for name in named(source) if name.partition(".")[0] == "inferway"}
    return {module for name in dotted if (module := inner(name)) is not None}


def test_live_tests_name_no_inner_modules_but_those_listed() -> None:
    found = {
        str(file.relative_to(LIVE)): reached
        for file in sorted(LIVE.rglob("*.py"))
        if (reached := inner_modules(file.read_text(encoding="utf-8")))
    }
    new = [
        f"{file} reaches into {module}: test through a face"
        for file, reached in found.items()
        for module in sorted(reached - INNER.get(file, set()))
    ]
    gone = [
        f"{file} no longer reaches into {module}: tighten the list"
        for file, reached in INNER.items()
        for module in sorted(reached - found.get(file, set()))
    ]
    assert not new + gone, "\n".join(new + gone)


def test_faces_are_no_offenders() -> None:
    source = (
        "import inferway\nimport inferway.cli\nfrom inferway import demo, simulate\n"
        "from inferway.live import Server, TaskSite\nfrom inferway.lab import LocalCluster\n"
        "from inferway.dispatch import bound\n"
        'run(["-m", "inferway.live.http"])\n'
        'script = "from inferway.live import TaskSite, Server\\n"\n'
    )
    assert inner_modules(source) == set()


def test_inner_modules_are_found_wherever_they_are_named() -> None:
    source = (
        "import inferway.live.site\nfrom inferway.dispatch.bounds import bound\n"
        "def f():\n    from inferway.live import instance\n    from inferway.cli.app import app\n"
        'script = "import os\\nfrom inferway.live.log import Log, x\\n"\n'
        'replace("inferway.live.server.settle", None)\n'
        'replace("inferway.live.serve", None)\n'
    )
    assert inner_modules(source) == {
        "inferway.live.site",
        "inferway.dispatch.bounds",
        "inferway.live.instance",
        "inferway.cli.app",
        "inferway.live.log",
        "inferway.live.server",
    }
