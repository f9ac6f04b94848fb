"""The list of what is covered of the papers: it is true, and the page says it."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from inferway.studies.table import STUDIES

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "docs"))

import covered  # noqa: E402
from covered import ABSENT, COVERED, DIFFERENT, ITEMS  # noqa: E402

EVERY = [(key, item) for key, items in ITEMS.items() for item in items]
REFERENCES = sorted({one for _, item in EVERY for one in item.by})


def names(file: Path | str) -> set[str]:
    """Functions and classes of a file."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {one.name for one in tree.body if isinstance(one, kinds)}


def test_the_page_is_what_the_list_prints() -> None:
    written = (ROOT / "docs" / "studies" / "coverage.md").read_text(encoding="utf-8")
    assert written == covered.page()


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_is_referred_to_exists(reference: str) -> None:
    if "::" in reference:
        file, name = reference.split("::")
        assert name in names(ROOT / "tests" / file)
    elif ":" in reference:
        module, name = reference.split(":")  # read, as PyTorch may not be there to import it
        assert name in names(find_spec(module).origin)
    else:
        assert reference in STUDIES


@pytest.mark.parametrize(("key", "item"), EVERY, ids=lambda one: getattr(one, "name", one))
def test_nothing_is_missing_without_a_reason(key: str, item: covered.Item) -> None:
    assert item.state in (COVERED, DIFFERENT, ABSENT)
    assert item.by or item.state == ABSENT
    assert bool(item.why) == (item.state != COVERED), key
    if item.state == DIFFERENT:  # said somewhere
        assert (ROOT / "docs" / "studies" / covered.place(item).split("#")[0]).exists()


def test_no_item_is_listed_twice() -> None:
    names = [(key, item.name) for key, item in EVERY]
    assert len(names) == len(set(names))
