"""The paper's small edge server, and policies for it with weights that do something."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferway.site import Fleet

sys.path.insert(0, str(Path(__file__).parent))

from exported import ABOUT, arrays_of


@pytest.fixture
def fleet() -> Fleet:
    """Two light servers, two heavy ones."""
    return Fleet(
        ("light", "heavy"),
        np.array([1 / 0.0107, 1 / 0.0429]),
        np.array([0.7769, 0.8278]),
        np.array([2, 2]),
        buffer=15,
    )


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Write a policy, with changes to what it was trained for."""

    def write(name: str = "policy.npz", seed: int = 1, **changes: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **arrays_of(replace(ABOUT, **changes), seed))  # type: ignore[arg-type]
        return path

    return write
