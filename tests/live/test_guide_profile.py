"""The guide to profiles: its files and commands, run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_guide_to_profiles(root: Path, tmp_path: Path) -> None:
    guide = (root / "docs" / "guides" / "profile-your-models.md").read_text(encoding="utf-8")
    blocks = FENCE.findall(guide)
    data, mine = (text for kind, text in blocks if kind == "python")
    (tmp_path / "profile_data.py").write_text(data)
    (tmp_path / "mine.py").write_text(mine)
    (tmp_path / "digits.yaml").write_text(next(text for kind, text in blocks if kind == "yaml"))
    commands = [
        line.removeprefix("$ ")
        for kind, text in blocks
        if kind == "console"
        for line in text.splitlines()
    ]
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
