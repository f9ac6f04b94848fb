"""All that is recorded by commands, chapter by chapter, and how each entry comes about."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from commands import HELP, NUMBERS, REFUSED
from mistakes import BESIDE, MISTAKES
from transcript import transcript

Case = Callable[[Path], str]
"""Makes an entry in an empty folder."""

_FILES: Final = Path(__file__).parent / "files"
_LISTED: Final = re.compile(r"^ {8}\{\n(?: {9,}.*\n)+ {8}\},?\n", re.MULTILINE)
_WRONG: Final = {
    "wrong.yaml": "tasks:\n  t:\n    acuracy: 1\n    variants: {a: {accuracy: 95}}\n",
    "plain.yaml": "tasks: {t: {variants: {a: {accuracy: 0.9, service: {mean: 1 s}}}}}\n",
}


def _fill(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def _command(words: str, folder: Path) -> str:
    shutil.copytree(_FILES, folder, dirs_exist_ok=True)
    _fill(folder, BESIDE | _WRONG)
    return transcript(folder, shlex.split(words))


def _mistake(name: str, content: str | bytes, folder: Path) -> str:
    _fill(folder, BESIDE | {f"{name}.yaml": content})
    return transcript(folder, ["check", f"{name}.yaml"])


def _compiled(folder: Path) -> str:
    """Compile what is compiled already."""
    _command("compile site.yaml", folder)
    said = transcript(folder, ["compile", "site.yaml", "--json"])
    return re.sub(r'("folder": )".*"', r'\1"{cache}"', said)


def _zoo(folder: Path) -> str:
    """List the shipped zoo, its first variant in full: the others are like it, and long."""
    first, *others = _LISTED.findall(told := _command("zoo --json", folder))
    for one in others:
        digest = hashlib.sha256(one.encode()).hexdigest()[:16]
        told = told.replace(one, f"        {{listed}} sha256:{digest}\n")
    assert first in told
    assert len(others) > 5
    return told


def _commands(table: Mapping[str, str]) -> dict[str, Case]:
    return {name: partial(_command, words) for name, words in table.items()}


COMMANDS: Final[dict[str, dict[str, Case]]] = {
    "help": _commands(HELP),
    "init": _commands({"init": "init models", "init in JSON": "init models --json"}),
    "mistakes": {name: partial(_mistake, name, text) for name, text in MISTAKES.items()},
    "refused": _commands(REFUSED),
}
NUMBERED: Final[dict[str, dict[str, Case]]] = {
    "numbers": _commands(NUMBERS) | {"compile again": _compiled, "zoo": _zoo}
}
