"""Record answers anew: ``python tests/golden/record.py [CHAPTER...]``, all chapters by default.

Says what has changed. What does not come out the same must have a reason: README.md has the list.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"
os.environ["_TYPER_FORCE_DISABLE_TERMINAL"] = "1"

import book
from cases import COMMANDS, NUMBERED
from conversations import CHAPTERS, conversations


def compare(chapter: str, after: Mapping[str, str]) -> bool:
    """Write a chapter; True where it is another one than before, which is then told."""
    before = book.read(chapter)
    if before == after:
        return False
    for name in sorted(before.keys() - after.keys()):
        print(f"{chapter}: {name} is gone")
    for name in sorted(before.keys() & after.keys()):
        if changed := book.difference(before[name], after[name]):
            print(f"{chapter}: {name} has changed\n{changed}")
    if number := len(after.keys() - before.keys()):
        print(f"{chapter}: {number} new")
    book.write(chapter, after)
    return True


def record(chapters: Sequence[str]) -> bool:
    """Record chapters; True where one is another than before."""
    found: dict[str, Mapping[str, str]] = {}
    for chapter, cases in (COMMANDS | NUMBERED).items():
        if chapter in chapters:
            found[chapter] = {name: _alone(case) for name, case in cases.items()}
    if asked := set(CHAPTERS).intersection(chapters):
        found |= {name: one for name, one in _alone(conversations).items() if name in asked}
    changed = [compare(*one) for one in found.items()]
    return any(changed)


def _alone(make: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return make(Path(folder))


def main(names: list[str]) -> int:
    """Record some chapters or all."""
    chapters = [*COMMANDS, *NUMBERED, *CHAPTERS]
    if unknown := [name for name in names if name not in chapters]:
        print(f"no chapter {unknown[0]}; there is {', '.join(chapters)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as nobody:
        # Nothing that was built or measured for the person who records.
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_STATE_HOME"] = nobody
        if not record(names or chapters):
            print("nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
