"""The guide to profiles: its files and commands, run as they stand there."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from page import Command, steps


@pytest.mark.slow
def test_the_guide_to_profiles(root: Path, tmp_path: Path) -> None:
    commands = []
    for step in steps(root / "docs" / "guides" / "profile-your-models.md"):
        if isinstance(step, Command):
            commands.append(step.text)
        elif step.file is not None:
            (tmp_path / step.file).write_text(step.text)
    assert len(commands) == 5
    for command in commands:
        program, *words = shlex.split(command)
        if program == "inferway":
            words = ["-m", "inferway", *words]
        if "profile" in words:
            words += ["--rounds", "1"]
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if "check" in words:
            assert "no errors" in done.stdout
    for name in ("digits.yaml.profile.json", "out/profile.png"):
        assert (tmp_path / name).stat().st_size > 1000
