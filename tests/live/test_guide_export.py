"""The guide to exporting models, command by command as it stands there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guides import alike, follow


@pytest.mark.slow
def test_the_guide_to_exporting_models(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is in the extra `learn`, not in `test`")
    commands = []

    def told(command: str, prints: str, says: str) -> None:
        commands.append(command)
        if not command.startswith("curl"):
            assert alike(prints) == alike(says), command
            return
        answered, expected = json.loads(prints), json.loads(says)
        # The faster comes first.
        assert sorted(answered.pop("versions")) == sorted(expected.pop("versions"))
        assert answered == expected

    guide = root / "docs" / "guides" / "export-a-model.md"
    written = follow(guide, tmp_path, told)
    assert written == ["train.py", "boost.py", "net.py", "digits.yaml"]
    assert len(commands) == 7
