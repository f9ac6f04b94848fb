"""Building says what it needs."""

import importlib.util
from pathlib import Path

import pytest

from inferway.catalog import CatalogError
from zoo.build import build


def test_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CatalogError, match=r"torch, which is in the extra `learn`: pip install"):
        build(tmp_path)


def test_without_a_clone_the_command_says_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import inferway
    from inferway.cli import main

    monkeypatch.setattr(inferway, "__file__", str(tmp_path / "lib" / "inferway" / "__init__.py"))
    assert main(["zoo", "build", "--out", str(tmp_path)]) == 2
    assert "run this in a clone" in capsys.readouterr().err
