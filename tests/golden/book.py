"""Recorded answers: a text file for each chapter, with an entry below a line `=== NAME` each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).parent / "recorded"
_HEADING = re.compile(r"^=== (.+)\n", re.MULTILINE)


def read(chapter: str) -> dict[str, str]:
    """Read a chapter's entries by name; none where it was never recorded."""
    file = RECORDED / f"{chapter}.txt"
    if not file.exists():
        return {}
    _, *parts = _HEADING.split(file.read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def write(chapter: str, entries: Mapping[str, str]) -> None:
    """Write a chapter anew; without entries there is none."""
    file = RECORDED / f"{chapter}.txt"
    if not entries:
        file.unlink(missing_ok=True)
        return
    for name, text in entries.items():
        if not text.endswith("\n") or _HEADING.search(text):
            raise ValueError(f"{chapter}: {name} cannot be an entry: {text[-200:]!r}")
    RECORDED.mkdir(exist_ok=True)
    told = "".join(f"=== {name}\n{text}" for name, text in sorted(entries.items()))
    file.write_text(told, encoding="utf-8")


def difference(before: str, after: str) -> str:
    """Tell what is no longer as it was recorded, line by line; empty where all is."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "recorded", "now", n=1, lineterm=""
    )
    return "\n".join(lines)
