"""The documentation's notebook: every cell runs, and what it keeps shown is of these cells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "tour.ipynb"
LARGEST_BYTES = 150_000


@pytest.mark.slow
def test_every_cell_runs_in_a_kernel(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    copy = docs / NOTEBOOK.name
    copy.write_bytes(NOTEBOOK.read_bytes())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, str(ROOT / "docs" / "execute.py"), str(copy)]
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)
    assert ran.returncode == 0, ran.stderr[-4000:]
    # Those kept from where PyTorch is not installed are counted, too.
    assert int(ran.stdout.split()[-2]) >= 6, ran.stdout


def test_what_is_kept_is_small_and_whole() -> None:
    assert NOTEBOOK.stat().st_size < LARGEST_BYTES
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    shown = [one for cell in code for one in cell["outputs"]]
    assert not [one for one in shown if one["output_type"] == "error"]
    kinds = [kind for one in shown for kind in one.get("data", {})]
    assert kinds.count("image/png") >= 6
    assert kinds.count("text/html") >= 6
