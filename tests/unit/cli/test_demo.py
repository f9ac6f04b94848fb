"""``inferway demo``: what it refuses."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from inferway.cli import dashboard, main
from inferway.cli.study import watching


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["demo", "nope"], "for 'what': 'nope' is not one of 'policies', 'burst', 'network'."),
        (["serve", "a.yaml", "--log-level", "loud"], "for '--log-level': 'loud' is not one of"),
    ],
)
def test_a_word_that_is_no_choice(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(words) == 2
    assert f"inferway: Invalid value {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize(("what", "command"), [("policies", "demo"), ("burst", "demo burst")])
@pytest.mark.parametrize("installed", [True, False])
def test_its_last_line_says_how_it_is_watched(
    monkeypatch: pytest.MonkeyPatch, what: str, command: str, installed: bool
) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda name: name if installed else None)
    begin, colon, words = watching(what).rpartition(": ")
    assert (begin, colon) == ("To watch it on a page in the browser", ": ")
    assert words.endswith(f"inferway {command} --dashboard")
    assert words.startswith("pip install 'inferway[dashboard]', then ") != installed


def test_a_page_that_cannot_be_had_is_said_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ["--out", str(tmp_path), "--dashboard", "--dashboard-port", port]
        assert main(["demo", *options]) == 1
    out, errors = capsys.readouterr()
    assert out == ""
    assert errors.startswith(f"inferway: --dashboard-port {port} at 127.0.0.1: ")
