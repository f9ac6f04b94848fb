"""Whoever looks on while a comparison runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from inferway.studies.live import SeenServer, own_command
from inferway.studies.live.comparison import Steps


def test_onlookers_hear_of_what_is_done_and_of_servers() -> None:
    heard: list[tuple[str, list[SeenServer]]] = []

    def look(doing: str, servers: Sequence[SeenServer]) -> None:
        heard.append((doing, list(servers)))

    steps, one = Steps(None, 10.0, look), SeenServer("http://127.0.0.1:1", "priced")
    steps.begin("measuring", 1.0)
    steps.show([one])
    steps.begin("its turn", 1.0)
    assert heard == [("measuring", []), ("measuring", [one]), ("its turn", [one])]


def test_the_command_is_named_as_a_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / ".venv" / "bin" / "inferway"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(command.with_name("python")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    assert own_command() == ".venv/bin/inferway"
    monkeypatch.setenv("PATH", str(command.parent))
    assert own_command() == "inferway"
