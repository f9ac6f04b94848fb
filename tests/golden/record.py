"""Record answers anew: ``python tests/golden/record.py [CHAPTER...]``, all chapters by default.

Says what has changed. What does not come out the same must have a reason: README.md has the list.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MPLBACKEND"] = "Agg"

import book
from cases import COMMANDS, NUMBERED


def record(chapter: str) -> bool:
    """Record a chapter; True where it is another one than before."""
    before, after = book.read(chapter), {}
    for name, case in (COMMANDS | NUMBERED)[chapter].items():
        with tempfile.TemporaryDirectory() as folder:
            after[name] = case(Path(folder))
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    for name in sorted(before.keys() - after.keys()):
        print(f"{chapter}: {name} is gone")
    for name in sorted(before.keys() & after.keys() & set(changed)):
        print(f"{chapter}: {name} has changed\n{book.difference(before[name], after[name])}")
    if number := len(after.keys() - before.keys()):
        print(f"{chapter}: {number} new")
    book.write(chapter, after)
    return bool(changed)


def main(names: list[str]) -> int:
    """Record some chapters or all."""
    chapters = list(COMMANDS | NUMBERED)
    if unknown := [name for name in names if name not in chapters]:
        print(f"no chapter {unknown[0]}; there is {', '.join(chapters)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as nobody:
        # Nothing that was built or measured for the person who records.
        os.environ["XDG_DATA_HOME"] = os.environ["XDG_STATE_HOME"] = nobody
        changed = [record(one) for one in names or chapters]
        if not any(changed):
            print("nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
