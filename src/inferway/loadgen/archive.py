"""Columns and what belongs to them in NumPy archives (.npz)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write arrays of numbers, tuples of names, and single values."""
    with path.open("wb") as file:
        # An empty tuple must still be one of names.
        columns: dict[str, Any] = {
            name: np.array(value, np.str_) if isinstance(value, tuple) else value
            for name, value in content.items()
        }
        np.savez(file, **columns)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote, each as it was."""
    with np.load(path, allow_pickle=False) as data:
        return {name: _plain(data[name]) for name in data.files}


def _plain(value: Any) -> Any:
    if value.ndim == 0:
        return value.item()
    return tuple(value.tolist()) if value.dtype.kind == "U" else value
