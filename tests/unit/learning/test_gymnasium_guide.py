"""The guide's code runs, and prints what the guide says of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "train-with-gymnasium.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def printed(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_site() -> None:
    # Light servers keep up with calm and bursts alike, if not with every deadline.
    found = re.fullmatch(r"goodput (0\.\d{4}) of \d{4,6} requests\n", printed(BLOCKS[0]))
    assert found
    assert 0.7 < float(found[1]) <= 0.7769


def test_many_sites() -> None:
    # Two episodes and the step that begins the second one: it is not counted.
    found = re.fullmatch(r"512000 slots, return (-?\d+)\n", printed(BLOCKS[1]))
    assert found
    assert 0 < int(found[1]) < 500 * 19 * 0.8


@pytest.mark.slow
def test_stable_baselines() -> None:
    pytest.importorskip("stable_baselines3")
    found = re.fullmatch(r"goodput (0\.\d{4})\n", printed(BLOCKS[2]))
    assert found
    assert float(found[1]) > 0.5
