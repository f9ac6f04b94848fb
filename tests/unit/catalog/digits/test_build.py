"""Building says what it needs."""

import importlib.util
from pathlib import Path

import pytest

from inferway.catalog import CatalogError
from inferway.catalog.digits.build import build


def test_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CatalogError, match=r"torch, which is in the extra `learn`: pip install"):
        build(tmp_path)
