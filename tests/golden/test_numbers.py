"""Numbers that come from a seed are digit by digit as they were recorded."""

from __future__ import annotations

from pathlib import Path

import book
import pytest
from cases import NUMBERED

RECORDED = {chapter: book.read(chapter) for chapter in NUMBERED}


@pytest.mark.parametrize(
    ("chapter", "name"), [(chapter, name) for chapter in NUMBERED for name in NUMBERED[chapter]]
)
def test_as_recorded(tmp_path: Path, chapter: str, name: str) -> None:
    if changed := book.difference(
        RECORDED[chapter].get(name, ""), NUMBERED[chapter][name](tmp_path)
    ):
        pytest.fail(f"not as it was recorded\n{changed}", pytrace=False)


@pytest.mark.parametrize("chapter", NUMBERED)
def test_nothing_recorded_is_left_out(chapter: str) -> None:
    assert RECORDED[chapter].keys() == NUMBERED[chapter].keys()
