"""With the JIT off the same policies decide the same: Python dispatch exists for every stub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("decisions.py")


def course(*, jit: bool) -> dict[str, list[float]]:
    """The decisions, from a process of its own."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "0" if jit else "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_the_same_decisions() -> None:
    compiled, plain = course(jit=True), course(jit=False)
    assert compiled.keys() == plain.keys()
    for name, found in compiled.items():
        assert found[:-1] == plain[name][:-1], name
        assert found[-1] == pytest.approx(plain[name][-1], abs=1e-9)
        assert len(set(found)) > 2, f"{name} has a course that shows too little"
        # The most accurate class is the one that is never saturated.
        if not name.endswith("saturated") and name != "most-accurate-only":
            assert found != compiled[f"{name}, saturated"], name
