"""What servers answer is letter by letter as it was recorded."""

from __future__ import annotations

import book
import pytest
from conversations import CHAPTERS, conversations

Chapters = dict[str, dict[str, str]]

RECORDED: Chapters = {chapter: book.read(chapter) for chapter in CHAPTERS}


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Chapters:
    """Ask all servers everything, once."""
    return conversations(tmp_path_factory.mktemp("servers"))


@pytest.mark.parametrize(
    ("chapter", "name"), [(chapter, name) for chapter in CHAPTERS for name in RECORDED[chapter]]
)
def test_as_recorded(answered: Chapters, chapter: str, name: str) -> None:
    if changed := book.difference(RECORDED[chapter][name], answered[chapter].get(name, "")):
        pytest.fail(f"not as it was recorded\n{changed}", pytrace=False)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_nothing_recorded_is_left_out(answered: Chapters, chapter: str) -> None:
    assert RECORDED[chapter].keys() == answered[chapter].keys()
