"""A page of the documentation as somebody reads it who does what it says: its blocks, in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The name that stands last before a block, relative to the folder that the reader is in.
_FILE = re.compile(r"`(\w[\w./-]*\.(?:py|yaml))`[^`]*\Z")


class Command(NamedTuple):
    """A command of a console block: `$ ` before it, or `# ` for root, and what it prints."""

    line: int
    text: str
    prints: str
    root: bool = False


class Code(NamedTuple):
    """A block of another language; `file` is the name that the page gives it, if it does."""

    line: int
    language: str
    text: str
    file: str | None


def steps(page: Path) -> Iterator[Command | Code]:
    """Yield what a page says to do or shows, from its top down."""
    text = page.read_text(encoding="utf-8")
    for block in FENCE.finditer(text):
        language, content = block.groups()
        line = text.count("\n", 0, block.start(2)) + 1
        if language == "console":
            yield from commands(content, line)
        else:
            name = _FILE.search(text[: block.start()])
            yield Code(line, language, content, name[1] if name else None)


def commands(block: str, line: int = 1) -> Iterator[Command]:
    """Yield the commands of a console block; what follows each of them is what it prints."""
    prompt = block[:2]
    if prompt not in ("$ ", "# "):
        raise ValueError(f"line {line}: a console block begins with a command after `$ ` or `# `")
    lines = block.splitlines(keepends=True)
    place = 0
    while place < len(lines):
        first = place
        text = lines[place].removeprefix(prompt)
        place += 1
        while place < len(lines) and _goes_on(text):
            text += lines[place]
            place += 1
        prints = ""
        while place < len(lines) and not lines[place].startswith(prompt):
            prints += lines[place]
            place += 1
        yield Command(line + first, text.removesuffix("\n"), prints, prompt == "# ")


def _goes_on(text: str) -> bool:
    """Say if a shell would wait for another line of a command: an open quote, or a backslash."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return text.endswith("\\\n")
