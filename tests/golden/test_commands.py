"""Help, messages and schema are letter by letter as they were recorded."""

from __future__ import annotations

from pathlib import Path

import book
import pytest
from cases import COMMANDS

RECORDED = {chapter: book.read(chapter) for chapter in COMMANDS}


@pytest.mark.parametrize(
    ("chapter", "name"), [(chapter, name) for chapter in COMMANDS for name in COMMANDS[chapter]]
)
def test_as_recorded(tmp_path: Path, chapter: str, name: str) -> None:
    if changed := book.difference(
        RECORDED[chapter].get(name, ""), COMMANDS[chapter][name](tmp_path)
    ):
        pytest.fail(f"not as it was recorded\n{changed}", pytrace=False)


@pytest.mark.parametrize("chapter", COMMANDS)
def test_nothing_recorded_is_left_out(chapter: str) -> None:
    assert RECORDED[chapter].keys() == COMMANDS[chapter].keys()
