"""The guide to one's own models in ten minutes, command by command as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from guides import alike, follow


@pytest.mark.slow
def test_the_guide_to_ten_minutes(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is in the extra `learn`, not in `test`")
    printed = {}

    def told(command: str, prints: str, says: str) -> None:
        verb = " ".join(command.split()[:2])
        printed[verb] = prints
        if verb not in ("inferway simulate", "inferway drive"):  # who answers is the machine's
            assert alike(prints).startswith(alike(says)), command

    guide = root / "docs" / "guides" / "ten-minutes.md"
    written = follow(guide, tmp_path, told)
    assert written == ["train.py", "net.py", "models/digits/vectors/model.py", "digits.yaml"]
    profile = json.loads((tmp_path / "digits.yaml.profile.json").read_text())
    accuracies = {
        name: one["accuracy"]["value"]
        for name, one in profile["tasks"]["digits"]["variants"].items()
    }
    assert accuracies["linear"] < accuracies["net"] < 0.985 < accuracies["vectors"]
    # A target between two models is kept by asking both.
    assert re.search(r"accuracy target +0.985", printed["inferway simulate"])
    drive = printed["inferway drive"]
    assert re.search(r"failed +0\b", drive)
    assert re.search(r"accuracy, by labels +0\.9[6-9]", drive)
    assert "vectors" in drive
    assert "net" in drive
